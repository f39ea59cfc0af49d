// Package stores has what an agent keeps beyond its own life: the state file of this host and, in a fleet,
// the tree that hosts share in Consul.
//
// Its inputs are the configuration and the disk. Its outputs are the open stores of leases, registrations,
// overrides, drains of nodes and tokens, lines of `ironvip status`, and events about a state file that
// can't be written. It refuses a start on another store than the one with this host's leases. The
// content of the stores belongs to others: ipam, sources/rest, pipeline/overrides, announce/nodes and
// api/tokens.
package stores

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce/nodes"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/api/tokens"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/etcd"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam/boltstore"
	"github.com/ironvip/ironvip/ipam/fleetstore"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
)

// localStores returns the stores in the state file, for a host without a fleet.
func localStores(db *store.DB) (snapshot.Stores, error) {
	leases, err := boltstore.New(db)
	if err != nil {
		return snapshot.Stores{}, err
	}
	services, err := registry.NewLocal(store.NewBucket[rest.Record](db, "rest"))
	if err != nil {
		return snapshot.Stores{}, fmt.Errorf("restore the registrations: %w", err)
	}
	states, err := registry.NewLocal(store.NewBucket[overrides.Override](db, "states"))
	if err != nil {
		return snapshot.Stores{}, fmt.Errorf("restore backend states: %w", err)
	}
	return snapshot.Stores{Leases: leases, Services: services, States: states}, nil
}

// Stores are where an agent keeps leases, registrations, overrides, drains of nodes and tokens: in the
// state file, or in the tree of a fleet.
type Stores struct {
	snapshot.Stores
	Config   *configs.Config // that they were opened with
	DB       *store.DB       // the state file
	Lost     bool            // the state file is new although an agent ran here before
	Announce registry.Store[nodes.Record]
	Tokens   registry.Store[tokens.Record]
	Tree     *fleet.Tree // nil: a host without a fleet; then the next two are nil, too
	Roster   *roster.Roster
	Verdicts *fleet.Collection[share.Verdict]

	o     Options
	stop  context.CancelFunc
	ended chan struct{} // closed at the end of the tree's Run
	err   error         // of the tree's Run; read it after its end
}

// Options are what the stores need besides the configuration. Clock and Log are required.
type Options struct {
	Version string // of this binary
	Clock   *table.Clock
	Events  *event.Log
	Log     *slog.Logger
}

// Start opens the state file and the stores of an agent. It refuses another store than the one of the last
// run, unless there is nothing to lose.
func Start(cfg *configs.Config, o Options) (*Stores, error) {
	db, err := OpenState(cfg)
	if err != nil {
		return nil, err
	}
	lost, err := checkPlace(cfg, db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s, err := Open(cfg, db, o)
	if err != nil {
		return nil, err
	}
	s.Lost = lost
	return s, nil
}

// Open opens the stores that the configuration names. It synchronizes those of a fleet with
// Consul until Close. They can be read once Wait returns. The state file is closed with them, also after an error.
func Open(cfg *configs.Config, db *store.DB, o Options) (s *Stores, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if cfg.IPAM.Store != configs.StoreBolt {
		return openFleet(cfg, db, o)
	}
	local, err := localStores(db)
	if err != nil {
		return nil, err
	}
	s = &Stores{Stores: local, Config: cfg, DB: db, o: o}
	if s.Announce, err = registry.NewLocal(store.NewBucket[nodes.Record](db, nodes.Folder)); err != nil {
		return nil, fmt.Errorf("restore the drains of nodes: %w", err)
	}
	if s.Tokens, err = registry.NewLocal(store.NewBucket[tokens.Record](db, tokens.Folder)); err != nil {
		return nil, fmt.Errorf("restore the tokens: %w", err)
	}
	return s, nil
}

// openFleet opens the stores of a fleet.
func openFleet(cfg *configs.Config, db *store.DB, o Options) (*Stores, error) {
	identity, err := membership.LoadIdentity(db)
	if err != nil {
		return nil, fmt.Errorf("%w\nhint: give this host a new one: ironvip node new-id", err)
	}
	client, closeKV, err := openKV(cfg)
	if err != nil {
		return nil, fmt.Errorf("the store %s: %w", cfg.IPAM.Store, err)
	}
	tree := fleet.New(fleet.Options{KV: client, Clock: o.Clock, Node: cfg.Node.Name, Identity: identity, Prefix: cfg.FleetPrefix(), Cache: db, Events: o.Events, Log: o.Log,
		Folders: slices.Concat(fleetstore.Folders(), roster.Folders(), []string{rest.Folder, overrides.Folder, share.Folder, nodes.Folder, tokens.Folder})})
	s := &Stores{Config: cfg, DB: db, o: o, ended: make(chan struct{}),
		Tree: tree, Announce: nodes.Shared(tree), Tokens: registry.NewShared(tree, tokens.Folder, tokens.Check), Verdicts: share.Verdicts(tree)}
	s.Roster = roster.New(tree, cfg.Node.Name, roster.Member{NoProbes: cfg.Dataplane.Role == configs.RoleRealServer}, o.Log)
	s.Stores = snapshot.Stores{Leases: fleetstore.New(tree), Services: rest.Shared(tree), States: overrides.Shared(tree), Node: cfg.Node.Name}
	if s.Pending, err = registry.NewJournal(s.States, store.NewBucket[overrides.Override](db, "pending states")); err != nil {
		closeKV()
		return nil, fmt.Errorf("restore backend states that wait for the fleet's store: %w", err)
	}
	started := time.Now().UnixMilli()
	tree.SetNode(func() membership.Node { return membership.Node{Version: o.Version, Since: started} }) // until the agent sets the full one
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		defer close(s.ended)
		defer closeKV()
		s.err = tree.Run(ctx)
		if duplicate, is := errors.AsType[*membership.DuplicateNodeError](s.err); is { // this host may not join the fleet
			s.err = fmt.Errorf("%w\nhint: %s", s.err, duplicate.Hint())
		}
	}()
	return s, nil
}

