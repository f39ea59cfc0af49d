package ipam_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/boltstore"
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
					if err := w.a.Release(ctx, []ipam.Released{{Service: s.Key}})[0]; err != nil {
						t.Error(err)
					}
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
		if len(l.Holders) != 1 {
			t.Errorf("%s has %d holders", r, len(l.Holders))
		}
	}
}

// Addresses survive a restart on a real disk, whatever the order of the services.
func TestStickyOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ironvip.db")
	cfg := pools(pool("p", "192.0.2.0/24", "2001:db8::/64"))
	var services []*vip.Service
	for i := range 50 {
		services = append(services, new(service(fmt.Sprintf("s%d", i), ports(on(tcp(80), 0)))))
	}
	want := map[vip.ServiceKey]string{}
	for round := range 3 {
		db, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		store, err := boltstore.New(db)
		if err != nil {
			t.Fatal(err)
		}
		a, err := ipam.New(t.Context(), store, cfg, ipam.Options{Clock: newClock()})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range a.Assign(t.Context(), services) {
			has := fmt.Sprint(vips(got), got.NodePorts, got.Since, got.Problems)
			if round == 0 {
				want[got.Asked.Key] = has
			}
			same(t, got.Asked.Key.String(), has, want[got.Asked.Key])
		}
		for i := range services { // the last is first
			if j := len(services) - 1 - i; i < j {
				services[i], services[j] = services[j], services[i]
			}
		}
		if err := a.Release(t.Context(), []ipam.Released{{Service: services[0].Key}})[0]; err != nil { // and is back after the restart
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
