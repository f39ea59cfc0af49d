package nft

import (
	"fmt"
	"net/netip"
	"testing"

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
