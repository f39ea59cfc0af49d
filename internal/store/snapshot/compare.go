package snapshot

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
)

// plan is what an import is to write.
type plan struct {
	ops      []ipam.Op // in the order in which they must happen
	services []rest.Edit[rest.Record]
	states   []rest.Edit[rest.Override]
	result   Result

	holds map[vip.ServiceKey][]ipam.Resource // after the ops so far
}

// compare finds what is new, what is there already, and what clashes.
func compare(in, present Contents, node string, now time.Time) *plan {
	p := &plan{result: Result{Now: now}, holds: holdings(present.Leases)}
	wants := holdings(in.Leases)
	for _, u := range in.Unreadable {
		p.unread(u, present)
	}
	for _, r := range sorted(in.Leases) {
		p.lease(in.Leases[r], present.Leases, wants, node)
	}
	for _, key := range slices.Sorted(maps.Keys(in.Services)) {
		record := in.Services[key]
		there, exists := present.Services[key]
		switch {
		case !exists:
			record = adopted(record, node, now)
			p.services = append(p.services, rest.Edit[rest.Record]{Key: key, Value: &record})
			p.result.Services++
		case reflect.DeepEqual(record.Spec, there.Spec) && maps.Equal(record.Registered, there.Registered):
			p.result.Same++
		default:
			by := ""
			if there.Node != "" {
				by = ", through node " + there.Node
			}
			p.result.Clashes = append(p.result.Clashes, Clash{Kind: "registration", Name: strings.TrimPrefix(key, vip.DefaultNamespace+"/"), Message: "the store has another service of this name" + by})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(in.States)) {
		o := in.States[key]
		there, exists := present.States[key]
		switch {
		case !exists:
			p.states = append(p.states, rest.Edit[rest.Override]{Key: key, Value: &o})
			p.result.States++
		case there.State == o.State:
			p.result.Same++
		default:
			p.result.Clashes = append(p.result.Clashes, Clash{Kind: "state", Name: strings.TrimPrefix(key, vip.DefaultNamespace+"/"),
				Message: fmt.Sprintf("%s in the file, %s in the store", o.State, there.State)})
		}
	}
	return p
}

// unread tells what the export could not read, unless the store has something
// there that it can.
func (p *plan) unread(u Unreadable, present Contents) {
	c := Clash{Kind: u.Kind, Name: strings.TrimPrefix(u.Key, vip.DefaultNamespace+"/"), Service: strings.Join(u.Services, ", "),
		Message: "the export could not read it: " + u.Message}
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
	p.result.Clashes = append(p.result.Clashes, c)
}

// otherwise finds a holder of l that holds something in the store which the
// document doesn't know it to hold: it has been given something else there.
func (p *plan) otherwise(l ipam.Lease, wants map[vip.ServiceKey][]ipam.Resource) (vip.ServiceKey, ipam.Resource, bool) {
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

// lease decides on one lease of the document.
func (p *plan) lease(l ipam.Lease, present map[ipam.Resource]ipam.Lease, wants map[vip.ServiceKey][]ipam.Resource, node string) {
	there, exists := present[l.Resource]
	clash := func(format string, args ...any) {
		p.result.Clashes = append(p.result.Clashes,
			Clash{Kind: "lease", Name: l.Resource.String(), Service: holdersOf(l), Message: fmt.Sprintf(format, args...)})
	}
	new := l.Holders // those that the store doesn't have on it
	switch {
	case l.State == ipam.Cooling && exists && there.State == ipam.Cooling && isLast(there, l):
		p.result.Same++
		return
	case l.State == ipam.Cooling && (exists || !l.Until.After(vip.InstantOf(p.result.Now))):
		p.result.Ended++
		return
	case exists && there.State == ipam.Blocked:
		clash("%s", there.Reason)
		return
	case exists && there.State == ipam.Cooling && !isLast(there, l):
		clash("in the store it cools down until %s, after %s", there.Until.Time().Format(time.RFC3339), holdersOf(there))
		return
	case exists && there.State == ipam.Held:
		new = nil
		for _, h := range l.Holders {
			i := slices.IndexFunc(there.Holders, func(g ipam.Holder) bool { return g.Service == h.Service })
			switch {
			case i < 0 && (there.ShareKey == "" || there.ShareKey != l.ShareKey || overlaps(there, h)):
				clash("the store has it for %s", holdersOf(there))
				return
			case i < 0:
				new = append(new, h)
			case there.Holders[i].Port != h.Port || !slices.Equal(there.Holders[i].Ports, h.Ports):
				clash("in the store, %s has it for other ports", h.Service)
				return
			}
		}
		if len(new) == 0 {
			p.result.Same++
			return
		}
	}
	if service, other, found := p.otherwise(l, wants); found {
		if at := present[other]; at.State == ipam.Blocked {
			clash("in the store, %s holds %s, whose lease can't be read: %s", service, other, at.Reason)
			return
		}
		clash("in the store, %s holds %s", service, other)
		return
	}
	p.result.Leases++
	var old *ipam.Lease
	base := l
	base.Holders = nil
	if exists {
		old = &there
		if there.State == ipam.Held {
			base = there
		}
	}
	if l.State == ipam.Cooling {
		base.Holders = onNode(l.Holders, node)
		p.ops = append(p.ops, ipam.Op{Old: old, New: &base})
		return
	}
	// They come one by one, for each op claims for one service.
	for _, h := range onNode(new, node) {
		next := base
		next.Holders = append(slices.Clone(base.Holders), h)
		p.ops = append(p.ops, ipam.Op{Old: old, New: &next, Claim: &ipam.Claim{Service: h.Service, Holds: slices.Clone(p.holds[h.Service])}})
		if !slices.Contains(p.holds[h.Service], l.Resource) {
			p.holds[h.Service] = append(p.holds[h.Service], l.Resource)
		}
		old, base = &next, next
	}
}

func onNode(in []ipam.Holder, node string) []ipam.Holder {
	out := slices.Clone(in)
	for i := range out {
		out[i].Node = node
	}
	return out
}

// overlaps reports whether a holder has ports that another has on a shared
// address already.
func overlaps(there ipam.Lease, h ipam.Holder) bool {
	for _, g := range there.Holders {
		for _, a := range g.Ports {
			if slices.ContainsFunc(h.Ports, a.Overlaps) {
				return true
			}
		}
	}
	return false
}

// adopted is a registration as a store keeps it that is node's now; with no
// node, as one host's own store does.
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
		if out.Keepers == nil {
			out.Keepers = map[string]string{}
		}
		out.Keepers[id] = node
	}
	return out
}

// holdings are what each service holds, also where the lease can't be read.
func holdings(leases map[ipam.Resource]ipam.Lease) map[vip.ServiceKey][]ipam.Resource {
	out := map[vip.ServiceKey][]ipam.Resource{}
	for r, l := range leases {
		if l.State == ipam.Cooling {
			continue
		}
		for _, h := range l.Holders {
			out[h.Service] = append(out[h.Service], r)
		}
	}
	return out
}

// isLast reports whether a lease that cools down did so after the one holder of
// l, which may have it back.
func isLast(cooling, l ipam.Lease) bool {
	return len(l.Holders) == 1 && len(cooling.Holders) == 1 && cooling.Holders[0].Service == l.Holders[0].Service
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
