package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/api/tokens"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam/boltstore"
	"github.com/ironvip/ironvip/ipam/consulstore"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
)

// openState opens the state file, and creates its directory.
func openState(cfg *configs.Config) (*store.DB, error) {
	if err := os.MkdirAll(cfg.Node.StateDir, 0o750); err != nil {
		return nil, fmt.Errorf("make the state directory: %w\nhint: set node.state_dir to a directory that this process may write", err)
	}
	return store.Open(statePath(cfg))
}

func statePath(cfg *configs.Config) string { return filepath.Join(cfg.Node.StateDir, store.FileName) }

// localStores returns the stores in the state file, for a host without a fleet.
func localStores(db *store.DB) (snapshot.Stores, error) {
	leases, err := boltstore.New(db)
	if err != nil {
		return snapshot.Stores{}, err
	}
	services, err := registry.NewLocal(serviceBucket(db))
	if err != nil {
		return snapshot.Stores{}, fmt.Errorf("restore the registrations: %w", err)
	}
	states, err := registry.NewLocal(stateBucket(db))
	if err != nil {
		return snapshot.Stores{}, fmt.Errorf("restore backend states: %w", err)
	}
	return snapshot.Stores{Leases: leases, Services: services, States: states}, nil
}

func serviceBucket(db *store.DB) *store.Bucket[rest.Record] {
	return store.NewBucket[rest.Record](db, "rest")
}

func stateBucket(db *store.DB) *store.Bucket[overrides.Override] {
	return store.NewBucket[overrides.Override](db, "states")
}

// lastStore is the store that the agent last ran with, as recorded in the state file. An agent that
// starts on another store would find no leases there, and assign a new address to every service.
type lastStore struct {
	Kind       string `json:"kind"`
	Prefix     string `json:"prefix,omitempty"`
	Datacenter string `json:"datacenter,omitempty"`
}

func storeOf(cfg *configs.Config) lastStore {
	s := lastStore{Kind: cfg.IPAM.Store}
	if s.Kind == configs.StoreConsul {
		s.Prefix, s.Datacenter = cfg.Consul.Prefix, cfg.Consul.Datacenter
	}
	return s
}

func (s lastStore) String() string {
	if s.Kind != configs.StoreConsul {
		return s.Kind
	}
	if s.Datacenter != "" {
		return fmt.Sprintf("consul (prefix %q, datacenter %q)", s.Prefix, s.Datacenter)
	}
	return fmt.Sprintf("consul (prefix %q)", s.Prefix)
}

// noteOf returns the bucket of the state file with the lastStore.
func noteOf(db *store.DB) *store.Bucket[lastStore] { return store.NewBucket[lastStore](db, "store") }

const lastStoreKey = "last"

// localContents reads the contents of the state file.
func localContents(db *store.DB) (snapshot.Contents, error) {
	stores, err := localStores(db)
	if err != nil {
		return snapshot.Contents{}, err
	}
	return snapshot.ContentsOf(context.Background(), stores)
}

// storeOfLastRun returns the store that this host last ran with, or a zero lastStore if there is
// nothing to lose.
func storeOfLastRun(db *store.DB) (lastStore, error) {
	last, known, err := noteOf(db).Get(lastStoreKey)
	if err != nil || known && last.Kind != configs.StoreBolt {
		return last, err
	}
	local, err := localContents(db)
	if err != nil || local.Empty() {
		return lastStore{}, err
	}
	return lastStore{Kind: configs.StoreBolt}, nil
}

// isStateLost reports whether the state file is new although an agent ran with this state directory
// before. Every start records its store in the file, and keeps a copy of the configuration beside
// it.
func isStateLost(cfg *configs.Config, db *store.DB) (bool, error) {
	_, known, err := noteOf(db).Get(lastStoreKey)
	return err == nil && !known && cfg.RanBefore(), err
}

// checkStore refuses to start on another store than the last one, unless a snapshot was restored or
// there is nothing to lose.
func checkStore(cfg *configs.Config, db *store.DB) error {
	now := storeOf(cfg)
	last, known, err := noteOf(db).Get(lastStoreKey)
	if err != nil || known && last == now {
		return err
	}
	former, err := storeOfLastRun(db)
	if err != nil {
		return err
	}
	if former != (lastStore{}) && former != now {
		return fmt.Errorf("ironvip.toml names the store %s, and what this host's services hold is in the store %s: they would all get new addresses\n"+
			"hint: to keep the addresses, set ipam.store back, `ironvip snapshot save vips.json`, set it again, `ironvip snapshot restore vips.json`; "+
			"to take those of the new store, `ironvip snapshot restore --none`", now, former)
	}
	return noteStore(db, now)
}

func noteStore(db *store.DB, s lastStore) error {
	if err := noteOf(db).Put(lastStoreKey, s); err != nil {
		return fmt.Errorf("note the store: %w", err)
	}
	return nil
}

// stores are where an agent keeps leases, registrations and overrides: in the state file, or in the
// fleet's tree. The caller closes them.
type stores struct {
	snapshot.Stores
	// contents reads all contents, at any time.
	contents func(context.Context) (snapshot.Contents, error)
	announce registry.Store[nodes.Record]
	tokens   registry.Store[tokens.Record]
	tree     *fleet.Tree // nil: a host without a fleet; then the next two are nil, too
	roster   *roster.Roster
	verdicts *fleet.Collection[share.Verdict]

	stop  context.CancelFunc
	ended chan struct{} // closed at the end of the tree's Run
	err   error         // of the tree's Run; read it after its end
}

