package ipam

import (
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

	"github.com/ironvip/ironvip/hostnet"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
	"github.com/ironvip/ironvip/vip/table"
)

// Options are what an Allocator works with. Clock must be given.
type Options struct {
	Clock  *table.Clock
	Now    func() time.Time // nil is time.Now
	Events *event.Log       // may be nil
	Log    *slog.Logger     // nil discards
}

// Allocator gives out addresses and node ports. Its methods may be called by
// any number of goroutines; those that write to the store wait for each other,
// the others don't wait for the store.
type Allocator struct {
	store  Store
	now    func() time.Time
	events *event.Log
	log    *slog.Logger
	leases *table.Table[Resource, Lease]

	// write is held by whoever is changing leases, from planning to the end of
	// the commit. Only its holder changes what mu guards.
	write sync.Mutex
	known func(vip.ServiceKey) bool // nil until Settled

	mu    sync.RWMutex // taken after write
	index index
	cfg   Config
	pods  map[string][]netip.Prefix // by who says so
	host  hostnet.Snapshot
	guard *guard
	pools []*pool
	owned *netipx.IPSet // every pool's ranges
	alarm map[string][]vip.Problem
	freed chan struct{}
	anew  chan struct{} // closed at the next Configure
	// suspects are services that hold leases and that no source names, with the
	// time since when.
	suspects map[vip.ServiceKey]time.Time

	wake chan struct{} // tells Run of a change of what it waits for
}

// New returns an allocator that has every lease of the store. It fails when
// the store can't be read, and with the problems of CheckPools that are no
// warnings.
func New(ctx context.Context, store Store, cfg Config, o Options) (*Allocator, error) {
	a := &Allocator{
		store: store, now: o.Now, events: o.Events, log: o.Log,
		leases:   table.New[Resource](o.Clock, Lease.Equal),
		index:    newIndex(),
		pods:     make(map[string][]netip.Prefix),
		freed:    make(chan struct{}),
		anew:     make(chan struct{}),
		suspects: make(map[vip.ServiceKey]time.Time),
		wake:     make(chan struct{}, 1),
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
	changes, _, err := store.Changes(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("restore leases: %w", err)
	}
	a.cfg = cfg
	a.restore(changes)
	a.rebuild()
	a.resume(changes)
	return a, nil
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

// restore books the leases of an earlier run.
func (a *Allocator) restore(changes []LeaseChange) {
	for _, c := range changes {
		if c.Lease != nil {
			a.book(c.Resource, c.Lease)
		}
	}
}

// book follows one durable change of a lease; nil is its end. The caller holds
// both locks, or is alone.
func (a *Allocator) book(r Resource, now *Lease) {
	var old *Lease
	if l, _, ok := a.leases.Get(r); ok {
		old = &l
	}
	a.index.update(r, old, now)
	if now != nil {
		a.leases.Set(r, *now)
	} else {
		a.leases.Delete(r)
	}
	if old != nil && old.State == Held && old.ShareKey != "" || now == nil {
		a.free() // the resource, or ports of a shared address
	}
}

// resume lets automatic allocation go on behind the newest lease of each pool.
func (a *Allocator) resume(changes []LeaseChange) {
	newest := make(map[*ranges]time.Time)
	for _, c := range changes {
		if c.Lease == nil || !c.Resource.Addr.IsValid() {
			continue
		}
		p := a.pool(c.Lease.Pool)
		if p == nil {
			continue
		}
		r := p.ranges[vip.FamilyOf(c.Resource.Addr)]
		if k := numberOf(c.Resource.Addr); r != nil && r.dynamic.contains(k) && !c.Lease.Since.Before(newest[r]) {
			newest[r] = c.Lease.Since
			r.cursor = k.plus(1)
		}
	}
}

// Leases returns the table of leases: what is durable, and nothing else.
func (a *Allocator) Leases() table.Reader[Resource, Lease] { return a.leases }

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

// Owns reports whether an address is in a pool's ranges, or leased. It costs
// O(log ranges).
func (a *Allocator) Owns(addr netip.Addr) bool {
	addr = addr.Unmap()
	if _, _, leased := a.leases.Get(Resource{Addr: addr}); leased {
		return true
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.owned.Contains(addr)
}

// PriorSource returns the source that a service came from when it got its
// leases, held or cooling.
func (a *Allocator) PriorSource(k vip.ServiceKey) (string, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, r := range a.index.owned[k] {
		l, _, _ := a.leases.Get(r)
		for _, h := range l.Holders {
			if h.Service == k {
				return h.Source, true
			}
		}
	}
	return "", false
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

// SetPodCIDRs tells which ranges pods have, according to one source; none
// takes back what that source said before.
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

// rebuild makes the pools anew. The caller holds both locks.
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
		now[p.Name] = append(now[p.Name], a.guard.alarms(p, func(addr netip.Addr) (Lease, bool) {
			l, _, ok := a.leases.Get(Resource{Addr: addr})
			return l, ok
		})...)
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
