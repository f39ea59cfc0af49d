package leasetable

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// Trial tries ops on a table, one after the other, without changing it. Each op sees the
// effect of those before it. An op costs O(holders of its resource + holdings of its claimer).
type Trial struct {
	Changes map[ipam.Resource]*ipam.Lease // the result of the ops; nil is a removal
	table   *Table
	held    map[vip.ServiceKey][]ipam.Resource
}

// NewTrial returns a trial without ops, with room for n.
func NewTrial(table *Table, n int) *Trial {
	return &Trial{
		table:   table,
		Changes: make(map[ipam.Resource]*ipam.Lease, n),
		held:    make(map[vip.ServiceKey][]ipam.Resource, n),
	}
}

// Get returns a lease with the ops so far applied.
func (t *Trial) Get(r ipam.Resource) *ipam.Lease {
	if l, changed := t.Changes[r]; changed {
		return l
	}
	return t.table.Get(r)
}

// Held returns what a service holds with the ops so far applied. The caller must not change it.
func (t *Trial) Held(k vip.ServiceKey) []ipam.Resource {
	if list, changed := t.held[k]; changed {
		return list
	}
	return t.table.Held(k)
}

// Try applies an op if its conditions hold, and otherwise returns why not: a
// *ipam.ConflictError if the lease or the claimer's holdings have changed.
func (t *Trial) Try(op *ipam.Op) error {
	if err := Check(op); err != nil {
		return err
	}
	r := op.Resource()
	now := t.Get(r)
	if (now == nil) != (op.Old == nil) || now != nil && (!now.Equal(*op.Old) || now.State == ipam.Blocked) {
		return &ipam.ConflictError{Resource: r, Actual: now}
	}
	if op.Claim != nil && !SameSet(op.Claim.Holds, t.Held(op.Claim.Service)) {
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

// hold records whether a service holds a resource.
func (t *Trial) hold(k vip.ServiceKey, r ipam.Resource, holds bool) {
	list := t.Held(k)
	if holds {
		list = append(list, r)
	} else if i := slices.Index(list, r); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	t.held[k] = list
}

// others returns the resources except r that a claim names or that its service holds.
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

// Check returns an error if an op is malformed.
func Check(op *ipam.Op) error {
	switch r := op.Resource(); {
	case r == (ipam.Resource{}) || op.Old != nil && op.Old.Resource != r:
		return errors.New("commit: op must name one resource")
	case op.New != nil && op.New.State == ipam.Blocked:
		return fmt.Errorf("commit: op must not block %s", r)
	case op.Claim != nil && (op.New == nil || op.New.HeldBy(op.Claim.Service) < 0):
		return fmt.Errorf("commit: op with a claim of %s does not give it %s", op.Claim.Service, r)
	case count(Lost(op.Old, op.New))+count(Lost(op.New, op.Old)) > ipam.MaxHolders:
		return fmt.Errorf("commit: op changes more than %d holders of %s", ipam.MaxHolders, r)
	}
	return nil
}

func count(services iter.Seq[vip.ServiceKey]) (n int) {
	for range services {
		n++
	}
	return n
}

// SameSet reports whether two lists without duplicates have the same members. Usually they
// are in the same order.
func SameSet(a, b []ipam.Resource) bool {
	return slices.Equal(a, b) || len(a) == len(b) && !slices.ContainsFunc(a, func(r ipam.Resource) bool { return !slices.Contains(b, r) })
}