// storeOptions are the options of the stores.
type storeOptions struct {
	version string // of this binary
	clock   *table.Clock
	events  *event.Log
	log     *slog.Logger
}

// openStores opens the stores that the configuration names. It synchronizes those of a fleet with
// Consul until close. They can be read once wait returns.
func openStores(cfg *configs.Config, db *store.DB, o storeOptions) (*stores, error) {
	if cfg.IPAM.Store == configs.StoreBolt {
		local, err := localStores(db)
		if err != nil {
			return nil, err
		}
		announcing, err := registry.NewLocal(store.NewBucket[nodes.Record](db, nodes.Folder))
		if err != nil {
			return nil, fmt.Errorf("restore the drains of nodes: %w", err)
		}
		known, err := registry.NewLocal(store.NewBucket[tokens.Record](db, tokens.Folder))
		if err != nil {
			return nil, fmt.Errorf("restore the tokens: %w", err)
		}
		return &stores{Stores: local, announce: announcing, tokens: known, contents: func(context.Context) (snapshot.Contents, error) { return localContents(db) }}, nil
	}
	server, err := cfg.Consul.Resolved()
	if err != nil {
		return nil, fmt.Errorf("consul.token_file: %w", err)
	}
	identity, err := membership.LoadIdentity(db)
	if err != nil {
		return nil, fmt.Errorf("%w\nhint: give this host a new one: ironvip node new-id", err)
	}
	kv, err := consulkv.New(server)
	if err != nil {
		return nil, fmt.Errorf("the consul store: %w", err)
	}
	tree := fleet.New(fleet.Options{KV: kv, Clock: o.clock, Node: cfg.Node.Name, Identity: identity, Prefix: cfg.Consul.Prefix, Cache: db, Events: o.events, Log: o.log,
		Folders: slices.Concat(consulstore.Folders(), roster.Folders(), []string{rest.Folder, overrides.Folder, share.Folder, nodes.Folder, tokens.Folder})})
	s := &stores{tree: tree, announce: nodes.Shared(tree), tokens: registry.NewShared(tree, tokens.Folder, tokens.Check), verdicts: share.Verdicts(tree), ended: make(chan struct{})}
	s.roster = roster.New(tree, cfg.Node.Name, roster.Member{NoProbes: cfg.Dataplane.Role == configs.RoleRealServer, Format: roster.NewestFormat}, o.log)
	s.Stores = snapshot.Stores{Leases: consulstore.New(tree), Services: rest.Shared(tree), States: overrides.Shared(tree), Node: cfg.Node.Name}
	if s.Pending, err = registry.NewJournal(s.States, store.NewBucket[overrides.Override](db, "pending states")); err != nil {
		kv.Close()
		return nil, fmt.Errorf("restore backend states that wait for Consul: %w", err)
	}
	s.contents = func(ctx context.Context) (snapshot.Contents, error) { return snapshot.ContentsOf(ctx, s.Stores) }
	started := time.Now().UnixMilli()
	tree.SetNode(func() membership.Node { return membership.Node{Version: o.version, Since: started} }) // until the agent sets the full one
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		defer close(s.ended)
		defer kv.Close()
		s.err = withHint(tree.Run(ctx))
	}()
	return s, nil
}

// withHint adds a hint if this host may not join the fleet.
func withHint(err error) error {
	if duplicate, is := errors.AsType[*membership.DuplicateNodeError](err); is {
		return fmt.Errorf("%w\nhint: %s", err, duplicate.Hint())
	}
	return err
}

// wait returns once the stores can be read. The stores of a fleet must have been read from Consul,
// now or by an earlier run of the agent. Every few seconds it calls waiting with the reason for the
// wait. It returns the error of a tree that ends by itself.
func (s *stores) wait(ctx context.Context, waiting func(why string)) error {
	if s.tree == nil {
		return nil
	}
	tick := time.NewTicker(waitingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.tree.Folder(rest.Folder).Ready(): // the other folders become ready with it
			return nil
		case <-s.ended:
			return s.err
		case <-tick.C:
			waiting(s.tree.Stale())
		}
	}
}

const waitingEvery = 5 * time.Second

// inTouch returns once the stores are current and writable.
func (s *stores) inTouch(ctx context.Context) error {
	if s.tree == nil {
		return nil
	}
	for {
		changed := s.tree.StatusChanged()
		stale := s.tree.Stale()
		if stale == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", fleet.ErrUnavailable, stale)
		case <-s.ended:
			return s.err
		case <-changed:
		}
	}
}

// run returns when the context has ended and this host's session in Consul is released, or when the
// tree ends by itself.
func (s *stores) run(ctx context.Context) error {
	if s.tree == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return s.close()
	case <-s.ended:
		return s.err
	}
}

// close releases what this host holds in Consul.
func (s *stores) close() error {
	if s.tree == nil {
		return nil
	}
	s.stop()
	<-s.ended
	if errors.Is(s.err, context.Canceled) {
		return nil
	}
	return s.err
}
