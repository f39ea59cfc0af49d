package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/vip"
)

// An agent that ended after changes of the table, but before it ended the connections with a removed backend and of a removed
// service, leaves that to the next one.
func TestLeftoverConnectionsAreEnded(t *testing.T) {
	for _, addr := range []string{"10.96.0.1", "fd96::1"} {
		w := newWorld(t)
		all := w.servers("tcp", addr != "10.96.0.1", 0)
		f, gone := frontend(addr, 80, vip.TCP, all...), frontend(addr, 81, vip.TCP, all...)
		w.set(f)
		w.set(gone)
		dial := func(k vip.FrontendKey) (*netlab.Conn, string) {
			c := must.Get(w.Client.Dial("tcp", k.AddrPort()))(t)
			a := must.Get(c.Ask())(t)
			return c, a.Name
		}
		open := map[string]*netlab.Conn{}
		for len(open) < len(all) {
			c, name := dial(f.Key)
			open[name] = c
		}
		open["gone"], _ = dial(gone.Key)
		less := f
		less.Backends = all[1:]
		batch := []updateOf{{Key: f.Key, Old: &f, New: &less}, {Key: gone.Key, Old: &gone}}
		if err := w.Apply(t.Context(), batch); err != nil || batch[0].Err != nil || batch[1].Err != nil {
			t.Fatal(err, batch)
		}
		w.planeIn = newPlane(t, w.Director)
		w.Wants(t, &less)
		w.Suspect()
		must.Succeed(t, w.Clean(t.Context()))
		for name, c := range open {
			if a, err := c.Ask(); (err == nil) != (name == "backend2") {
				t.Errorf("a connection with %s: %v, %v", name, a, err)
			}
		}
		if w.Unclean() || w.writes() > 0 {
			t.Errorf("unclean: %v, %d writes", w.Unclean(), w.writes())
		}
	}
}

// A start leaves connections alone that another program translates at an address of a pool that no service has.
func TestConnectionsOfOthersStay(t *testing.T) {
	w := newWorld(t)
	server := w.servers("tcp", false, 0)[0].Addr
	w.set(frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)...))
	w.nft(fmt.Sprintf("add table ip other\nadd chain ip other c { type nat hook prerouting priority -101; }\nadd rule ip other c ip daddr 10.96.7.7 tcp dport 80 dnat to %s\n"+
		"add chain ip other p { type nat hook postrouting priority 101; }\nadd rule ip other p ip daddr %s masquerade\n", server, server.Addr()))
	c := must.Get(w.Client.Dial("tcp", netip.MustParseAddrPort("10.96.7.7:80")))(t)
	defer c.Close()
	must.Get(c.Ask())(t)
	w.planeIn = newPlane(t, w.Director)
	w.check(w.planeIn)
	w.Suspect()
	must.Succeed(t, w.Clean(t.Context()))
	expect.Equal(t, w.Stats().ConntrackFlows, 0, "connections are ended")
	if a, err := c.Ask(); err != nil || w.Unclean() {
		t.Errorf("%v, %v, unclean: %v", a, err, w.Unclean())
	}
}

// A removal sends nothing to connection tracking. A burst of removals shares one dump, whatever it is about.
func TestRemovalsShareADump(t *testing.T) {
	const n = 20
	w := newWorld(t)
	all := w.servers("tcp", false, 0)
	var batch []updateOf
	for i := range n {
		f := frontend("10.96.0.1", uint16(80+i), vip.TCP, all...)
		w.set(f)
		less := f
		less.Backends = all[1:]
		batch = append(batch, updateOf{Key: f.Key, Old: &f, New: &less})
	}
	before := w.Stats().ConntrackDumps
	for _, u := range batch {
		if err := w.Apply(t.Context(), []updateOf{u}); err != nil || u.Err != nil {
			t.Fatal(err, u.Err)
		}
	}
	if now := w.Stats().ConntrackDumps; now != before {
		t.Errorf("%d removals sent %d dumps", n, now-before)
	}
	must.Succeed(t, w.Clean(t.Context()))
	if now := w.Stats().ConntrackDumps; now != before+1 {
		t.Errorf("a clean of %d removals sent %d dumps", n, now-before)
	}
}

// The loop ends connections with removed backends after a change: those of TCP end, and clients of UDP move. A burst of
// changes costs a few dumps, and the end of the loop leaves nothing.
func TestLoopEndsConnections(t *testing.T) {
	const n = 30
	w := newWorld(t)
	all := map[vip.Protocol][]vip.Endpoint{vip.TCP: w.servers("tcp", false, 0), vip.UDP: w.servers("udp", false, 0)}
	var before, after []*vip.Frontend
	for i := range n {
		for p, backends := range all {
			f := frontend("10.96.0.1", uint16(80+i), p, backends[0])
			less := f
			less.Backends = backends[1:]
			before, after = append(before, &f), append(after, &less)
		}
	}
	l := planetest.NewLoop(t, w.planeIn, -1, before...)
	<-l.Synced()
	l.Wait(func() string {
		if l.Stats().Unclean {
			return "unclean"
		}
		return ""
	})
	open := make([]*netlab.Conn, len(before))
	for i, f := range before {
		c := must.Get(w.Client.Dial(f.Key.Protocol.String(), f.Key.AddrPort()))(t)
		must.Equal(t, must.Get(c.Ask())(t).Name, "backend1")
		open[i] = c
	}
	dumps := w.Stats().ConntrackDumps
	l.Set(after...)
	l.Wait(l.Unapplied)
	l.Stop()
	// A search costs a dump for each protocol. One or two are usual, more if the changes come slowly.
	if sent := w.Stats().ConntrackDumps - dumps; sent < 2 || sent > n/2 {
		t.Errorf("%d changes sent %d dumps", len(after), sent)
	}
	for i, f := range before {
		a, err := open[i].Ask()
		if moved := err == nil && a.Name == "backend2"; moved != (f.Key.Protocol == vip.UDP) || err == nil && !moved {
			t.Errorf("%s: %v, %v", f.Key, a, err)
		}
	}
}

// leftovers are what agent/offline finds and removes.
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
		{"down", "ip link set ironvip0 down", services + `device "ironvip0", addresses [10.96.0.1], another's ""`, ""},
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
