package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/api/snapshot"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/fleetstore"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// An agent with a store that has never answered reports what it waits for. It begins with the
// store's content when the store answers.
func TestAnAgentBeginsWithItsStore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, configs.ConfigName)
	text := "[node]\nname = \"late\"\nstate_dir = \"" + dir + "\"\n[ipam]\nstore = \"consul\"\n[consul]\naddress = \"10.0.0.5:8500\"\n[[pool]]\nname = \"lan\"\ncidrs = [\"192.0.2.0/24\"]\n"
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	cfg, problems := configs.Load(path)
	must.True(t, cfg != nil, problems)
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		folders := append(fleetstore.Folders(), rest.Folder, overrides.Folder)
		var held *fleetstore.Store
		m.Start(t, "lb1", folders, func(tree *fleet.Tree) { held = fleetstore.New(tree) })
		lease := ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.17")}, Pool: "lan", State: ipam.Held, Since: vip.InstantOf(time.Now()),
			Holders: []ipam.Holder{{Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Source: "static", Node: "lb1"}}}
		must.Succeed(t, held.Commit(t.Context(), ipam.Gain(lease)))

		clock := &table.Clock{}
		db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
		defer db.Close()
		a := &agent{began: make(chan struct{}), config: newLiveConfig(cfg, nil), stores: &stores.Stores{Config: cfg, DB: db}, log: slog.New(slog.DiscardHandler)}
		m.Client("late").SetDown(true)
		host := m.Run(t, fleet.Options{Node: "late", Clock: clock, Folders: folders}, func(tree *fleet.Tree) {
			a.stores.Tree = tree
			a.stores.Stores = snapshot.Stores{Leases: fleetstore.New(tree), Services: rest.Shared(tree), States: overrides.Shared(tree)}
		})
		defer host.End()
		a.allocator = must.Get(allocator.Prepare(a.stores.Leases, cfg.IPAMConfig(), a.allocatorOptions(clock)))(t)
		a.tables = pipeline.NewTables(clock)
		a.rest = must.Get(rest.New(a.restOptions(cfg)))(t)
		a.stores.Pending = must.Get(registry.NewJournal(a.stores.States, store.NewBucket[overrides.Override](db, "pending states")))(t)
		a.newOverrides(cfg)
		if c := a.stores.FleetCheck(a.hasBegun()); c.Level != v1.LevelWarn || !strings.Contains(c.Message, "waiting for consul at 10.0.0.5:8500") {
			t.Errorf("at first: %+v", c)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- a.begin(ctx) }()
		time.Sleep(time.Minute)
		if c := a.stores.FleetCheck(a.hasBegun()); c.Level != v1.LevelFail || !strings.HasPrefix(c.Message, "waiting for consul at 10.0.0.5:8500 for 1m0s: ") || !strings.Contains(c.Hint, "never read") {
			t.Errorf("later: %+v", c)
		}
		if a.hasBegun() || a.allocator.Leases().Len() != 0 {
			t.Errorf("begun %t, %d leases", a.hasBegun(), a.allocator.Leases().Len())
		}
		m.Client("late").Before(func(fleettest.Call) error {
			return fmt.Errorf("consul: %w", consulclient.Plain(context.DeadlineExceeded))
		})
		m.Client("late").SetDown(false)
		time.Sleep(time.Minute)
		if c := a.stores.FleetCheck(a.hasBegun()); c.Level != v1.LevelFail || !strings.HasPrefix(c.Message, "waiting for consul at 10.0.0.5:8500 for 2m0s: consul: no answer in time: ") ||
			!strings.Contains(c.Hint, "check that Consul runs and has a leader") {
			t.Errorf("while Consul starts: %+v", c)
		}
		m.Client("late").SetDown(true)
		m.Client("late").Before(nil)
		cancel()
		if err := <-stopped; err == nil || a.hasBegun() {
			t.Errorf("stopped while it waits: %v, begun %t", err, a.hasBegun())
		}
		if _, err := os.Stat(path + ".last-good"); err == nil {
			t.Error("a configuration is stored as good that no agent has begun with")
		}

		done := make(chan error, 1)
		go func() { done <- a.begin(t.Context()) }()
		m.Client("late").SetDown(false)
		if err := <-done; err != nil || !a.hasBegun() {
			t.Fatalf("%v, begun %t", err, a.hasBegun())
		}
		if _, err := os.Stat(path + ".last-good"); err != nil {
			t.Error(err)
		}
		_, _, ok := a.allocator.Leases().Get(lease.Resource)
		expect.True(t, ok, "what others hold is not known")
		synctest.Wait()
		select {
		case <-a.tables.Overrides.Ready():
		default:
			t.Error("what operators said is not known")
		}
		if c := a.stores.FleetCheck(a.hasBegun()); c.Level != v1.LevelOK {
			t.Errorf("at last: %+v", c)
		}
		m.Client("late").SetDown(true)
		time.Sleep(20 * time.Second) // its session ends
		twin := m.Run(t, fleet.Options{Node: "late", Folders: folders, KV: m.Client("twin")}, nil)
		defer twin.End()
		time.Sleep(2 * time.Second)
		m.Client("late").SetDown(false)
		time.Sleep(time.Minute)
		if c := a.stores.FleetCheck(a.hasBegun()); c.Level != v1.LevelFail || c.Message != "consul at 10.0.0.5:8500 not writable: another host has this host's id or name" ||
			c.Hint != "traffic goes on; new addresses and registrations wait" || len(c.Problems) != 1 || c.Problems[0].Code != vip.CodeNameTaken {
			t.Errorf("another host has its name: %+v", c)
		}
	})
}
