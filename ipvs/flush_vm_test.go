//go:build linux && vm

package ipvs

import (
	"context"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// needOwnedTables skips the test on a kernel that can't hold connections.
func (w *town) needOwnedTables(t *testing.T) {
	t.Helper()
	table := filter.New("trial", &w.stats.nftMessages)
	var err error
	w.Director.Do(func() { err = table.PinConntrack(t.Context()) })
	table.Close()
	need.KernelFeature(t, linux.OwnedTables, err == nil)
}

func (w *town) flush(t *testing.T) { t.Helper(); run(t, w.Director, "nft", "flush", "ruleset") }

// holding counts the tables that hold connections.
func (w *town) holding(t *testing.T) int {
	t.Helper()
	return strings.Count(run(t, w.Director, "nft", "list", "tables"), "inet "+DefaultTable+"_")
}

// open opens a connection. Lives fails the test if the same backend no longer sees it as the same connection.
func (w *town) open(t *testing.T, k vip.FrontendKey, masqueraded bool) (lives func(when string)) {
	t.Helper()
	c := must.Get(w.Client.Dial(k.Protocol.String(), k.AddrPort()))(t)
	first, err := c.Ask()
	if err != nil || (first.Client.Addr() != w.node4or6(w.Client, k.AddrPort().String())) != masqueraded {
		t.Fatalf("the backend sees the client as %+v, %v", first, err)
	}
	return func(when string) {
		t.Helper()
		must.Equal(t, must.Get(c.Ask())(t), first, when)
	}
}

// Masqueraded connections outlive flushes by another program: with a running agent that repairs each of them, without the
// repair, and with the agent that takes over.
func TestOpenConnectionsOutliveFlushes(t *testing.T) {
	every(t, func(t *testing.T, at string, p vip.Protocol) {
		w := newTown(t)
		w.needOwnedTables(t)
		f := frontend(at, p, w.backends(at, 2)...)
		ports := ranged(with(f, func(f *vip.Frontend) { f.Key.Port = 7000 }), 7099, 8080)
		l := newLoop(t, w.planeIn, -1)
		l.Set(f, ports)
		l.Wait(l.Unapplied)
		lives := []func(string){w.open(t, f.Key, true), w.open(t, vip.FrontendKey{Addr: ports.Key.Addr, Port: 7050, Protocol: p}, true)}
		live := func(when string) {
			t.Helper()
			for _, one := range lives {
				one(when)
			}
		}
		for range 3 {
			w.flush(t)
			live("during the repair")
			l.Wait(l.Unapplied)
			live("after the repair")
		}
		l.waitApplied()
		l.Stop()
		for range 3 {
			w.flush(t)
			live("without a repair")
		}
		w.Put(t, repairOf(f), repairOf(ports))
		w.Close()
		if n := w.holding(t); n != 0 {
			t.Errorf("without an agent, %d tables hold connections", n)
		}
		next := newPlane(t, w.Director)
		again := newLoop(t, next, -1)
		again.Set(f, ports)
		again.Wait(again.Unapplied)
		if n := next.writes(); n != 0 {
			t.Errorf("the next agent made %d writes", n)
		}
		expect.Equal(t, w.holding(t), 1, "tables hold connections")
		w.flush(t)
		live("with the next agent")
		again.waitApplied()
		live("after its repair")
		again.Stop()
		next.Close()
		if n := w.holding(t); n != 0 {
			t.Errorf("without an agent, %d tables hold connections", n)
		}
		live("without an agent")
	})
}

// Between a flush and the repair, clients are not masqueraded. After it, they are: a client of UDP that goes on with the same
// socket, and one of TCP that still tries to connect, because the answers went elsewhere.
func TestClientsThatCameAfterAFlush(t *testing.T) {
	for _, at := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
		t.Run(at, func(t *testing.T) {
			w := newTown(t)
			w.needOwnedTables(t) // without them, these clients have no entries
			udp, tcp := frontend(at, vip.UDP, w.backends(at, 2)...), frontend(at, vip.TCP, w.backends(at, 2)...)
			w.Create(t, udp, tcp)
			before := w.open(t, udp.Key, true)
			dial := func() *netlab.Conn {
				c := must.Get(w.Client.Dial("udp", udp.Key.AddrPort()))(t)
				return c
			}
			w.flush(t)
			own := w.node4or6(w.Client, at)
			c := dial()
			came, err := c.Ask()
			if err != nil || came.Client.Addr() != own {
				t.Fatalf("without a table: %+v, %v", came, err)
			}
			through := w.open(t, tcp.Key, false)
			var find []func()
			for _, b := range w.Backends {
				find = append(find, b.Lose(own))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			connected := make(chan error, 1)
			go func() {
				c, err := w.Client.DialContext(ctx, "tcp", tcp.Key.AddrPort().String())
				if err == nil {
					c.Close()
				}
				connected <- err
			}()
			w.waitEntry(t, tcp.Key)
			w.Put(t, repairOf(udp), repairOf(tcp))
			expect.Succeed(t, <-connected, "a TCP client that came before the repair")
			for _, f := range find {
				f()
			}
			if now, err := c.Ask(); err != nil || now.Name != came.Name || now.Client.Addr() == own {
				t.Errorf("a UDP client that came before the repair: %+v, %v, was %+v", now, err, came)
			}
			before("a client that was there before")
			through("a TCP client that connected before the repair")
		})
	}
}

// waitEntry waits for an entry of connection tracking.
func (w *town) waitEntry(t *testing.T, k vip.FrontendKey) {
	t.Helper()
	wait.Until(t, "an entry", func() bool {
		found := false
		w.Director.Do(func() {
			err := w.flows.(conntrack.Table).Entries(t.Context(), k, func(*conntrack.Entry) { found = true })
			expect.Succeed(t, err)
		})
		return found
	})
}
