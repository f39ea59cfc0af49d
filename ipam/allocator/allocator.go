// Package allocator assigns virtual addresses and node ports. No other package does.
//
// Its inputs are services, pools, the ranges that pools must keep clear of (pod ranges, the
// host's own addresses), and the changes of a store that hosts share. Its outputs are allocations and the
// table of leases. It commits the ops that package plan computes; a lease is durable before it is
// visible. It never touches the network.
//
// Files:
//
//	allocator.go   the Allocator, its readers, its locks
//	config.go      pools and times as configured, and their changes
//	leadership.go  when this host acts, if hosts share the store
//	commit.go      from ops, and from what the store has at the start and later, to visible leases
//	assign.go, release.go  what the pipeline calls
//	reserve.go     what an operator calls to keep an address for a service
//	run.go, sweep.go  what Run does at a deadline: recalls, the end of cooling, orphans
package allocator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/internal/workqueue"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/plan"
	"github.com/ironvip/ironvip/vip"
)

const (
	longestNap    = time.Minute // of Run, so that it notices a changed clock
	shortestRetry = time.Second
	longestRetry  = 30 * time.Second
)

// storeBackoff returns the waits for a store that fails.
func storeBackoff() backoff.Backoff { return backoff.Backoff{Lo: shortestRetry, Hi: longestRetry} }

// Options are the dependencies of an Allocator. Clock must be given.
type Options struct {
	Clock  *table.Clock
	Now    func() time.Time // nil: time.Now
	Events *event.Log       // may be nil
	Log    *slog.Logger     // nil: discards

	// Node is the name of this host among those that share the store; "" if the store is this
	// host's alone.
	Node string
	// Leadership reports whether this host is the leader of those that share the store; nil:
	// always.
	Leadership Leadership
	// Away reports whether a host has been gone for so long (a day) that the leader releases
	// its orphans; nil: never.
	Away func(node string) bool
	// OwnName reports whether no other host uses the name Node; nil: always. While it is false,
	// leases of that name may be another host's, and none is released as an orphan.
	OwnName func() bool
	// Unreadable reports whether a service is registered although no source can read its
	// registration; nil: never. Its leases are kept as long as it is true. It is called after
	// Settled, and must not call back.
	Unreadable func(vip.ServiceKey) bool
}

// Allocator assigns addresses and node ports. Its methods may be called by any number of
// goroutines. Methods that write to the store wait for each other; the others don't wait for the
// store.
type Allocator struct {
	store             ipam.Store
	now               func() time.Time
	events            *event.Log
	log               *slog.Logger
	leadership        Leadership
	away              func(string) bool
	ownName           func() bool
	unreadableService func(vip.ServiceKey) bool

	// write is held from the start of a plan to the end of its commit. Its holder alone changes
	// what follows, up to mu.
	write    writeLock
	known    func(vip.ServiceKey) bool // nil until Settled
	feed     ipam.Feed                 // of what other hosts write to the store
	grace    gracePeriod
	waiting  deferred // services that lack something
	releases deferred // deleted services that still hold something
	retries  delayqueue.Queue[vip.ServiceKey]
	undone   undone
	// unclaimed are, after Settled, the services that may hold leases without a source that
	// names them.
	unclaimed map[vip.ServiceKey]struct{}
	orphans   map[vip.ServiceKey]time.Time // as the last sweep found them; since when

	mu    sync.RWMutex // taken after write; its holder may read what follows
	state *plan.State
	// cooling are the cooling leases by the time to end them: Until, or later for another try.
	cooling delayqueue.Queue[ipam.Resource]
	recalls workqueue.Queue[vip.ServiceKey] // services to call Assign for again
	// claimed are the resources that services wait for although others hold them, because their
	// source, which is the value, has assigned the resources to them.
	claimed map[ipam.Resource]string
	alarms  map[string][]vip.Problem
	freed   wake.Broadcast
	changed wake.Broadcast // by Configure

	wake wake.Signal // makes Run look at its deadlines
}

// New returns an allocator with every lease of the store. It fails if the store can't be read,
// and as Prepare does.
func New(ctx context.Context, store ipam.Store, cfg ipam.Config, o Options) (*Allocator, error) {
	a, err := Prepare(store, cfg, o)
	if err != nil {
		return nil, err
	}
	return a, a.Restore(ctx)
}

// Prepare returns an allocator without leases for a store that may not be available yet. It fails
// with the problems of CheckPools that aren't warnings.
func Prepare(store ipam.Store, cfg ipam.Config, o Options) (*Allocator, error) {
	cfg = cfg.WithDefaults()
	if fatal := fatalProblems(cfg); len(fatal) > 0 {
		var errs []error
		for _, p := range fatal {
			errs = append(errs, p)
		}
		return nil, fmt.Errorf("check the address pools: %w", errors.Join(errs...))
	}
	a := &Allocator{
		store: store, now: o.Now, events: o.Events, log: o.Log,
		leadership: o.Leadership, away: o.Away, ownName: o.OwnName, unreadableService: o.Unreadable,
		write: make(writeLock, 1), grace: gracePeriod{length: stepInAfter + rand.N(stepInJitter)}, waiting: newDeferred(), releases: newDeferred(),
		undone:    make(undone),
		unclaimed: make(map[vip.ServiceKey]struct{}),
		state:     plan.NewState(o.Node, o.Clock, cfg),
		claimed:   make(map[ipam.Resource]string),
		wake:      wake.New(),
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.state.Rebuild()
	a.updateAlarms()
	return a, nil
}

// Leases returns the table of durable leases.
func (a *Allocator) Leases() table.Reader[ipam.Resource, *ipam.Lease] { return a.state.Leases() }

// Freed returns a channel that is closed when something became free that a waiting service may
// want, or when the pools change. Every such change replaces it.
func (a *Allocator) Freed() <-chan struct{} { return a.freed.Next() }

// Reconfigured returns a channel that is closed by Configure, after which any service may be
// granted more. Every Configure replaces it.
func (a *Allocator) Reconfigured() <-chan struct{} { return a.changed.Next() }

// Owns reports whether an address is leased, or in the ranges of a pool and not excluded. It costs
// O(ranges).
func (a *Allocator) Owns(addr netip.Addr) bool {
	addr = addr.Unmap()
	if a.state.Leases().Row(ipam.Resource{Addr: addr}) != nil {
		return true
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.state.InPool(addr)
}

// SourceOf looks up in the leases table the source that a service came from when it got its
// leases, held or kept for it. If they differ, the lowest address decides, then the lowest node port:
// the result is the same on every host.
func (a *Allocator) SourceOf(k vip.ServiceKey) (source string, known bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var first ipam.Resource
	for r := range a.state.Owned(k) {
		if known && first.Compare(r) < 0 {
			continue
		}
		if l, ok := a.state.Lease(r); ok {
			if h := l.HolderOf(k); h != nil && h.Source != "" { // none if it is only reserved
				source, known, first = h.Source, true, r
			}
		}
	}
	return source, known
}

// writeLock is the lock of the one who writes to the store. It is a channel and not a sync.Mutex
// because testing/synctest then lets time pass while others wait for it during a slow commit.
type writeLock chan struct{}

func (l writeLock) Lock() { l <- struct{}{} }

// LockWithin takes the lock unless that takes longer than d.
func (l writeLock) LockWithin(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case l <- struct{}{}:
		return true
	case <-late.C:
		return false
	}
}

func (l writeLock) Unlock() { <-l }
