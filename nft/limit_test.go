package nft

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// holds opens n connections that are answered, and returns them.
func (w *world) holds(from *netlab.Node, network string, at netip.AddrPort, n int) (all []*netlab.Conn) {
	w.t.Helper()
	for range n {
		c := must.Get(from.Dial(network, at))(w.t)
		must.Get(c.Ask())(w.t)
		all = append(all, c)
	}
	return all
}

// refusals returns the refused clients of a frontend, by both ways of reading them.
func (w *world) refusals(k vip.FrontendKey) reconcile.Refused {
	w.t.Helper()
	one, found, err := w.Breakdown(w.t.Context(), k)
	must.Succeed(w.t, err)
	expect.True(w.t, found, "%s has no counters", k)
	of := must.Get(w.Totals(w.t.Context(), all))(w.t)
	expect.Equal(w.t, of[k].Refused, one.Refused, "refused clients of %s", k)
	return one.Refused
}

// Each client has its own limit of connections, on all ports of a range together. An address of IPv6 shares that of its /64.
// This host has none.
func TestConnectionsPerSource(t *testing.T) {
	w := newWorld(t)
	pod := w.AddClient("pod")
	const most = 2
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		for _, network := range []string{"tcp", "udp"} {
			for _, ranged := range []bool{false, true} {
				p := map[string]vip.Protocol{"tcp": vip.TCP, "udp": vip.UDP}[network]
				f := frontend(addr, 80, p, w.servers(network, i > 0, 0)...)
				first, second := netip.AddrPortFrom(f.Key.Addr, 80), netip.AddrPortFrom(f.Key.Addr, 80)
				if ranged {
					f.Key.LastPort = 89
					second = netip.AddrPortFrom(f.Key.Addr, 85)
				}
				f.MaxConnectionsPerSource = most
				w.set(f)
				held := w.holds(w.Client, network, first, most)
				w.refused(w.Client, network, second)
				w.holds(pod, network, second, most)
				w.refused(pod, network, first)
				w.holds(w.Director, network, first, most+1)
				for _, c := range held {
					must.Get(c.Ask())(t)
				}
				expect.Equal(t, w.refusals(f.Key), reconcile.Refused{Connections: 2}, "%s: refused", f.Key)
				if network == "tcp" {
					must.Succeed(t, held[0].Close())
					wait.Until(t, "a place", func() bool { _, err := w.Client.Ask(network, second); return err == nil })
				}
				f.MaxConnectionsPerSource = most + 1 // it counts anew
				w.set(f)
				w.holds(w.Client, network, first, most+1)
				w.refused(w.Client, network, second)
				w.remove(f.Key)
			}
		}
	}
	if text := w.run("nft list set inet ironvip_nft over_connections4; nft list set inet ironvip_nft over_connections6"); strings.Contains(text, "elements") {
		t.Errorf("counters of removed frontends remain:\n%s", text)
	}

	f := frontend("fd96::1", 80, vip.TCP, w.servers("tcp", true, 0)...)
	f.MaxConnectionsPerSource = 1
	w.set(f)
	neighbor := netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 15: 77})
	w.Client.AddAddr("eth0", netip.PrefixFrom(neighbor, 64))
	w.holds(w.Client, "tcp", f.Key.AddrPort(), 1)
	_, err := w.Client.DialFrom("tcp", neighbor, f.Key.AddrPort())
	expect.True(t, errors.Is(err, syscall.ECONNREFUSED), "another address of the client's /64: %v", err)
}

// A client may open a second's worth at once. The next connection waits for its part of a second, for each client alone.
func TestRatePerSource(t *testing.T) {
	w := newWorld(t)
	pod := w.AddClient("pod")
	const most = 5
	for i, addr := range []string{"10.96.0.1", "fd96::1"} {
		f := frontend(addr, 80, vip.TCP, w.servers("tcp", i > 0, 0)...)
		f.MaxRatePerSource = most
		w.set(f)
		began, opened, left := time.Now(), 0, 0
		for refused := 0; refused < 5; {
			_, err := w.Client.Ask("tcp", f.Key.AddrPort())
			if left = most + int(time.Since(began).Seconds()*most) + 1; err == nil {
				opened++
			} else {
				expect.Is(t, err, syscall.ECONNREFUSED, "%s", f.Key)
				refused++
			}
		}
		expect.Between(t, opened, most, left, "connections")
		expect.Equal(t, w.refusals(f.Key), reconcile.Refused{Rate: 5}, "%s: refused", f.Key)
		must.Get(pod.Ask("tcp", f.Key.AddrPort()))(t)
		w.asks(w.Director, f.Key, 80, most+1)
		f.MaxRatePerSource = 0
		w.set(f)
		w.asks(w.Client, f.Key, 80, most+1)
	}
}
