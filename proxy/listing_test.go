package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// list returns the connections of wanted frontends, as "client backend state".
func (b *bench) list(want func(vip.FrontendKey) bool) (out []string) {
	b.Helper()
	err := b.ListConnections(b.Context(), want, func(c reconcile.Connection) bool {
		if c.State != "CONNECTING" && (c.Expires <= 0 || c.Expires > time.Hour) {
			b.Errorf("%+v expires in %s", c, c.Expires)
		}
		out = append(out, fmt.Sprintf("%s %s %s", c.Client, c.Backend, c.State))
		return true
	})
	must.Succeed(b, err)
	slices.Sort(out)
	return out
}

// The list has each open connection and UDP session with its client and backend, until it ends.
func TestListOfConnections(t *testing.T) {
	udp := udpBackend(t, "127.0.0.1", "b")
	holds := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) { // until the client closes
		_, _ = c.Write([]byte("h\n"))
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Read(make([]byte, 1))
	})
	p := newTarget(t, Options{})
	held, other := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.UDP)
	p.must(onVIP(held, vip.RoundRobin, holds))
	p.must(onVIP(other, vip.RoundRobin, udp))
	listed := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		wait.For(t, "the connections are listed", func() error {
			if got := p.list(everyFrontend); !slices.Equal(got, want) {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	listed()
	a, b := dial(t, held), dial(t, held)
	a.line(t)
	b.line(t)
	c := udpClient(t, other)
	must.Get(c.Write([]byte("x")))(t)
	must.Get(c.Read(make([]byte, 9)))(t)
	local := func(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }
	listed(fmt.Sprintf("%s %s ESTABLISHED", local(a), holds), fmt.Sprintf("%s %s ESTABLISHED", local(b), holds), fmt.Sprintf("%s %s UDP", local(c), udp))
	expect.SameList(t, p.list(func(k vip.FrontendKey) bool { return k == other }), []string{fmt.Sprintf("%s %s UDP", local(c), udp)}, "of one frontend")
	must.Succeed(t, b.CloseWrite())
	a.Close()
	listed(fmt.Sprintf("%s %s UDP", local(c), udp))
	n := 0
	if err := p.ListConnections(t.Context(), everyFrontend, func(reconcile.Connection) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("a caller that has enough: %d, %v", n, err)
	}
}

// A connection of which one side has ended is half-closed.
func TestHalfClosedConnectionIsListed(t *testing.T) {
	end := make(chan struct{})
	defer close(end)
	backend := tcpBackend(t, "127.0.0.1", func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		<-end
	})
	p, key := serve(t, backend)
	c := dial(t, key)
	must.Succeed(t, c.CloseWrite())
	wait.For(t, "half-closed", func() error {
		if got, want := p.list(everyFrontend), []string{fmt.Sprintf("%s %s HALF_CLOSED", addrPort(c.LocalAddr()), backend)}; !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}
