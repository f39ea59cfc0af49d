package balance

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// Each client has its own limit; of IPv6, each /64. This host has none. A connection that ends gives its place to the next
// one, also if the limit was removed meanwhile. A client that finds the service full takes no place.
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
