//go:build linux

package l2_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// many is a number of addresses beyond what one wake-up, message or group socket takes.
const many = 2000

// A host that takes over many addresses announces each of them, in both families.
func TestTakeoverOfMany(t *testing.T) {
	for _, first := range []string{"10.99.0.0", "fd99::"} {
		lan := netlab.NewLAN(t, "a", "client")
		count := countAnnouncements(t, lan.Nodes[1], netip.MustParseAddr(first), many)
		a := start(t, lan.Nodes[0], defaults())
		a.do("own-range", first, many)
		wait.Until(t, "an announcement of each address", func() bool { return count() == many }, func() any { return count() })
	}
}

// BenchmarkTakeover has the time from Own to the first announcement of each of 10,000 addresses, at
// another station.
func BenchmarkTakeover(b *testing.B) {
	for _, first := range []string{"10.99.0.0", "fd99::"} {
		b.Run(fmt.Sprint(first), func(b *testing.B) {
			const n = 10_000
			lan := netlab.NewLAN(b, "a", "client")
			a := start(b, lan.Nodes[0], defaults())
			var took time.Duration
			for b.Loop() {
				count := countAnnouncements(b, lan.Nodes[1], netip.MustParseAddr(first), n)
				began := time.Now()
				a.do("own-range", first, n)
				wait.Until(b, "an announcement of each address", func() bool { return count() == n }, func() any { return count() })
				took += time.Since(began)
				b.StopTimer()
				a.do("release-range", first, n)
				b.StartTimer()
			}
			b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/takeover")
		})
	}
}

// countAnnouncements counts the addresses of a range that were announced to a node since the call.
func countAnnouncements(t testing.TB, n *netlab.Node, first netip.Addr, size int) func() int {
	t.Helper()
	typ := uint16(frame.TypeIPv6)
	if first.Is4() {
		typ = frame.TypeARP
	}
	var s *wire.Socket
	var err error
	n.Do(func() { s, err = wire.Open(typ) })
	must.Succeed(t, err)
	wanted := make(map[netip.Addr]bool, size)
	for i, a := 0, first; i < size; i, a = i+1, a.Next() {
		wanted[a] = true
	}
	counts := make(chan int, 1)
	counts <- 0
	go func() {
		_ = s.Receive(func(_ int, b []byte) {
			two := frame.ARPClaims(b)
			for _, c := range append(two[:], frame.NDPClaim(b)) {
				if c.Kind == frame.Holds && wanted[c.Addr] {
					delete(wanted, c.Addr)
					counts <- <-counts + 1
				}
			}
		})
	}()
	t.Cleanup(func() { s.Close() })
	return func() int {
		c := <-counts
		counts <- c
		return c
	}
}
