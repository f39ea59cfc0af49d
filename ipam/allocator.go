package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Options are what an Allocator works with. Clock must be given.
type Options struct {
	Clock  *table.Clock
	Now    func() time.Time // nil is time.Now
	Events *event.Log       // may be nil
	Log    *slog.Logger     // nil discards

	// Node is the name of this host among those that share the store; "" says that the
	// store is this host's alone.
	Node string
	// Turn says whether it is this host that gives out what services lack, and
	// gives up what they leave; nil is always. Of several hosts that share a store, the
	// others do so only when that one hasn't for some seconds.
	Turn Turn
	// Away reports whether a host is gone for good, or for so long (a day) that its leases
	// are swept by another; nil is never.
	Away func(node string) bool
	// OwnName reports whether Node is surely this host's name alone; nil is always.
	// While it isn't, what was claimed in this name may be another host's and is not
	// swept.
	OwnName func() bool
	// Unreadable reports whether a service is registered although no source can read its
	// registration. What the service holds is kept until then; nil is never. It is called
	// from Settled on, and must not call back.
	Unreadable func(vip.ServiceKey) bool
}

// Allocator gives out addresses and node ports. Its methods may be called by
// any number of goroutines; those that write to the store wait for each other,
// the others don't wait for the store.
type Allocator struct {
	store  Store
	now    func() time.Time
	events *event.Log
	log    *slog.Logger
	leases *table.Table[Resource, *Lease] // shared with the store: nobody changes one

	node    string
	turn    Turn
	away    func(string) bool
	ownName func() bool

	unreadable func(vip.ServiceKey) bool

	// write is held by whoever is changing leases, from planning to the end of
	// the commit. Only its holder changes what mu guards.
	write   ioLock
	known   func(vip.ServiceKey) bool // nil until Settled
	version Version                   // up to where the store's changes are booked
	commits uint64                    // how many there have been
	// What is put off for another host's turn, or because others undo it: services to
	// be asked for again, and services that leave.
	later, revisit, leaving agenda
	cooldowns               map[vip.ServiceKey]time.Duration // of those that leave
	contests                map[vip.ServiceKey]contest
	restraint               restraint

	mu    sync.RWMutex // taken after write
	index index
	// blocked is what the store can't read; no lease is on these. stuck are the
	// services that hold any of it.
	blocked map[Resource]blockage
	stuck   map[vip.ServiceKey][]Resource
	// missing are held leases that vanished from the store, by their services.
	missing map[vip.ServiceKey][]Lease
	recall  recalls
	// awaited is what others hold and services were assigned, as far as they asked, and by
	// which source.
	awaited map[Resource]string
	cfg     Config
	pods    map[string][]netip.Prefix // by who says so
	host    hostnet.Snapshot
	guard   *guard
	pools   []*pool
	owned   *netipx.IPSet // every pool's ranges without its excludes
	alarm   map[string][]vip.Problem
	freed   chan struct{}
	anew    chan struct{} // closed at the next Configure
	// unclaimed has, from Settled on, all services that hold leases and that no
	// source names, until the next sweep with some that hold none or are named again.
	unclaimed map[vip.ServiceKey]struct{}
	// suspects are services that hold leases and that no source names, with the
	// time since when.
	suspects map[vip.ServiceKey]time.Time

	wake chan struct{} // tells Run of a change of what it waits for
}

// New returns an allocator that has every lease of the store. It fails when
// the store can't be read, and as Prepare does.
func New(ctx context.Context, store Store, cfg Config, o Options) (*Allocator, error) {
	a, err := Prepare(store, cfg, o)
	if err != nil {
		return nil, err
	}
	return a, a.Restore(ctx)
}

