// Package snapshot takes what a store keeps of a host or a fleet (leases,
// registrations, operators' states) out of it as one document, and writes such a
// document into another store, so that moving between stores keeps every address.
//
// In come the contents of stores and documents; out go documents, and
// conditional writes through the same contracts that the agent writes through.
// An import first finds everything that clashes with what the store has, and
// writes nothing when anything does; what somebody else writes meanwhile is not
// overwritten. The package gives out no address, and knows neither Consul nor
// the disk.
package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/sources/rest"
)

// Contents is all that a store keeps.
type Contents struct {
	Leases   map[ipam.Resource]ipam.Lease
	Services map[string]rest.Record   // by "namespace/name"
	States   map[string]rest.Override // by "namespace/name/backend"
	// Unreadable is what is there and can't be read. Of leases it is what was so where a
	// document comes from; a store's own are Blocked.
	Unreadable []Unreadable
}

// Unreadable is one thing that a store has and can't read.
type Unreadable struct {
	Kind     string   `json:"kind"`               // as a Clash's
	Key      string   `json:"key"`                // as stores have it: "192.0.2.10", "node-port/tcp/30080", "namespace/name", "namespace/name/backend"
	Services []string `json:"services,omitempty"` // that hold the lease all the same
	Message  string   `json:"message"`            // where it is, and what is wrong
}

// Len returns how many things there are.
func (c Contents) Len() int { return len(c.Leases) + len(c.Services) + len(c.States) }

// Empty reports whether there is nothing at all.
func (c Contents) Empty() bool { return c.Len() == 0 }

// Stores is where an import writes.
type Stores struct {
	Leases   ipam.Store
	Services rest.Registry[rest.Record]
	States   rest.Registry[rest.Override]
	// Node is what claims and registrations are written as; "" for a store that is
	// one host's own.
	Node string
}

// ContentsOf reads everything that stores have. It takes the registries' first
// feeds: nobody else may follow them before.
func ContentsOf(ctx context.Context, s Stores) (Contents, error) {
	out := Contents{Leases: map[ipam.Resource]ipam.Lease{}, Services: map[string]rest.Record{}, States: map[string]rest.Override{}}
	changes, _, err := s.Leases.Changes(ctx, 0)
	if err != nil {
		return out, fmt.Errorf("read leases: %w", err)
	}
	for _, c := range changes {
		if c.Lease != nil {
			out.Leases[c.Resource] = *c.Lease
		}
	}
	readAll(s.Services, out.Services)
	readAll(s.States, out.States)
	out.Unreadable = append(problemsOf("registration", s.Services), problemsOf("state", s.States)...)
	return out, nil
}

// problemsOf lists what a registry can't read.
func problemsOf[V any](kind string, from rest.Registry[V]) (out []Unreadable) {
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

func readAll[V any](from rest.Registry[V], into map[string]V) {
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

// Result is what an import has written, or would write.
type Result struct {
	Leases   int
	Services int
	States   int
	Same     int       // were in the store already
	Ended    int       // leases that cooled down, and are over or in use by now
	Clashes  []Clash   // what was left out, or kept everything from being written
	Now      time.Time // when cooling was looked at
}

// Clash is one thing of a document that the store has otherwise.
type Clash struct {
	Kind    string // "lease", "registration" or "state"
	Name    string // the address or node port; the service; the backend
	Service string // whose it is in the document, "" for all but leases
	Message string
}

func (c Clash) String() string {
	if c.Service != "" {
		return fmt.Sprintf("%s %s of %s: %s", c.Kind, c.Name, c.Service, c.Message)
	}
	return fmt.Sprintf("%s %s: %s", c.Kind, c.Name, c.Message)
}

// Import writes the contents of a document into stores that have present, and
// nothing that they have already. With a clash it writes nothing at all, unless
// skip says to leave out what clashes. It stops at the first error; what was
// written by then stays, and the same import may be done again. What others
// write meanwhile is a clash in the result.
func Import(ctx context.Context, in, present Contents, to Stores, skip bool, now time.Time) (Result, error) {
	p := compare(in, present, to.Node, now)
	if len(p.result.Clashes) > 0 && !skip {
		p.result.Leases, p.result.Services, p.result.States = 0, 0, 0
		return p.result, nil
	}
	err := p.write(ctx, to)
	return p.result, err
}

// Preview returns what Import would do if nobody wrote meanwhile.
func Preview(in, present Contents, node string, now time.Time) Result {
	return compare(in, present, node, now).result
}

// Empty removes everything from stores that have present, which must be nobody
// else's.
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

func removeAll[V any](ctx context.Context, present map[string]V, from rest.Registry[V]) error {
	batches := make([]*rest.Batch[V], 0, len(present))
	for key := range present {
		batches = append(batches, &rest.Batch[V]{Edits: []rest.Edit[V]{{Key: key, Version: from.Version(key)}}})
	}
	if err := from.Commit(ctx, batches); err != nil {
		return err
	}
	for _, b := range batches {
		if b.Err != nil {
			return b.Err
		}
	}
	return nil
}
