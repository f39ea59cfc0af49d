package nft

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func (w *world) remains() (r *Remains) {
	w.t.Helper()
	w.Director.Do(func() {
		var err error
		if r, err = Find(w.t.Context(), Options{}); err != nil {
			w.t.Fatal(err)
		}
	})
	w.t.Cleanup(func() { r.Close() })
	return r
}

func (r *Remains) String() string {
	var s strings.Builder
	for _, x := range r.Services {
		fmt.Fprintf(&s, "%s %s %d, ", x.Key, x.Scheduler, x.Backends)
	}
	return fmt.Sprintf("%sbridge %q, addresses %v", s.String(), r.Bridge, r.Addresses)
}

// What a dataplane left is found and removed, even if parts are missing. What belongs to others stays.
// Slow: the table and the device are made, damaged and removed eleven times.
func TestFindAndRemove(t *testing.T) {
	const (
		services  = "10.96.0.1:80/tcp wrr 2, [fd96::1]:80/tcp rr 0, "
		damaged   = "10.96.0.1:80/tcp  0, [fd96::1]:80/tcp  0, "
		addresses = `bridge "ironvip0", addresses [10.96.0.1 fd96::1]`
		foreign   = `bridge "", addresses []`
	)
	w := newWorld(t)
	w.Close()
	w.run("nft add table inet neighbor; ip link add neighbor0 type bridge")
	all := w.servers("tcp", false, 0)
	for _, c := range []struct{ name, damage, want, left string }{
		{"whole", "true", services + addresses, ""},
		{"down", "ip link set ironvip0 down && ip addr add 10.96.0.1/32 dev ironvip0 2>/dev/null; true", services + `bridge "ironvip0", addresses [10.96.0.1]`, ""},
		{"without the table", "nft delete table inet ironvip_nft", addresses, ""},
		{"without the bridge", "ip link del ironvip0", services + foreign, ""},
		{"a damaged table", "nft flush chain inet ironvip_nft arriving", damaged + addresses, ""},
		{"beside a table of ipvs", "nft add table inet ironvip; nft add set inet ironvip vips4 '{ type ipv4_addr; }'", services + addresses, "table inet ironvip"},
		{"an empty table", "nft delete table inet ironvip_nft; nft add table inet ironvip_nft", addresses, ""},
		{"another's bridge with a port", "ip link add port0 type veth peer name port1; ip link set port0 master ironvip0", services + foreign, "ironvip0"},
		{"another's bridge with ARP", "ip link set ironvip0 arp on", services + foreign, "ironvip0"},
		{"another's device", "ip link del ironvip0; ip link add ironvip0 type veth peer name other0", services + foreign, "ironvip0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worldIn(t, w.Lab)
			f, g := frontend("10.96.0.1", 80, vip.TCP, all...), frontend("fd96::1", 80, vip.TCP)
			g.Scheduler = vip.RoundRobin
			w.set(f)
			w.set(g)
			w.Close()
			w.run(c.damage)
			r := w.remains()
			expect.Equal(t, r.String(), c.want, "found")
			w.Director.Do(func() {
				expect.Succeed(t, r.Remove(t.Context()))
			})
			expect.Equal(t, w.remains().String(), foreign, "after the removal")
			now := w.run("nft list tables; ip -o link")
			if strings.Contains(now, "table inet ironvip\n") != (c.left == "table inet ironvip") || strings.Contains(now, "table inet ironvip_nft") || strings.Contains(now, " ironvip0") != (c.left == "ironvip0") ||
				!strings.Contains(now, "neighbor0") || !strings.Contains(now, "table inet neighbor") {
				t.Errorf("left:\n%s", now)
			}
			w.run("nft delete table inet ironvip; ip link del ironvip0; true")
		})
	}
}
