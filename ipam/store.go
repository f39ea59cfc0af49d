package ipam

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/vip"
)

// Op is one conditional write. It makes New the lease of the resource if the lease is Old and the
// Claim, if any, is right. It adds or removes at most MaxHolders holders.
type Op struct {
	Old   *Lease // nil: the resource has no lease yet
	New   *Lease // nil: remove the lease. The Store keeps it; nobody may change it after the commit
	Claim *Claim // nil: the op adds no holder
	// Err is the Store's answer for this op: a *ConflictError if a condition failed, a
	// *FencedError if the Store holds the op back for now.
	Err error
}

// MaxHolders bounds how many holders one op adds or removes, so that a store can write each one's
// holdings and the lease in one transaction. More holders take several ops.
const MaxHolders = 32

// Claim names the service to which an op gives its resource, and what the service holds before the
// op. The op fails if the service holds anything else by then, so that two allocators never give one
// service two addresses.
type Claim struct {
	Service vip.ServiceKey
	Holds   []Resource // in any order, only held ones; includes the effect of earlier ops of the commit
}

// LeaseChange is one change a Store reports.
type LeaseChange struct {
	Resource Resource
	Lease    *Lease // nil: removed. It is shared; nobody may change it
}

// Store keeps leases durably: boltstore on one host's disk, fleetstore for a fleet. Every Store
// passes the suite storetest.
type Store interface {
	// Commit tries every op, each alone, and sets its Err; ops with a nil Err are durable when it
	// returns. An Err that wraps ErrUnavailable says that the op was not tried or that its outcome
	// is unknown. A returned error wraps ErrUnavailable and says that the Store can't be written:
	// nothing is known to be durable, and the caller must not act on any op. If hosts share the
	// store, some ops may be durable all the same; the feeds then have them.
	Commit(ctx context.Context, ops []Op) error
	// Watch waits until the leases can be read, and returns a feed of them. The error is the context's.
	Watch(ctx context.Context) (Feed, error)
}

// Feed has the leases of a Store and their changes, for one reader.
type Feed interface {
	// TryNext returns the next changes, or none at the end of the feed; at first every lease. The channel is
	// closed at the next change.
	TryNext() (changes []LeaseChange, more <-chan struct{})
	// Close ends the feed.
	Close()
}

// Drain returns all changes of a feed, oldest first, and the channel that is closed at the next one.
func Drain(feed Feed) (all []LeaseChange, more <-chan struct{}) {
	for {
		changes, more := feed.TryNext()
		if len(changes) == 0 {
			return all, more
		}
		all = append(all, changes...)
	}
}

// ErrUnavailable says that a store can't be written now and that trying again may help. Stores wrap
// it around the cause: a full disk, an unreachable server.
var ErrUnavailable = errors.New("lease store not available")

// ErrSlow says, together with ErrUnavailable, that the store is reachable but takes too long.
var ErrSlow = errors.New("the store is slow")

// FencedError says that a store holds back the ops that concern a service, because its records of
// the service disagree or can't be read. Nothing was written; trying again later helps.
type FencedError struct {
	Service vip.ServiceKey
	Why     string // names the place
	Hint    string
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("what service %s holds can't be changed now: %s", e.Service, e.Why)
}

// ConflictError says that a resource's lease is not the one that the op expected, or that the op's
// claim was wrong.
type ConflictError struct {
	Resource Resource
	Actual   *Lease // nil: none
	// Claim is set if the claim was wrong. Others are then all other resources that the service
	// holds or that the claim names, with their leases.
	Claim  *Claim
	Others []LeaseChange
}

func (e *ConflictError) Error() string {
	switch {
	case e.Actual != nil && e.Actual.State == Blocked:
		return fmt.Sprintf("%s is blocked: %s", e.Resource, e.Actual.Reason)
	case e.Claim != nil:
		return fmt.Sprintf("what service %s holds changed meanwhile", e.Claim.Service)
	case e.Actual != nil && e.Actual.State == Reserved:
		return fmt.Sprintf("%s is reserved", e.Resource)
	case e.Actual == nil || len(e.Actual.Holders) == 0:
		return fmt.Sprintf("%s changed meanwhile", e.Resource)
	}
	return fmt.Sprintf("%s is held by %s", e.Resource, e.Actual.Holders[0].Service)
}

// Resource returns the resource that the op changes; zero if it has neither Old nor New.
func (o *Op) Resource() Resource {
	switch {
	case o.New != nil:
		return o.New.Resource
	case o.Old != nil:
		return o.Old.Resource
	}
	return Resource{}
}

// Gain returns the ops that create a lease, each within MaxHolders. They claim nothing.
func Gain(l Lease) []Op {
	var ops []Op
	var old *Lease
	for n := min(MaxHolders, len(l.Holders)); ; n = min(n+MaxHolders, len(l.Holders)) {
		next := l
		next.Holders = l.Holders[:n:n]
		ops = append(ops, Op{Old: old, New: &next})
		if old = &next; n == len(l.Holders) {
			return ops
		}
	}
}

// Loss returns the ops that remove a lease, each within MaxHolders.
func Loss(l Lease) []Op {
	var ops []Op
	for len(l.Holders) > MaxHolders {
		next := l
		next.Holders = l.Holders[MaxHolders:]
		ops = append(ops, Op{Old: new(l), New: &next})
		l = next
	}
	return append(ops, Op{Old: new(l)})
}
