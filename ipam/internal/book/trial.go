package book

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Trial is ops tried on leases, one after the other, without changing them.
// What one op does the next ones see. An op costs O(the holders of its resource
// and what its claimer holds).
type Trial struct {
	Changes map[ipam.Resource]*ipam.Lease // what the ops come to; nil is a removal
	leases  *Leases
	held    map[vip.ServiceKey][]ipam.Resource
}

// NewTrial returns a trial of no ops yet, with room for n.
func NewTrial(l *Leases, n int) *Trial {
	return &Trial{
		leases:  l,
		Changes: make(map[ipam.Resource]*ipam.Lease, n),
		held:    make(map[vip.ServiceKey][]ipam.Resource, n),
	}
}

// Get returns a lease as the ops so far make it.
func (t *Trial) Get(r ipam.Resource) *ipam.Lease {
	if l, changed := t.Changes[r]; changed {
		return l
	}
	return t.leases.Get(r)
}

// Held returns what a service holds, as the ops so far make it. It must not be
// changed.
func (t *Trial) Held(k vip.ServiceKey) []ipam.Resource {
	if list, changed := t.held[k]; changed {
		return list
	}
	return t.leases.Held(k)
}

// Try notes what an op changes if its conditions hold, and says why they don't:
// with a *ipam.ConflictError where somebody was faster.
func (t *Trial) Try(op *ipam.Op) error {
	r, err := ResourceOf(op)
	if err != nil {
		return err
	}
	now := t.Get(r)
	if (now == nil) != (op.Old == nil) || now != nil && (!now.Equal(*op.Old) || now.State == ipam.Blocked) {
		return &ipam.ConflictError{Resource: r, Actual: now}
	}
	if op.Claim != nil && !sameSet(op.Claim.Holds, t.Held(op.Claim.Service)) {
		return &ipam.ConflictError{Resource: r, Actual: now, Claim: op.Claim, Others: t.others(r, op.Claim)}
	}
	lease := op.New
	for k := range Lost(now, lease) {
		t.hold(k, r, false)
	}
	for k := range Lost(lease, now) {
		t.hold(k, r, true)
	}
	t.Changes[r] = lease
	return nil
}

// hold notes that a service holds a resource, or no longer does.
func (t *Trial) hold(k vip.ServiceKey, r ipam.Resource, holds bool) {
	list := t.Held(k)
	if holds {
		list = append(list, r)
	} else if i := slices.Index(list, r); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	t.held[k] = list
}

// others are the resources but r that a claim is wrong about, or may be.
func (t *Trial) others(r ipam.Resource, c *ipam.Claim) (out []ipam.LeaseChange) {
	for _, list := range [][]ipam.Resource{t.Held(c.Service), c.Holds} {
		for _, o := range list {
			if o != r && !slices.ContainsFunc(out, func(c ipam.LeaseChange) bool { return c.Resource == o }) {
				out = append(out, ipam.LeaseChange{Resource: o, Lease: t.Get(o)})
			}
		}
	}
	return out
}

// ResourceOf returns what an op is about, or what is wrong with the op itself.
func ResourceOf(op *ipam.Op) (ipam.Resource, error) {
	var r ipam.Resource
	switch {
	case op.New != nil:
		r = op.New.Resource
	case op.Old != nil:
		r = op.Old.Resource
	}
	switch {
	case r == (ipam.Resource{}) || op.Old != nil && op.Old.Resource != r:
		return r, errors.New("commit: an op that names no resource, or two")
	case op.New != nil && op.New.State == ipam.Blocked:
		return r, fmt.Errorf("commit: %s can't be blocked, only be found blocked", r)
	case op.Claim != nil && (op.New == nil || op.New.HeldBy(op.Claim.Service) < 0):
		return r, fmt.Errorf("commit: a claim on %s by %s, to whom the op doesn't give it", r, op.Claim.Service)
	case count(Lost(op.Old, op.New))+count(Lost(op.New, op.Old)) > ipam.MaxHolders:
		return r, fmt.Errorf("commit: more than %d holders of %s in one op", ipam.MaxHolders, r)
	}
	return r, nil
}

func count(services iter.Seq[vip.ServiceKey]) (n int) {
	for range services {
		n++
	}
	return n
}

// sameSet reports whether two lists without repetitions have the same members.
// Mostly they are in the same order, too.
func sameSet(a, b []ipam.Resource) bool {
	return slices.Equal(a, b) || len(a) == len(b) && !slices.ContainsFunc(a, func(r ipam.Resource) bool { return !slices.Contains(b, r) })
}
