package pipeline

import (
	"context"
	"fmt"
	"sync"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
)

// Leases is what Resolve reads from ipam. *allocator.Allocator implements it.
type Leases interface {
	Leases() table.Reader[ipam.Resource, *ipam.Lease]
	// SourceOf looks up in the leases table the source that a service had when it got its leases.
	SourceOf(vip.ServiceKey) (source string, known bool)
}

// ConflictKey identifies a claim that lost: a service and a source.
type ConflictKey struct {
	Service vip.ServiceKey
	Source  string
}

// Conflict is a claim that is not in effect because another source has the name, or may still claim
// it.
type Conflict struct {
	ConflictKey
	Since   uint64 // revision of the claim when it lost; the lowest takes over first
	Problem vip.Problem
}

// ResolveOptions are what Resolve needs. Services is required.
type ResolveOptions struct {
	Clock    *table.Clock                              // of the claims and conflicts tables
	Leases   Leases                                    // nil: no lease decides
	Shared   bool                                      // other hosts have the same leases
	Services *table.Table[vip.ServiceKey, vip.Service] // Resolve is its only writer
	Scope    Scope
	Events   *event.Log
}

// Scope reports whether this host serves a service. Nil: it serves all.
type Scope func(*vip.Service) bool

// Resolve is the stage from claims and leases to services. It decides which source's claim of a
// name is in effect. No other code decides conflicts about names.
//
// Each source has a claims table. A row of it becomes a row of [services], or of [conflicts] if the
// source loses. A service outside of this host's Scope is marked, and everything that follows [services] leaves it to other
// hosts. The source that has the name keeps it. A name that no source has goes to the source
// in its lease. Until that source has synced, the name is reserved for it. Without a lease the
// oldest claim wins. Where hosts share the leases, the lease also overrules the source that has the
// name, so that all hosts serve the same claim.
//
// A claim is resolved in the goroutine that changed it, so that a write can be answered with the
// revision of its row in [services]. One change costs O(sources).
type Resolve struct {
	ResolveOptions
	conflicts *table.Table[ConflictKey, Conflict]

	mu      sync.Mutex
	sources []*claimant // in the order of Claims
}

// claimant is one source.
type claimant struct {
	name   string
	claims *table.Table[vip.ServiceKey, vip.Service]
	claim  *serviceRow // its claim of the name that is being resolved
	synced bool        // claims is Ready
	done   func()      // marks its part of [services] as complete
}

// NewResolve returns a stage without sources.
func NewResolve(o ResolveOptions) *Resolve {
	if o.Clock == nil {
		o.Clock = &table.Clock{}
	}
	return &Resolve{ResolveOptions: o, conflicts: table.New(o.Clock,
		func(c *Conflict) ConflictKey { return c.ConflictKey }, func(a, b Conflict) bool { return a == b })}
}

// Conflicts returns the table of claims that are not in effect.
func (r *Resolve) Conflicts() table.Reader[ConflictKey, Conflict] { return r.conflicts }

// ClaimTables returns the claims table of every source.
func (r *Resolve) ClaimTables() []table.Reader[vip.ServiceKey, vip.Service] {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []table.Reader[vip.ServiceKey, vip.Service]
	for _, s := range r.sources {
		out = append(out, s.claims)
	}
	return out
}

// Claims adds a source and returns its claims table. The table is Ready once the source has synced,
// or once it is no longer waited for. [services] is not Ready before every source's claims are.
func (r *Resolve) Claims(source string) *table.Table[vip.ServiceKey, vip.Service] {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Rows are compared only in this table: sources also write unchanged services.
	claims := table.New(r.Clock, vip.KeyOfService, compile.SameService)
	r.sources = append(r.sources, &claimant{name: source, claims: claims, done: r.Services.Initializer()})
	return claims
}

// Changed resolves the names of claims that a source has changed, and checks whether its claims are
// Ready now.
func (r *Resolve) Changed(source string, keys []vip.ServiceKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range keys {
		r.resolve(k, source)
	}
	for _, s := range r.sources {
		if s.name != source || s.synced || !table.IsClosed(s.claims.Ready()) {
			continue
		}
		s.synced = true
		// No name is reserved for this source any longer. Its reserved names may belong to other
		// sources now, so resolve every reserved name.
		for k := range r.conflicts.All() {
			if r.Services.Row(k.Service) == nil {
				r.resolve(k.Service, "")
			}
		}
		s.done()
	}
}

