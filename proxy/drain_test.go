package proxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/inherit"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// The next Target adopts the listeners. The drained one keeps its connections and passes on the
// replies of sessions, and accepts nobody.
// Slow: the last replies of sessions may take 2 s.
func TestDrain(t *testing.T) {
	a, b := tcpBackend(t, "127.0.0.1", named("a")), tcpBackend(t, "127.0.0.1", named("b"))
	held, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) // answers when the test wants
	must.Succeed(t, err)
	defer held.Close()
	first := loop.NewSockets()
	old := newTarget(t, Options{Sockets: first})
	tcp, udp := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.UDP)
	old.must(onVIP(tcp, vip.RoundRobin, a))
	old.must(onVIP(udp, vip.RoundRobin, held.LocalAddr().(*net.UDPAddr).AddrPort()))
	open := dial(t, tcp)
	open.line(t)
	asker := udpClient(t, udp)
	must.Get(asker.Write([]byte("question")))(t)
	buf := make([]byte, 100)
	_, session, err := held.ReadFromUDPAddrPort(buf)
	must.Succeed(t, err)

	next := inherit.From(t, first)
	drained := make(chan struct{})
	go func() { defer close(drained); old.Drain(context.Background()) }()
	waiting := dial(t, tcp) // in the accept queue, until the next Target accepts
	must.Get(held.WriteToUDPAddrPort([]byte("answer"), session))(t)
	if n, err := asker.Read(buf); err != nil || string(buf[:n]) != "answer" {
		t.Errorf("the reply to a datagram before the drain: %q, %v", buf[:n], err)
	}
	open.echo(t, "while it drains")

	now := newTarget(t, Options{Sockets: next})
	now.must(onVIP(tcp, vip.RoundRobin, b))
	now.must(onVIP(udp, vip.RoundRobin, udpBackend(t, "127.0.0.1", "u")))
	expect.Equal(t, next.Unclaimed(), 0, "listeners are not adopted")
	expect.Equal(t, who(t, tcp), "b", "a new client is answered by")
	mustAsk(t, asker, "x")
	waiting.line(t)
	waiting.Close()
	open.echo(t, "after the adoption")
	open.Close()
	<-drained
	must.Succeed(t, old.Close())
	expect.Equal(t, who(t, tcp), "b", "after the end of the old one, a new client is answered by")
}

// Without connections a drain ends at once, and with one it ends with its context.
func TestDrainEnds(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p, key := serve(t, a)
	p.Drain(context.Background())
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key, New: onVIP(key, vip.RoundRobin, a)}}
	expect.Is(t, p.Apply(t.Context(), batch), errClosed, "Apply after Drain")

	p = newTarget(t, Options{})
	key = freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, a))
	open := dial(t, key)
	open.line(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Drain(ctx)
	open.echo(t, "until Close")
	must.Succeed(t, p.Close())
	open.wantReset(t)
}

// BenchmarkStop measures the stop of a Target with listeners and no connections.
func BenchmarkStop(b *testing.B) {
	backend := netip.MustParseAddrPort("127.0.0.1:9")
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("listeners=%d", n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				p := New(Options{})
				batch := make([]reconcile.Update[vip.FrontendKey, vip.Frontend], n)
				for i := range batch {
					key := vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{127, 97, byte(i >> 8), byte(i)}), Port: 8080, Protocol: vip.TCP}
					batch[i] = reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: key, New: onVIP(key, vip.RoundRobin, backend)}
				}
				must.Succeed(b, p.Apply(b.Context(), batch))
				for _, u := range batch {
					must.Succeed(b, u.Err)
				}
				b.StartTimer()
				p.Drain(b.Context())
				p.Close()
			}
		})
	}
}
