package nft

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// leftovers are what agent/clean.go finds and removes.
type leftovers struct {
	*Target // nil: nothing of the dataplane
	usage.Left
	vips *vips.Remains
}

func (w *world) left() (l leftovers) {
	w.t.Helper()
	w.Director.Do(func() {
		l = leftovers{Target: must.Get(Find(w.t.Context(), Options{}))(w.t), vips: must.Get(vips.Find(w.t.Context(), ""))(w.t)}
		if l.Target != nil {
			l.Left = must.Get(l.Target.Left(w.t.Context()))(w.t)
			w.t.Cleanup(func() { l.Close() })
		}
	})
	w.t.Cleanup(func() { l.vips.Close() })
	return l
}

func (l leftovers) remove(ctx context.Context) error {
	err := l.vips.RemoveAddresses(ctx)
	if l.Target != nil {
		err = errors.Join(err, l.Remove(ctx))
	}
	return errors.Join(err, l.vips.Remove())
}

func (l leftovers) String() string {
	var s strings.Builder
	for _, f := range l.Frontends {
		fmt.Fprintf(&s, "%s %s %d, ", f.Key, f.Scheduler, len(f.Backends))
	}
	return fmt.Sprintf("%sdevice %q, addresses %v, another's %q", s.String(), l.vips.Device, l.vips.Addresses, l.vips.Foreign)
}

// The leftovers of a dataplane are found and removed, even if parts are missing. Foreign state stays.
// Slow: the table and the device are made, damaged and removed eleven times.
func TestFindAndRemove(t *testing.T) {
	const (
		bridge   = "ip link del ironvip0; ip link add ironvip0 type bridge; " // ours may be a dummy
		services = "10.96.0.1:80/tcp wrr 2, [fd96::1]:80/tcp rr 0, "
		damaged  = "10.96.0.1:80/tcp  0, [fd96::1]:80/tcp  0, "
		device   = `device "ironvip0", addresses [10.96.0.1 fd96::1], another's ""`
		none     = `device "", addresses [], another's ""`
		foreign  = `device "", addresses [], another's "%s"`
	)
	w := newWorld(t)
	w.Close()
	w.run("nft add table inet neighbor; ip link add neighbor0 type bridge")
	all := w.servers("tcp", false, 0)
	for _, c := range []struct{ name, damage, want, left string }{
		{"whole", "true", services + device, ""},
		{"down", "ip link set ironvip0 down && ip addr add 10.96.0.1/32 dev ironvip0 2>/dev/null; true", services + `device "ironvip0", addresses [10.96.0.1], another's ""`, ""},
		{"without the table", "nft delete table inet ironvip_nft", device, ""},
		{"without the bridge", "ip link del ironvip0", services + none, ""},
		{"a damaged table", "nft flush chain inet ironvip_nft arriving", damaged + device, ""},
		{"beside a table of ipvs", "nft add table inet ironvip; nft add set inet ironvip vips4 '{ type ipv4_addr; }'", services + device, "table inet ironvip"},
		{"an empty table", "nft delete table inet ironvip_nft; nft add table inet ironvip_nft", device, ""},
		{"another's bridge with a port", bridge + "ip link set ironvip0 arp off; ip link add port0 type veth peer name port1; ip link set port0 master ironvip0", services + fmt.Sprintf(foreign, "bridge"), "ironvip0"},
		{"another's bridge with ARP", bridge + "ip link set ironvip0 arp on", services + fmt.Sprintf(foreign, "bridge"), "ironvip0"},
		{"another's device", "ip link del ironvip0; ip link add ironvip0 type veth peer name other0", services + fmt.Sprintf(foreign, "veth"), "ironvip0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := worldIn(t, w.Lab)
			f, g := frontend("10.96.0.1", 80, vip.TCP, all...), frontend("fd96::1", 80, vip.TCP)
			g.Scheduler = vip.RoundRobin
			w.set(f)
			w.set(g)
			w.Close()
			w.run(c.damage)
			r := w.left()
			expect.Equal(t, r.String(), c.want, "found")
			w.Director.Do(func() {
				expect.Succeed(t, r.remove(t.Context()))
			})
			expect.Equal(t, w.left().String(), fmt.Sprintf(foreign, r.vips.Foreign), "after the removal")
			now := w.run("nft list tables; ip -o link")
			if strings.Contains(now, "table inet ironvip\n") != (c.left == "table inet ironvip") || strings.Contains(now, "table inet ironvip_nft") || strings.Contains(now, " ironvip0") != (c.left == "ironvip0") ||
				!strings.Contains(now, "neighbor0") || !strings.Contains(now, "table inet neighbor") {
				t.Errorf("left:\n%s", now)
			}
			w.run("nft delete table inet ironvip; ip link del ironvip0; ip link del port0; true")
		})
	}
}
