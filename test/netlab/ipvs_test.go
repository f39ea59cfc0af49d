//go:build linux && vm

package netlab_test

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
)

// The lab carries IPVS in the director: NAT and direct routing, both families, TCP and UDP. ipvsadm
// programs the service, so a failure here is the lab's.
func TestIPVSBalancesInTheLab(t *testing.T) {
	for _, tc := range []struct {
		name, forward string
		backendPort   uint16
	}{{"nat", "-m", 8080}, {"direct", "-g", 80}} {
		t.Run(tc.name, func(t *testing.T) {
			l := netlab.New(t)
			for _, vip := range []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")} {
				l.Director.AddAddr("lo", netip.PrefixFrom(vip, vip.BitLen()))
				at := netip.AddrPortFrom(vip, 80)
				for _, network := range []string{"tcp", "udp"} {
					flag := "-" + network[:1]
					l.Director.Do(func() { ipvsadm(t, "-A", flag, at.String(), "-s", "rr") })
					for _, b := range l.Backends {
						own := b.Addr4
						if vip.Is6() {
							own = b.Addr6
						}
						if tc.forward == "-g" {
							if network == "tcp" {
								b.AddAddr("lo", netip.PrefixFrom(vip, vip.BitLen()))
							}
							b.Serve(network, at)
						} else {
							b.Serve(network, netip.AddrPortFrom(own, tc.backendPort))
						}
						real := netip.AddrPortFrom(own, tc.backendPort)
						l.Director.Do(func() { ipvsadm(t, "-a", flag, at.String(), "-r", real.String(), tc.forward) })
					}
					seen := map[string]int{}
					for range 4 {
						a, err := l.Client.Ask(network, at)
						if err != nil {
							t.Fatalf("%s %v: %v", network, at, err)
						}
						if a.Client.Addr() != l.Client.Addr4 && a.Client.Addr() != l.Client.Addr6 {
							t.Errorf("%s %v: %s saw the client as %v", network, at, a.Name, a.Client)
						}
						seen[a.Name]++
					}
					if seen["backend1"] != 2 || seen["backend2"] != 2 {
						t.Errorf("%s %v: four questions were answered by %v", network, at, seen)
					}
				}
			}
		})
	}
}

func ipvsadm(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ipvsadm", args...).CombinedOutput(); err != nil {
		t.Fatalf("ipvsadm %v: %v: %s", args, err, out)
	}
}