// Prepare returns an allocator for a store that need not be there yet: it knows its
// pools, and no lease before Restore. It fails with the problems of CheckPools that
// are no warnings.
func Prepare(store Store, cfg Config, o Options) (*Allocator, error) {
	a := &Allocator{
		store: store, now: o.Now, events: o.Events, log: o.Log,
		node: o.Node, turn: o.Turn, away: o.Away, ownName: o.OwnName, unreadable: o.Unreadable,
		cooldowns: make(map[vip.ServiceKey]time.Duration),
		contests:  make(map[vip.ServiceKey]contest),
		blocked:   make(map[Resource]blockage),
		stuck:     make(map[vip.ServiceKey][]Resource),
		missing:   make(map[vip.ServiceKey][]Lease),
		recall:    newRecalls(),
		awaited:   make(map[Resource]string),
		leases:    table.New(o.Clock, func(l **Lease) Resource { return (*l).Resource }, sameLease),
		index:     newIndex(),
		pods:      make(map[string][]netip.Prefix),
		freed:     make(chan struct{}),
		anew:      make(chan struct{}),
		unclaimed: make(map[vip.ServiceKey]struct{}),
		suspects:  make(map[vip.ServiceKey]time.Time),
		wake:      make(chan struct{}, 1),
		write:     newIOLock(),
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	cfg = cfg.withDefaults()
	if fatal := fatalProblems(cfg); len(fatal) > 0 {
		var errs []error
		for _, p := range fatal {
			errs = append(errs, p)
		}
		return nil, fmt.Errorf("check the address pools: %w", errors.Join(errs...))
	}
	a.cfg = cfg
	a.rebuild()
	return a, nil
}

// Restore takes in every lease of the store, once that can be read. It is called
// once after Prepare, before Run and before anything is assigned or released; the
// allocator may be configured meanwhile. It costs O(leases).
func (a *Allocator) Restore(ctx context.Context) error {
	changes, version, err := a.store.Changes(ctx, 0)
	if err != nil {
		return fmt.Errorf("restore leases: %w", err)
	}
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version = version
	for _, c := range changes {
		if c.Lease != nil {
			a.book(c.Resource, c.Lease)
		}
	}
	a.rebuild() // what is leased may be in the way of what the pools keep clear of
	a.resume(changes)
	return nil
}

// fatalProblems checks what an allocator must not run with.
func fatalProblems(cfg Config) []vip.Problem {
	problems := slices.DeleteFunc(CheckPools(cfg.Pools, cfg.PodCIDRs), IsWarning)
	if r := cfg.NodePorts; r.First == 0 || r.Last < r.First {
		problems = append(problems, vip.Problem{
			Code: vip.CodeInvalid, Field: "node_ports", Message: fmt.Sprintf("node ports %s are not a range", r), Hint: `write it as "30000-32767"`,
		})
	}
	return problems
}

// book follows one durable change of a lease; nil is its end. The caller holds
// both locks.
func (a *Allocator) book(r Resource, now *Lease) {
	old, _, _ := a.leases.Get(r)
	if now != nil && now.State == Blocked {
		a.block(r, *now, old)
		a.index.update(r, old, nil)
		set, k := a.index.set(r)
		set.add(k)
		a.leases.Delete(r)
		return
	}
	a.unblock(r)
	a.index.update(r, old, now)
	if now != nil {
		a.leases.Set(now)
		for _, h := range now.Holders {
			a.unnamed(h.Service)
		}
	} else {
		a.leases.Delete(r)
	}
	_, awaited := a.awaited[r]
	awaited = awaited && (now == nil || now.State != Held)
	if awaited {
		delete(a.awaited, r)
	}
	if old != nil && old.State == Held && old.ShareKey != "" || now == nil || awaited {
		a.free() // the resource, ports of a shared address, or what cools for those that need no cooling
	}
}

// resume lets automatic allocation go on behind the newest lease of each pool.
func (a *Allocator) resume(changes []LeaseChange) {
	newest := make(map[*ranges]vip.Instant)
	for _, c := range changes {
		if c.Lease == nil {
			continue
		}
		if r := a.dynamicOf(c.Lease); r != nil && !c.Lease.Since.Before(newest[r]) {
			newest[r] = c.Lease.Since
			r.cursor = numberOf(c.Resource.Addr).plus(1)
		}
	}
}

// dynamicOf returns the ranges that automatic allocation can have taken the
// lease's address from, nil if there are none.
func (a *Allocator) dynamicOf(l *Lease) *ranges {
	if !l.Resource.Addr.IsValid() {
		return nil
	}
	p := a.pool(l.Pool)
	if p == nil {
		return nil
	}
	if r := p.ranges[vip.FamilyOf(l.Resource.Addr)]; r != nil && r.dynamic.contains(numberOf(l.Resource.Addr)) {
		return r
	}
	return nil
}

// Leases returns the table of leases: what is durable, and nothing else.
func (a *Allocator) Leases() table.Reader[Resource, *Lease] { return a.leases }

// lease returns the lease of a resource as it is; without one it is the zero
// Lease.
func (a *Allocator) lease(r Resource) (Lease, bool) {
	if l, _, ok := a.leases.Get(r); ok {
		return *l, true
	}
	return Lease{}, false
}

// Freed returns a channel that is closed when something that a waiting service
// may want became free, or the pools changed. A closed one is replaced.
func (a *Allocator) Freed() <-chan struct{} {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.freed
}

// Reconfigured returns a channel that is closed when there is a new
// configuration, after which any service may be granted more than it was. A
// closed one is replaced.
func (a *Allocator) Reconfigured() <-chan struct{} {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.anew
}

// free tells those who wait. The caller holds mu.
func (a *Allocator) free() {
	close(a.freed)
	a.freed = make(chan struct{})
}

// Owns reports whether an address is in a pool's ranges and not excluded, or
// leased. It costs O(log ranges).
func (a *Allocator) Owns(addr netip.Addr) bool {
	addr = addr.Unmap()
	if a.leases.Row(Resource{Addr: addr}) != nil {
		return true
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.owned.Contains(addr)
}

// PriorSource returns the source that a service came from when it got its
// leases, held or cooling. Where they differ it is that of the lowest address,
// else of the lowest node port: the same on every host.
func (a *Allocator) PriorSource(k vip.ServiceKey) (source string, known bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var first Resource
	for r := range a.index.owned.Of(k) {
		if known && compareResources(first, r) < 0 {
			continue
		}
		if l, _, ok := a.leases.Get(r); ok {
			if h := l.holder(k); h != nil {
				source, known, first = h.Source, true, r
			}
		}
	}
	return source, known
}

// compareResources puts addresses before node ports.
func compareResources(a, b Resource) int {
	if a.Addr.IsValid() != b.Addr.IsValid() {
		return -a.Addr.Compare(b.Addr) // an invalid address is below all others
	}
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.NodePort, b.NodePort))
}

