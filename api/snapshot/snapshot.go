// Package snapshot saves the leases, registrations and overrides of a store as one document, and
// restores a document into another store. Moving between stores thus keeps every address.
//
// Its inputs are the contents of stores and documents. Its outputs are documents and conditional
// writes through the same interfaces as the agent's writes. A restore first finds all conflicts
// with the store, and writes nothing if there is one. It never overwrites a value that another host
// wrote in the meantime. The package allocates no address and accesses neither Consul nor the disk.
package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
)

// Contents is everything in a store.
type Contents struct {
	Leases   map[ipam.Resource]ipam.Lease
	Services map[string]rest.Record        // by "namespace/name"
	States   map[string]overrides.Override // by "namespace/name/backend"; without those that have ended
	// Unreadable are values that can't be read. A store's unreadable leases are
	// Blocked leases instead; a document lists them here.
	Unreadable []Unreadable
}

// Unreadable is one value of a store that can't be read.
type Unreadable struct {
	Kind     string   `json:"kind"`               // as in Conflict
	Key      string   `json:"key"`                // as in the store: "192.0.2.10", "node-port/tcp/30080", "namespace/name", "namespace/name/backend"
	Services []string `json:"services,omitempty"` // the holders of the lease
	Message  string   `json:"message"`            // its place and the error
}

// Len returns the number of readable values.
func (c Contents) Len() int { return len(c.Leases) + len(c.Services) + len(c.States) }

// Empty reports whether there is no readable value.
func (c Contents) Empty() bool { return c.Len() == 0 }

// Stores are the stores that a restore writes to.
type Stores struct {
	Leases   ipam.Store
	Services registry.Store[rest.Record]
	States   registry.Store[overrides.Override]
	// Pending has the overrides that are stored on this host only, until they are merged with States;
	// nil for a store of one host. A restore doesn't write to it.
	Pending *registry.Journal[overrides.Override]
	// Node is written as the node of holders and registrations; "" for a store of one
	// host.
	Node string
}

// ContentsOf reads everything in stores, as it is in effect on this host: an override that waits for
// its merge replaces an earlier one. It uses the first feeds of the registries, so the caller must not
// have watched them.
func ContentsOf(ctx context.Context, s Stores) (Contents, error) {
	out := Contents{Leases: map[ipam.Resource]ipam.Lease{}, Services: map[string]rest.Record{}, States: map[string]overrides.Override{}}
	feed, err := s.Leases.Watch(ctx)
	if err != nil {
		return out, fmt.Errorf("read leases: %w", err)
	}
	defer feed.Close()
	leases, _ := ipam.Drain(feed)
	for _, c := range leases {
		if c.Lease != nil {
			out.Leases[c.Resource] = *c.Lease
		}
	}
	readAll(s.Services, out.Services)
	readAll(s.States, out.States)
	states := s.States
	if s.Pending != nil {
		states = s.Pending // for its problems
		for _, item := range s.Pending.Pending() {
			there, stored := out.States[item.Key]
			if item.Value.Replaces(there, stored) {
				out.States[item.Key] = item.Value
			}
		}
	}
	maps.DeleteFunc(out.States, func(_ string, o overrides.Override) bool { return o.Ended() })
	out.Unreadable = append(problemsOf("registration", s.Services), problemsOf("state", states)...)
	return out, nil
}

// problemsOf lists the values that a registry can't read.
func problemsOf[V any](kind string, from registry.Store[V]) (out []Unreadable) {
	for _, p := range from.Problems() {
		u := Unreadable{Kind: kind, Key: p.Place, Message: p.Message}
		if _, below, found := strings.Cut(p.Place, "/tree/"); found {
			_, u.Key, _ = strings.Cut(below, "/")
			u.Message = p.Place + ": " + p.Message
		}
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Unreadable) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func readAll[V any](from registry.Store[V], into map[string]V) {
	for feed := from.Watch(); ; {
		items, _ := feed.TryNext()
		if len(items) == 0 {
			return
		}
		for _, item := range items {
			if item.Version == 0 {
				delete(into, item.Key)
			} else {
				into[item.Key] = item.Value
			}
		}
	}
}

// Result counts what a restore wrote, or would write.
type Result struct {
	Leases    int        `json:"leases"`
	Services  int        `json:"services"`  // registrations
	States    int        `json:"states"`    // backend states set by operators
	Same      int        `json:"same"`      // equal in the store
	Ended     int        `json:"ended"`     // leases whose cooldown is over, or that are in use again
	Conflicts []Conflict `json:"conflicts"` // skipped values, or the reason why nothing was written
}

// Conflict is a value of a document that differs in the store.
type Conflict struct {
	Kind    string `json:"kind"`              // "lease", "registration" or "state"
	Name    string `json:"name"`              // the address or node port; the service; the backend
	Service string `json:"service,omitempty"` // the holder in the document; leases only
	Message string `json:"message"`
}

func (c Conflict) String() string {
	if c.Service != "" {
		return fmt.Sprintf("%s %s of %s: %s", c.Kind, c.Name, c.Service, c.Message)
	}
	return fmt.Sprintf("%s %s: %s", c.Kind, c.Name, c.Message)
}

// Restore writes the contents of a document into stores with the contents present. It writes only
// differences, and nothing if there is a conflict, unless skip is set. It stops at the first error.
// Earlier writes remain, and the same restore can be repeated. A concurrent write of another host
// becomes a conflict in the result.
func Restore(ctx context.Context, in, present Contents, to Stores, skip bool, now time.Time) (Result, error) {
	p := newPlan(in, present, to.Node, now)
	if len(p.result.Conflicts) > 0 && !skip {
		p.result.Leases, p.result.Services, p.result.States = 0, 0, 0
		return p.result, nil
	}
	err := p.write(ctx, to)
	return p.result, err
}

// Compare returns the result that Restore would have without concurrent writes.
func Compare(in, present Contents, node string, now time.Time) Result {
	return newPlan(in, present, node, now).result
}

// Empty removes the contents present from stores that no other host uses.
func Empty(ctx context.Context, present Contents, from Stores) error {
	ops := make([]ipam.Op, 0, len(present.Leases))
	for _, l := range present.Leases {
		ops = append(ops, ipam.Loss(l)...)
	}
	if err := from.Leases.Commit(ctx, ops); err != nil {
		return fmt.Errorf("remove leases: %w", err)
	}
	for i := range ops {
		if ops[i].Err != nil {
			return fmt.Errorf("remove the lease of %s: %w", ops[i].Old.Resource, ops[i].Err)
		}
	}
	if err := removeAll(ctx, present.Services, from.Services); err != nil {
		return fmt.Errorf("remove registrations: %w", err)
	}
	if err := removeAll(ctx, present.States, from.States); err != nil {
		return fmt.Errorf("remove backends' states: %w", err)
	}
	return nil
}

func removeAll[V any](ctx context.Context, present map[string]V, from registry.Store[V]) error {
	var edits []registry.Edit[V]
	for key := range present {
		edits = append(edits, registry.Edit[V]{Key: key, Version: from.Version(key)})
	}
	errs, err := commitEach(ctx, edits, from)
	return cmp.Or(err, cmp.Or(errs...))
}
