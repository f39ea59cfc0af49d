package snapshot

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// plan is what a restore writes.
type plan struct {
	ops      []ipam.Op // in the order in which they must happen
	services []registry.Edit[rest.Record]
	states   []registry.Edit[overrides.Override]
	result   Result
	now      time.Time // the time for cooldowns

	holds map[vip.ServiceKey][]ipam.Resource // after the ops so far
}

// newPlan finds the new values of in, its values that are present already, and conflicts.
func newPlan(in, present Contents, node string, now time.Time) *plan {
	p := &plan{now: now, result: Result{Conflicts: []Conflict{}}, holds: holdings(present.Leases)}
	wants := holdings(in.Leases)
	for _, u := range in.Unreadable {
		p.unread(u, present)
	}
	for _, r := range slices.SortedFunc(maps.Keys(in.Leases), ipam.Resource.Compare) {
		p.lease(in.Leases[r], present.Leases, wants, node)
	}
	p.services = compareAll(p, "registration", &p.result.Services, in.Services, present.Services,
		func(r rest.Record) rest.Record { return adopted(r, node, now) },
		func(r, there rest.Record) string {
			switch {
			case reflect.DeepEqual(r.Spec, there.Spec) && maps.Equal(r.Registered, there.Registered):
				return ""
			case there.Node == "":
				return "the store has another service of this name"
			}
			return "the store has another service of this name, through node " + there.Node
		})
	p.states = compareAll(p, "state", &p.result.States, in.States, present.States,
		func(o overrides.Override) overrides.Override { return o },
		func(o, there overrides.Override) string {
			if o.Sets() == there.Sets() {
				return ""
			}
			return fmt.Sprintf("%s in the file, %s in the store", o.Sets(), there.Sets())
		})
	return p
}

// compareAll returns the edits for the values that the store doesn't have, as made makes them, and
// counts them. differs says how a value differs from the one in the store, "" if it doesn't.
func compareAll[V any](p *plan, kind string, count *int, in, present map[string]V, made func(V) V, differs func(in, there V) string) (edits []registry.Edit[V]) {
	for _, key := range slices.Sorted(maps.Keys(in)) {
		there, exists := present[key]
		if !exists {
			edits = append(edits, registry.Edit[V]{Key: key, Value: new(made(in[key]))})
			*count++
		} else if why := differs(in[key], there); why != "" {
			p.conflict(Conflict{Kind: kind, Name: nameOf(key), Message: why})
		} else {
			p.result.Same++
		}
	}
	return edits
}

func (p *plan) conflict(c Conflict) { p.result.Conflicts = append(p.result.Conflicts, c) }

// nameOf returns a key without the default namespace.
func nameOf(key string) string { return strings.TrimPrefix(key, vip.DefaultNamespace+"/") }

// unread reports a value that was unreadable when the snapshot was saved, unless the store has a
// readable one.
func (p *plan) unread(u Unreadable, present Contents) {
	c := Conflict{Kind: u.Kind, Name: nameOf(u.Key), Service: strings.Join(u.Services, ", "),
		Message: "unreadable when saved: " + u.Message}
	var there bool
	switch u.Kind {
	case "lease":
		var r ipam.Resource
		if r.UnmarshalText([]byte(u.Key)) == nil {
			l, exists := present.Leases[r]
			there, c.Name = exists && l.State != ipam.Blocked, r.String()
		}
	case "registration":
		_, there = present.Services[u.Key]
	case "state":
		_, there = present.States[u.Key]
	}
	if there {
		p.result.Same++
		return
	}
	p.conflict(c)
}

// elsewhere finds a holder of l that holds another address or node port in the store,
// which the document doesn't list for it.
func (p *plan) elsewhere(l ipam.Lease, wants map[vip.ServiceKey][]ipam.Resource) (vip.ServiceKey, ipam.Resource, bool) {
	if l.State != ipam.Held {
		return vip.ServiceKey{}, ipam.Resource{}, false
	}
	for _, h := range l.Holders {
		for _, r := range p.holds[h.Service] {
			if !slices.Contains(wants[h.Service], r) {
				return h.Service, r, true
			}
		}
	}
	return vip.ServiceKey{}, ipam.Resource{}, false
}

