//go:build linux && vm && long

package ipvs

import (
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// foreignHands are other programs' changes of our objects. True means that the command deletes a
// record of what is ours: which node ports, which services by mark.
var foreignHands = map[string]bool{
	"nft flush ruleset": true, "nft delete table inet ironvip": true, "nft flush map inet ironvip ranges4": true, "nft flush map inet ironvip internal4": true,
	"nft flush set inet ironvip nodeports4": true, "nft flush set inet ironvip vips4": false,
	"ipvsadm -C": false, "ipvsadm -D -t 10.96.0.1:80": false, "ipvsadm -D -f 16777216": false, "ipvsadm -E -t 10.96.0.2:80 -s sed": false, "ipvsadm -A -t 10.96.0.3:81 -s rr": false,
	"ip link del ironvip0": false, "ip link set ironvip0 down": false, "ip link set lo down": false,
	"ip route flush table local dev ironvip0": false, "ip -6 route flush table local proto 178": false, "ip addr flush dev ironvip0": false,
}

// Frontends change, other programs change our objects, and agents are killed at any write. At the
// end, the kernel has exactly the wanted frontends, as ipvsadm, nft and ip list them.
func TestStormOnKernel(t *testing.T) {
	storms := planetest.Storms{
		Count: 5,
		Open: func(t *testing.T, node *netlab.Node) (reconcile.Plane, *planetest.Plane) {
			p := newPlane(t, node)
			return p, p.Plane
		},
		Draw: drawWish, Hands: foreignHands,
		End: func(t *testing.T, lab *netlab.Lab, want []vip.Frontend) { witness(t, lab.Director, want) },
	}
	storms.Run(t)
}
