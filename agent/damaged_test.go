package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/boltstore"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// The lease of a damaged registration, and of one that is not valid for this version, is kept
// until the registration is replaced or deleted. A lease without any registration is released.
func TestLeaseOfAnUnreadableRegistrationIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), store.FileName)
	names := []string{"readable", "replaced", "deleted", "invalid", "orphan"}
	record := func(name string) rest.Record {
		return rest.Record{Spec: spec.Service{Name: name, Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}}
	}
	prepare(t, path, names, record)
	bubble.Test(t, func(t *testing.T) {
		cfg := &configs.Config{IPAM: configs.IPAM{Store: configs.StoreBolt}}
		cfg.Pools = []configs.Pool{{Name: "lan", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}
		clock := table.NewClock(time.Now())
		opened := must.Get(stores.Open(cfg, must.Get(store.Open(path))(t), stores.Options{}))(t)
		defer opened.Close()
		a := &agent{
			began: make(chan struct{}), config: newLiveConfig(cfg, nil), stores: opened, log: slog.New(slog.DiscardHandler),
			events:   event.NewLog(100, time.Now),
			tables:   pipeline.NewTables(clock),
			statuses: table.New(clock, sources.KeyOfStatus, sources.SameStatus),
		}
		a.allocator = must.Get(allocator.Prepare(opened.Leases, cfg.IPAMConfig(), a.allocatorOptions(clock)))(t)
		a.rest = must.Get(rest.New(a.restOptions(cfg)))(t)
		a.pipeline = pipeline.New(pipeline.Options{Tables: a.tables, Allocator: a.allocator, Plane: reconciletest.NewPlane(), Resync: -1, Events: a.events})
		must.Succeed(t, a.newSources(cfg))
		must.Succeed(t, a.allocator.Restore(t.Context()))
		a.rest.Restore()
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = a.supervisor.Run(ctx) })
		running.Go(func() { _ = a.pipeline.Run(ctx) })
		defer running.Wait()
		defer cancel()

		expect := func(when string, want ...string) {
			t.Helper()
			time.Sleep(2 * ipam.DefaultOrphanGrace)
			synctest.Wait()
			held := map[string]bool{}
			for _, l := range a.allocator.Leases().All() {
				held[l.Holders[0].Service.Name] = l.State == ipam.Held
			}
			for _, name := range names {
				kept := false
				for _, w := range want {
					kept = kept || w == name
				}
				expect.Equal(t, held[name], kept, "%s: lease of %q held", when, name)
			}
		}
		expect("after the grace period", "readable", "replaced", "deleted", "invalid")
		if status, _, _ := a.statuses.Get(rest.Type); len(status.Problems) != 2 {
			t.Errorf("problems %v, want one of the state file and one of the invalid registration", status.Problems)
		}

		must.Get(a.rest.PutService(t.Context(), rest.Put{Spec: record("replaced").Spec}))(t)
		for _, name := range []string{"deleted", "invalid"} {
			if _, err := a.rest.DeleteService(t.Context(), vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}, nil); err != nil {
				t.Errorf("delete %q: %v", name, err)
			}
		}
		expect("after a replacement and two deletions", "readable", "replaced")
		for _, name := range []string{"deleted", "invalid"} {
			if _, there, err := store.NewBucket[rest.Record](opened.DB, "rest").Get("default/" + name); there || err != nil {
				t.Errorf("the registration of %q after its deletion: %t, %v", name, there, err)
			}
		}
		if status, _, _ := a.statuses.Get(rest.Type); len(status.Problems) > 0 {
			t.Errorf("problems stay: %v", status.Problems)
		}
	})
}

// prepare writes a state file with a lease of each name and a registration of each but "orphan".
// The registrations of "replaced" and "deleted" have a flipped bit.
func prepare(t *testing.T, path string, names []string, record func(string) rest.Record) {
	t.Helper()
	db := must.Get(store.Open(path))(t)
	leases, records := must.Get(boltstore.New(db))(t), store.NewBucket[rest.Record](db, "rest")
	addr := netip.MustParseAddr("192.0.2.10")
	for _, name := range names {
		lease := ipam.Lease{Resource: ipam.Resource{Addr: addr}, Pool: "lan", State: ipam.Held, Since: vip.InstantOf(time.Now()),
			Holders: []ipam.Holder{{Service: vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}, Source: rest.Type}}}
		must.Succeed(t, leases.Commit(t.Context(), ipam.Gain(lease)))
		addr = addr.Next()
		r := record(name)
		switch name {
		case "orphan":
			continue
		case "invalid":
			r.Spec.Ports = nil
		}
		must.Succeed(t, records.Put("default/"+name, r))
	}
	must.Succeed(t, db.Close())
	file := must.Get(bbolt.Open(path, 0o600, nil))(t)
	defer file.Close()
	err := file.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"replaced", "deleted"} {
			bucket, key := tx.Bucket([]byte("rest")), []byte("default/"+name)
			value := append([]byte(nil), bucket.Get(key)...)
			value[len(value)-3] ^= 1
			if err := bucket.Put(key, value); err != nil {
				return err
			}
		}
		return nil
	})
	must.Succeed(t, err)
}