// lease plans one lease of the document. A lease that the store has is the same one, or a conflict.
func (p *plan) lease(l ipam.Lease, present map[ipam.Resource]ipam.Lease, wants map[vip.ServiceKey][]ipam.Resource, node string) {
	there, exists := present[l.Resource]
	conflict := func(format string, args ...any) {
		p.conflict(Conflict{Kind: "lease", Name: l.Resource.String(), Service: holdersOf(l), Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case exists && isSame(l, there):
		p.result.Same++
		return
	case l.State == ipam.Cooling && (exists || !l.Until.After(vip.InstantOf(p.now))):
		p.result.Ended++
		return
	case exists:
		conflict("%s", stateThere(there))
		return
	}
	if service, other, found := p.elsewhere(l, wants); found {
		if at := present[other]; at.State == ipam.Blocked {
			conflict("in the store, %s holds %s, whose lease can't be read: %s", service, other, at.Reason)
			return
		}
		conflict("in the store, %s holds %s", service, other)
		return
	}
	p.result.Leases++
	l.Holders = onNode(l.Holders, node)
	if l.State != ipam.Held {
		p.ops = append(p.ops, ipam.Op{New: &l})
		return
	}
	// One op per holder: an op claims for one service.
	var old *ipam.Lease
	for i, h := range l.Holders {
		next := l
		next.Holders = slices.Clone(l.Holders[:i+1])
		p.ops = append(p.ops, ipam.Op{Old: old, New: &next, Claim: &ipam.Claim{Service: h.Service, Holds: slices.Clone(p.holds[h.Service])}})
		if !slices.Contains(p.holds[h.Service], l.Resource) {
			p.holds[h.Service] = append(p.holds[h.Service], l.Resource)
		}
		old = &next
	}
}

// isSame reports whether the services of a lease have it in the store in the same way. The nodes that they got
// it through may differ.
func isSame(l, there ipam.Lease) bool {
	return l.State == there.State && (l.Reservation == nil) == (there.Reservation == nil) &&
		(l.Reservation == nil || l.Reservation.For == there.Reservation.For) &&
		slices.EqualFunc(l.Holders, there.Holders, func(a, b ipam.Holder) bool {
			return a.Service == b.Service && a.Port == b.Port && slices.Equal(a.Ports, b.Ports)
		})
}

// stateThere says why an address of the store can't be given to others.
func stateThere(there ipam.Lease) string {
	switch there.State {
	case ipam.Blocked:
		return there.Reason
	case ipam.Cooling:
		return fmt.Sprintf("in the store it cools down until %s, after %s", there.Until.Time().Format(time.RFC3339), holdersOf(there))
	case ipam.Reserved:
		return strings.TrimSuffix("in the store it is reserved for "+holdersOf(there), " for ")
	}
	if there.Reservation != nil {
		return "the store has it for " + holdersOf(there) + ", reserved"
	}
	return "the store has it for " + holdersOf(there)
}

func onNode(in []ipam.Holder, node string) []ipam.Holder {
	out := slices.Clone(in)
	for i := range out {
		out[i].Node = node
	}
	return out
}

// adopted returns a registration that belongs to node; an empty node is the store of
// one host.
func adopted(r rest.Record, node string, now time.Time) rest.Record {
	out := rest.Record{Spec: r.Spec, Registered: r.Registered}
	if node == "" {
		return out
	}
	stated := now.UTC()
	out.Node, out.Stated = node, &stated
	for id, ttl := range r.Registered {
		if ttl == 0 {
			continue
		}
		if out.HeartbeatOwners == nil {
			out.HeartbeatOwners = map[string]string{}
		}
		out.HeartbeatOwners[id] = node
	}
	return out
}

// holdings returns what each service holds, unreadable leases included.
func holdings(leases map[ipam.Resource]ipam.Lease) map[vip.ServiceKey][]ipam.Resource {
	out := map[vip.ServiceKey][]ipam.Resource{}
	for r, l := range leases {
		if l.State == ipam.Cooling || l.State == ipam.Reserved {
			continue
		}
		for _, h := range l.Holders {
			out[h.Service] = append(out[h.Service], r)
		}
	}
	return out
}

func holdersOf(l ipam.Lease) string {
	var names []string
	for _, h := range l.Holders {
		if name := h.Service.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
