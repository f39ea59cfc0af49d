package nft

import (
	"context"
	"math"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// BenchmarkCounting measures the path of a packet of an open connection from its client to its backend, with and
// without the rules that count: of a service, of one with a range of ports, and of a connection that is none of
// ours. The figures are minima of rounds that take turns. Each operation is a round.
func BenchmarkCounting(b *testing.B) {
	need.Root(b)
	lab := netlab.New(b)
	p := newPlane(b, lab.Director)
	at := lab.Backends[0].ListenPacket(netip.AddrPortFrom(lab.Backends[0].Addr4, 90)).LocalAddr().(*net.UDPAddr).AddrPort()
	single, ranged := frontend("10.96.0.1", 90, vip.UDP, vip.Endpoint{Addr: at, Weight: 1}), frontend("10.96.0.2", 80, vip.UDP, vip.Endpoint{Addr: netip.AddrPortFrom(at.Addr(), 0), Weight: 1})
	ranged.Key.LastPort = 180
	p.Put(b, updateOf{Key: single.Key, New: &single}, updateOf{Key: ranged.Key, New: &ranged})
	paths := []struct {
		name string
		to   netip.AddrPort
		conn net.Conn
	}{{name: "service", to: single.Key.AddrPort()}, {name: "range", to: netip.AddrPortFrom(ranged.Key.Addr, 90)}, {name: "other", to: at}}
	for i := range paths {
		c := must.Get(lab.Client.DialContext(context.Background(), "udp", paths[i].to.String()))(b)
		defer c.Close()
		paths[i].conn = c
	}
	best := map[string]float64{}
	round := func(counted string) {
		for _, x := range paths {
			const packets = 20000
			began := time.Now()
			for range packets {
				x.conn.Write([]byte("?"))
			}
			name := x.name + "-" + counted + "-ns"
			if best[name] == 0 {
				best[name] = math.Inf(1)
			}
			best[name] = min(best[name], float64(time.Since(began).Nanoseconds())/packets)
		}
	}
	for b.Loop() {
		lab.Director.Do(func() {
			must.Succeed(b, p.rebuild(b.Context()))
		})
		round("counted")
		for _, chain := range []string{chainLeaving, chainLocal} {
			lab.Director.Do(func() {
				for _, change := range []string{"flush", "delete"} {
					if out, err := exec.Command("nft", change, "chain", "inet", "ironvip", chain).CombinedOutput(); err != nil {
						b.Fatalf("%v: %s", err, out)
					}
				}
			})
		}
		round("uncounted")
	}
	for name, ns := range best {
		b.ReportMetric(ns, name)
	}
	for _, x := range paths {
		b.ReportMetric(best[x.name+"-counted-ns"]/best[x.name+"-uncounted-ns"], x.name+"-ratio")
	}
}