// openKV opens the store that a configuration names.
func openKV(cfg *configs.Config) (opened kv.Store, end func(), err error) {
	if cfg.IPAM.Store == configs.StoreEtcd {
		e := &cfg.Etcd
		o := etcd.Config{Endpoints: e.Endpoints, Username: e.Username}
		if e.UsesTLS() {
			if o.TLS, err = e.TLS().Config(e.ServerName); err != nil {
				return nil, nil, err
			}
		}
		if e.PasswordFile != "" {
			path, err := tomlfile.ResolvePath(e.PasswordFile)
			if err != nil {
				return nil, nil, fmt.Errorf("etcd.password_file: %w", err)
			}
			text, problem := tomlfile.ReadFile(path, configs.MaxSize)
			if problem != nil {
				return nil, nil, fmt.Errorf("etcd.password_file: %w", problem)
			}
			if o.Password = strings.TrimSpace(string(text)); o.Password == "" {
				return nil, nil, fmt.Errorf("etcd.password_file: %s is empty", path)
			}
		}
		client := etcd.New(o)
		return client, client.Close, nil
	}
	server, err := cfg.Consul.Resolved()
	if err != nil {
		return nil, nil, fmt.Errorf("consul.token_file: %w", err)
	}
	client, err := consul.New(server)
	if err != nil {
		return nil, nil, err
	}
	return client, client.Close, nil
}

// Wait returns once the stores can be read. The stores of a fleet must have been read from Consul,
// now or by an earlier run of the agent. Every few seconds it calls waiting with the reason for the
// wait. It returns the error of a tree that ends by itself.
func (s *Stores) Wait(ctx context.Context, waiting func(why string)) error {
	if s.Tree == nil {
		return nil
	}
	tick := time.NewTicker(WaitingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Tree.Folder(rest.Folder).Ready(): // the other folders become ready with it
			return nil
		case <-s.ended:
			return s.err
		case <-tick.C:
			waiting(s.Tree.Stale())
		}
	}
}

// WaitingEvery is how often Wait reports that it waits.
const WaitingEvery = 5 * time.Second

// InTouch returns once the stores are current and writable.
func (s *Stores) InTouch(ctx context.Context) error {
	if s.Tree == nil {
		return nil
	}
	for {
		changed := s.Tree.StatusChanged()
		stale := s.Tree.Stale()
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

// Run returns when the context has ended and this host's session in Consul is released, or when the
// tree ends by itself.
func (s *Stores) Run(ctx context.Context) error {
	if s.Tree == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	if wake.Wait(ctx, s.ended) != nil {
		return s.leave()
	}
	return s.err
}

// leave releases what this host holds in Consul.
func (s *Stores) leave() error {
	if s.Tree == nil {
		return nil
	}
	s.stop()
	<-s.ended
	if errors.Is(s.err, context.Canceled) {
		return nil
	}
	return s.err
}

// Close releases what this host holds in Consul, and closes the state file.
func (s *Stores) Close() error { return errors.Join(s.leave(), s.DB.Close()) }

// Contents reads all contents, at any time.
func (s *Stores) Contents(ctx context.Context) (snapshot.Contents, error) {
	if s.Tree == nil {
		return localContents(ctx, s.DB)
	}
	return snapshot.ContentsOf(ctx, s.Stores)
}

// Document returns all contents as a document of this host's.
func (s *Stores) Document(ctx context.Context, version string) (snapshot.Document, error) {
	c, err := s.Contents(ctx)
	if err != nil {
		return snapshot.Document{}, err
	}
	d := snapshot.NewDocument(c)
	d.Node, d.Store, d.Taken, d.Version = s.Config.Node.Name, s.Config.IPAM.Store, time.Now().UTC(), version
	return d, nil
}

// localContents reads the contents of the state file.
func localContents(ctx context.Context, db *store.DB) (snapshot.Contents, error) {
	local, err := localStores(db)
	if err != nil {
		return snapshot.Contents{}, err
	}
	return snapshot.ContentsOf(ctx, local)
}