// Orphans returns how many services hold leases though no source names them.
// It is 0 until Settled.
func (a *Allocator) Orphans() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.suspects)
}

// Configure takes a new configuration. With problems it changes nothing;
// else leases stay as they are, wherever the pools are now, and Reconfigured
// tells that services may be granted more.
func (a *Allocator) Configure(cfg Config) []vip.Problem {
	cfg = cfg.withDefaults()
	if fatal := fatalProblems(cfg); len(fatal) > 0 {
		return fatal
	}
	a.change(true, func() { a.cfg = cfg })
	return nil
}

// SetHost tells the host's network as it is now.
func (a *Allocator) SetHost(s hostnet.Snapshot) { a.change(false, func() { a.host = s }) }

// SetPodCIDRs tells which ranges are in use by others, as by pods, or by Services
// whose addresses somebody else gives out, according to one source; none takes
// back what that source said before.
func (a *Allocator) SetPodCIDRs(source string, prefixes []netip.Prefix) {
	a.change(false, func() {
		if len(prefixes) == 0 {
			delete(a.pods, source)
		} else {
			a.pods[source] = slices.Clone(prefixes)
		}
	})
}

// change changes what the pools are made from, and tells those who wait where
// that may matter to them. It costs O(ranges), whatever is
// leased.
func (a *Allocator) change(configured bool, do func()) {
	a.write.Lock()
	defer a.write.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	former := a.guard.set
	do()
	a.rebuild()
	if configured {
		close(a.anew)
		a.anew = make(chan struct{})
	}
	if configured || !a.guard.set.Equal(former) {
		a.free()
		a.nudge()
	}
}

