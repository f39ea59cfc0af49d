package ipvs

import (
	"context"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// fakeList is a kernel's list of connections.
type fakeList []kernel.Entry

func (f fakeList) each(_ context.Context, yield func(*kernel.Entry) bool) error {
	for i := range f {
		if !yield(&f[i]) {
			break
		}
	}
	return nil
}

// Connections are those of wanted frontends; the affinity of a service by mark has its frontend by
// the mark.
func TestListConnections(t *testing.T) {
	client, backend := addrPort("10.9.0.1:40000"), addrPort("10.1.0.7:8080")
	ranged := vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.3"), Port: 100, LastPort: 199, Protocol: vip.UDP}
	web, foreign := addrPortKey("10.96.0.1:80", vip.TCP), addrPortKey("10.96.0.9:80", vip.TCP)
	list := fakeList{
		{Client: client, To: foreign.AddrPort(), Protocol: vip.TCP, Backend: backend, State: "ESTABLISHED"},
		{Client: client, To: web.AddrPort(), Protocol: vip.TCP, Backend: backend, State: "SYN_RECV"},
		{Client: netip.AddrPortFrom(client.Addr(), 0), To: web.AddrPort(), Protocol: vip.TCP, Backend: backend, State: "ASSURED"},
		{Client: netip.AddrPortFrom(client.Addr(), 0), Mark: 7, Backend: backend, State: "NONE"},
		{Client: netip.AddrPortFrom(client.Addr(), 0), Mark: 8, Backend: backend, State: "NONE"}, // foreign
	}
	p := Target{access: access{list: list.each}, listing: make(chan struct{}, 1)}
	p.marks.adopt(ranged, 7)
	var got []reconcile.Connection
	err := p.ListConnections(t.Context(), func(k vip.FrontendKey) bool { return k != foreign }, func(c reconcile.Connection) bool {
		got = append(got, c)
		return true
	})
	none := netip.AddrPortFrom(client.Addr(), 0)
	want := []reconcile.Connection{
		{Frontend: web, Client: client, Backend: backend, State: "SYN_RECV"},
		{Frontend: web, Client: none, Backend: backend, State: reconcile.StateAffinity},
		{Frontend: ranged, Client: none, Backend: backend, State: reconcile.StateAffinity},
	}
	same := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	if d := cmp.Diff(want, got, same); err != nil || d != "" {
		t.Errorf("%v, -want +got:\n%s", err, d)
	}
	// One caller at a time reads the list. Another one waits, at most until its request ends.
	err = p.ListConnections(t.Context(), everyFrontend, func(reconcile.Connection) bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		expect.Is(t, p.ListConnections(ctx, everyFrontend, nil), context.Canceled, "a second caller")
		return false
	})
	expect.Succeed(t, err)
}