// Run resolves the names of services whose leases change, until the context ends, and returns its
// error.
func (r *Resolve) Run(ctx context.Context) error {
	feed := r.Leases.Leases().Watch()
	defer feed.Close()
	for {
		batch, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		for _, c := range batch {
			for i := range c.Value.Holders {
				r.leaseChanged(c.Value.Holders[i].Service)
			}
		}
	}
}

// leaseChanged resolves a name again if several sources claim it.
func (r *Resolve) leaseChanged(k vip.ServiceKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conflicts.Len() > 0 {
		r.resolve(k, "")
	}
}

// resolve updates the rows of a name in [services] and [conflicts]. Changed is the source with a
// new claim. The caller holds mu.
func (r *Resolve) resolve(k vip.ServiceKey, changed string) {
	for _, s := range r.sources {
		s.claim = s.claims.Row(k)
	}
	holder, leased := "", ""
	if row := r.Services.Row(k); row != nil {
		holder = row.Value.Source
	}
	if r.Leases != nil {
		leased, _ = r.Leases.SourceOf(k)
	}
	winner := r.winner(k, holder, leased)
	switch {
	case winner == nil:
		r.Services.Delete(k)
	case winner.name != holder || winner.name == changed:
		r.put(winner.claim.Value)
	}
	for _, s := range r.sources {
		if s != winner && s.claim != nil {
			r.lose(k, s, winner, leased)
		} else if r.conflicts.Delete(ConflictKey{k, s.name}) && s == winner {
			r.event("service_name_freed", k, s.name, fmt.Sprintf("the service of source %q takes over", s.name))
		}
	}
}

// put writes a row of [services]. The caller holds mu.
func (r *Resolve) put(s vip.Service) {
	s.NotHere = r.Scope != nil && !r.Scope(&s)
	r.Services.Put(s)
}

// SetScope changes which services this host serves. It costs O(services).
func (r *Resolve) SetScope(scope Scope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Scope = scope
	for _, s := range r.Services.All() {
		if here := scope == nil || scope(&s); here == s.NotHere {
			r.put(s)
		}
	}
}

// winner returns the source that has the name, or nil. Holder is the source of the row in
// [services]. Leased is the source in the name's lease.
func (r *Resolve) winner(k vip.ServiceKey, holder, leased string) *claimant {
	var held, byLease, oldest *claimant
	var since uint64
	kept := false // reserved for a source that has not synced
	for _, s := range r.sources {
		if s.claim == nil {
			kept = kept || s.name == leased && !s.synced && holder == ""
			continue
		}
		if s.name == holder {
			held = s
		}
		if s.name == leased {
			byLease = s
		}
		age := s.claim.Rev
		if c := r.conflicts.Row(ConflictKey{k, s.name}); c != nil {
			age = c.Value.Since
		}
		if oldest == nil || age < since {
			oldest, since = s, age
		}
	}
	switch {
	case byLease != nil && (held == nil || r.Shared):
		return byLease
	case held != nil:
		return held
	case kept:
		return nil
	}
	return oldest
}

// lose writes the conflict of a claim that lost. Without a winner, the name is reserved for the
// source in its lease.
func (r *Resolve) lose(k vip.ServiceKey, s, winner *claimant, leased string) {
	p := vip.Problem{Code: vip.CodeNameTaken, Place: s.claim.Value.Origin, Service: k.String(), Field: "name",
		Hint: "rename or remove one of the two; this one takes over when the other is removed"}
	by := leased
	if winner == nil {
		p.Message = fmt.Sprintf("source %q held the name before and has not synced yet", by)
	} else {
		by = winner.name
		p.Message = fmt.Sprintf("source %q holds the name", by)
		if origin := winner.claim.Value.Origin; origin != "" {
			p.Message += ", at " + origin
		}
	}
	conflict := Conflict{ConflictKey: ConflictKey{k, s.name}, Since: s.claim.Rev, Problem: p}
	if former := r.conflicts.Row(conflict.ConflictKey); former != nil {
		conflict.Since = former.Value.Since
	} else {
		r.event("service_name_taken", k, s.name, fmt.Sprintf("source %q has a service of this name, which source %q holds; it is not in effect", s.name, by))
	}
	r.conflicts.Set(conflict)
}

func (r *Resolve) event(kind string, k vip.ServiceKey, source, message string) {
	r.Events.Add(event.Event{Kind: kind, Service: k.String(), Object: source, Message: message})
}
