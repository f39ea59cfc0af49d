package balance

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

var (
	web1   = netip.MustParseAddrPort("192.0.2.1:80")
	web2   = netip.MustParseAddrPort("192.0.2.2:80")
	client = netip.MustParseAddrPort("198.51.100.1:40000")
)

// front returns a frontend of a Balancer. At the end of the test, nothing of its clients may be left.
func front(t *testing.T, spec *vip.Frontend) *Frontend {
	t.Helper()
	b := New(Options{Own: netip.Addr.IsLoopback, ConnectBudget: time.Minute, Files: 1000, Log: slog.New(slog.DiscardHandler)})
	f := b.NewFrontend(spec)
	t.Cleanup(func() {
		for _, e := range f.Endpoints() {
			expect.Equal(t, e.State.Open.Load(), 0, "connections of %s", e.Addr)
			expect.Equal(t, e.State.Shared.Load(), 0, "connections of all frontends to %s", e.Addr)
		}
		expect.Equal(t, f.Service().open.Load(), 0, "clients of the service")
		f.Close()
		expect.Empty(t, b.services, "services left")
	})
	return f
}

// specOf returns a frontend with backends, and limits: of the service, of its queue, and of each backend.
func specOf(s vip.Scheduler, most, queue, each uint32, backends ...netip.AddrPort) *vip.Frontend {
	f := &vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.80"), Port: 80, Protocol: vip.TCP}, Service: vip.ServiceKey{Namespace: "default", Name: "web"},
		Scheduler: s, Relay: &vip.ProxySettings{MaxConnections: most, MaxQueue: queue, QueueTimeout: time.Minute}}
	for _, b := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: b, Weight: 1, MaxConnections: each})
	}
	return f
}

// faulty is a picker that panics a number of times.
type faulty struct {
	pick.Picker
	left atomic.Int32
}

func (f *faulty) Pick(hash uint64, now int64, tried []int) int {
	if f.left.Add(-1) >= 0 {
		panic("a fault")
	}
	return f.Picker.Pick(hash, now, tried)
}

// breakPicks has the next n picks panic.
func (f *Frontend) breakPicks(n int32) {
	set := *f.wakened()
	broken := &faulty{Picker: set.picker}
	broken.left.Store(n)
	set.picker = broken
	f.backends.Store(&set)
}
