package balance

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Each client has its own limit; of IPv6, each /64. This host has none. A connection that ends gives its place to the next
// one, also if the limit was removed meanwhile. A client that finds the service full takes no place, unless it waits.
func TestConnectionsPerSource(t *testing.T) {
	spec := specOf(vip.RoundRobin, 5, 0, 0, web1)
	spec.MaxConnectionsPerSource = 1
	f := front(t, spec)
	var open []*Attempt
	enter := func(client string, want Reason) {
		t.Helper()
		a := f.Attempt(netip.AddrPortFrom(netip.MustParseAddr(client), 4000), f.Service(), true)
		e, why := a.take()
		expect.Equal(t, why, want, "%s", client)
		if e != nil {
			t.Cleanup(e.Leave)
			open = append(open, a)
		} else {
			a.End()
		}
	}
	enter("198.51.100.1", Admitted)
	enter("198.51.100.1", sourceFull)
	enter("::ffff:198.51.100.1", sourceFull)
	enter("198.51.100.2", Admitted)
	enter("2001:db8::1", Admitted)
	enter("2001:db8::ffff:1", sourceFull)
	enter("127.0.0.1", Admitted)
	enter("127.0.0.1", Admitted)
	enter("198.51.100.3", serviceFull)
	expect.Len(t, f.sources.open, 3, "clients")
	open[0].End()
	enter("198.51.100.1", Admitted)
	free := *spec
	free.MaxConnectionsPerSource = 0
	f.Choose(&free)
	for _, a := range open {
		a.End()
	}
	expect.Empty(t, f.sources.open, "clients after the last connection")
}

// A client has no more connections in the queue than its limit, and those leave as they end.
func TestQueuePerSource(t *testing.T) {
	spec := specOf(vip.RoundRobin, 1, 5, 0, web1)
	spec.MaxConnectionsPerSource = 2
	f := front(t, spec)
	attempt := func(client string) *Attempt {
		a := f.Attempt(netip.AddrPortFrom(netip.MustParseAddr(client), 4000), f.Service(), true)
		t.Cleanup(a.End)
		return a
	}
	waits := func(a *Attempt) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		e, err := a.place(true)
		if err == nil {
			t.Cleanup(e.Leave)
		}
		return err
	}
	first := attempt("198.51.100.1")
	must.Succeed(t, waits(first))
	second := attempt("198.51.100.1")
	ended := make(chan error)
	go func() { ended <- waits(second) }()
	wait.Until(t, "a client waits", func() bool { return f.Service().queue.length.Load() == 1 })
	expect.Equal(t, waits(attempt("198.51.100.1")), error(sourceFull), "another connection of the client that waits")
	second.End()
	expect.True(t, <-ended != nil, "a client that has ended gets a backend")
	expect.Len(t, f.sources.open, 1, "clients")
	expect.Equal(t, f.sources.open[netip.MustParseAddr("198.51.100.1")], 1, "connections of the client")
}