// nudge makes Run look again at what it waits for.
func (a *Allocator) nudge() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// rebuild makes the pools anew. The caller holds both locks, or is alone.
func (a *Allocator) rebuild() {
	a.guard = newGuard(a.cfg.PodCIDRs, a.pods, a.host)
	var owned netipx.IPSetBuilder
	pools := make([]*pool, 0, len(a.cfg.Pools))
	for _, p := range a.cfg.Pools {
		made := newPool(p, a.guard)
		if former := a.pool(p.Name); former != nil {
			for f, r := range made.ranges {
				if was := former.ranges[f]; was != nil {
					r.cursor = was.cursor
				}
			}
		}
		pools = append(pools, made)
		for _, c := range p.CIDRs {
			owned.AddPrefix(c)
		}
		for _, e := range p.Exclude {
			owned.RemovePrefix(e)
		}
	}
	a.pools = pools
	a.owned, _ = owned.IPSet() // fails on invalid input only
	a.alarms()
}

// alarms finds what is wrong with the pools, and tells what is new.
func (a *Allocator) alarms() {
	now := make(map[string][]vip.Problem)
	for _, p := range CheckPools(a.cfg.Pools, nil) {
		var i int
		if _, err := fmt.Sscanf(p.Field, "pool[%d]", &i); err == nil && i < len(a.pools) {
			p.Field = ""
			now[a.pools[i].Name] = append(now[a.pools[i].Name], p)
		}
	}
	for _, p := range a.pools {
		now[p.Name] = append(now[p.Name], a.guard.alarms(p, func(addr netip.Addr) (Lease, bool) { return a.lease(Resource{Addr: addr}) })...)
	}
	for name, list := range now {
		for _, p := range list {
			if !slices.Contains(a.alarm[name], p) {
				a.log.Warn("address pool: "+p.Message, "pool", name, "hint", p.Hint)
				a.events.Add(event.Event{Kind: "pool_alarm", Object: name, Message: p.Message})
			}
		}
	}
	for name, list := range a.alarm {
		for _, p := range list {
			if !slices.Contains(now[name], p) {
				a.log.Info("address pool: no longer so: "+p.Message, "pool", name)
				a.events.Add(event.Event{Kind: "pool_alarm_over", Object: name, Message: "no longer so: " + p.Message})
			}
		}
	}
	a.alarm = now
}

// pool returns the pool of that name, or nil.
func (a *Allocator) pool(name string) *pool {
	for _, p := range a.pools {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Pools returns how the pools fare, in the order of the configuration, and
// after them those that are not in it any more but hold leases. It costs
// O(ranges), whatever is leased.
func (a *Allocator) Pools() []PoolStatus {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var out []PoolStatus
	for _, p := range a.pools {
		s := PoolStatus{Pool: p.Pool, Alarms: slices.Clone(a.alarm[p.Name])}
		for f, r := range p.ranges {
			s.Size = addSaturating(s.Size, r.usable.size())
			s.HeldOut = addSaturating(s.HeldOut, r.heldOut)
			for _, part := range []spans{r.static, r.dynamic} {
				for _, run := range part {
					s.Free = addSaturating(s.Free, run.size()-a.index.addrs[f].count(run.first, run.last))
				}
			}
		}
		if u := a.index.usage[p.Name]; u != nil {
			s.Used, s.Cooling = u.held, u.cooling
		}
		out = append(out, s)
	}
	var removed []PoolStatus
	for name, u := range a.index.usage {
		if a.pool(name) == nil && u.held+u.cooling > 0 {
			removed = append(removed, PoolStatus{
				Pool: Pool{Name: name}, Removed: true, Used: u.held, Cooling: u.cooling,
				Alarms: []vip.Problem{{
					Code:    CodeNotice,
					Message: fmt.Sprintf("pool %q is not in the configuration any more; %d of its addresses are held and stay", name, u.held),
					Hint:    "bring the pool back, or move its services by naming another pool in them",
				}},
			})
		}
	}
	slices.SortFunc(removed, func(a, b PoolStatus) int { return strings.Compare(a.Name, b.Name) })
	return append(out, removed...)
}
