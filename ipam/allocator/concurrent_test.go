package allocator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/storetest"
	"github.com/ironvip/ironvip/vip"
)

// All methods run concurrently, for the race detector, and in the end no resource has two holders.
func TestConcurrentUse(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/24", "2001:db8::/64")))
	w.cfg.ReuseDelay = 0
	w.configure(w.cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.a.Run(ctx) }()
	w.a.Settled(func(vip.ServiceKey) bool { return true })
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 60 {
				s := service(fmt.Sprintf("s%d-%d", g, i%10), ports(on(tcp(80), 0)))
				w.a.Preview([]vip.Service{s})
				if got := w.a.Assign(ctx, []*vip.Service{&s})[0]; len(got.Problems) > 0 || len(got.VIPs) != 2 {
					t.Errorf("%+v", got)
				}
				switch i % 5 {
				case 0:
					w.a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes(fmt.Sprintf("192.0.2.%d/24", 200+g))[0], Link: "eth0"}}})
				case 1:
					w.a.SetPodCIDRs(fmt.Sprint(g), prefixes("192.0.2.240/29"))
				case 2, 3:
					expect.Succeed(t, w.a.Release(ctx, []ipam.Released{{Service: s.Key}})[0])
				}
				w.a.Pools()
				w.a.Owns(addr("192.0.2.1"))
				w.a.SourceOf(s.Key)
				w.a.Freed()
			}
		})
	}
	wg.Wait()
	cancel()
	<-ended
	w.durable()
	for r, l := range w.a.Leases().All() {
		expect.Equal(t, len(l.Holders), 1, "%s has %d holders", r, len(l.Holders))
	}
}

// Hosts that share a store never assign an address twice, lose one, or take one from its holder, whatever fails, and in
// the end they agree.
func TestStormOnASharedStore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := memstore.New()
		storetest.Storm{
			Hosts: 3, Steps: 150, Pause: 300 * time.Millisecond, Timeout: 30 * time.Minute,
			Open: func(testing.TB, int) (ipam.Store, func()) { return store, nil },
		}.Run(t)
	})
}
