// Package ipam gives out virtual addresses and node ports, and is the only one
// that does.
//
// In come services, pools and what must be kept clear of (pod ranges, the
// host's own addresses); out come allocations and the table of leases. A lease
// is durable in a Store before anyone sees it, and sticky: a service gets back
// what it held, across restarts, pool edits and re-registrations within the
// cooling time. Nothing on the path of one service costs more with more leases.
// The package never moves a service because of what others do, and never
// touches the network. docs/ipam.md says how it looks to users.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Version orders the changes of a Store. 0 is before everything.
type Version uint64

// Resource is what can be leased: an address, or a node port.
type Resource struct {
	Addr     netip.Addr   // set for an address
	NodePort uint16       // set for a node port
	Protocol vip.Protocol // set for a node port
}

// String returns "192.0.2.10" or "node port 30080/tcp".
func (r Resource) String() string {
	if r.Addr.IsValid() {
		return r.Addr.String()
	}
	return fmt.Sprintf("node port %d/%s", r.NodePort, r.Protocol)
}

// Holder is one service's claim on a resource. Several holders of one address
// have the same non-empty share key.
type Holder struct {
	Service vip.ServiceKey
	Source  string      // the source that the service came from
	Port    vip.PortKey // for a node port: the service port it stands for, or vip.HealthPortKey
	// Ports are those that the service has on a shared address, in order; nobody
	// else may have one that overlaps them there. Empty on an address that is not for sharing.
	Ports []vip.PortKey
	// Node is the host that last wrote this claim, where hosts share a store; "" on a
	// store of one host.
	Node string
}

// LeaseState is where a lease is in its life. The zero LeaseState is none.
type LeaseState uint8

// Held leases have holders. Cooling ones have none left and wait until Until
// before anyone but the last holder may have them. Blocked is no lease: the
// store has something under the resource that it can't read and won't touch, so
// nobody gets the resource. A blocked one has a Reason, and as Holders the services
// that the store knows to hold the resource all the same, with nothing but their
// names. It counts as held by them wherever what a service holds is counted.
const (
	Held LeaseState = iota + 1
	Cooling
	Blocked
)

var leaseStates = [...]string{"", Held: "held", Cooling: "cooling", Blocked: "blocked"}

// String returns "held", "cooling" or "blocked", "" for none.
func (s LeaseState) String() string { return leaseStates[s] }

// Lease is one resource given out. A lease is durable before anyone sees it.
type Lease struct {
	Resource Resource
	Pool     string
	State    LeaseState
	ShareKey string
	Holders  []Holder    // oldest first; of a cooling lease, the last holder
	Since    vip.Instant // when the first holder got it
	Until    vip.Instant // of a cooling lease: when it is free for all
	Reason   string      // of a blocked one: what is there instead, and where
}

// Op is one conditional write: make the resource's lease New, provided that it
// is Old now, and that the Claim, if there is one, is right. It adds or takes
// away at most MaxHolders holders.
type Op struct {
	Old   *Lease // nil: no lease on the resource yet
	New   *Lease // nil: remove the lease. Nobody changes it from the commit on: the Store keeps it
	Claim *Claim // nil: the op gives the resource to nobody who had it not
	// Err is the Store's answer for this op alone: a *ConflictError when a condition
	// failed, a *FencedError when it is held back for now.
	Err error
}

// MaxHolders bounds how many holders one op adds or takes away, so that a store
// can write each of them down beside the lease in one step. More are several ops.
const MaxHolders = 32

// Claim says whom an op gives its resource, and what the service holds before.
// The op fails when the service holds anything else by then, so that two
// allocators that don't know of each other never give one service two addresses.
type Claim struct {
	Service vip.ServiceKey
	Holds   []Resource // in any order, cooling ones not among them; ops of a commit see each other
}

// LeaseChange is one change a Store reports.
type LeaseChange struct {
	Resource Resource
	Lease    *Lease // nil: removed; shared, so nobody changes it
}

// Store keeps leases durably. boltstore keeps them on one host's disk,
// consulstore for a fleet; storetest is the suite that every Store passes.
type Store interface {
	// Commit tries every op, each alone, and sets its Err; those with a nil Err
	// are durable when it returns. An Err that wraps ErrUnavailable says that the op's
	// turn didn't come, or that nothing is known of it. The error it returns means that the Store as
	// a whole can't be written (it wraps ErrUnavailable): nothing is known to be
	// durable, and no op may be acted on. Where hosts share a store, some may have
	// happened all the same; Changes tells.
	Commit(ctx context.Context, ops []Op) error
	// Changes returns what changed after since (0: every lease), newest state
	// once a resource, and the version to ask from next. With nothing new it
	// blocks until there is, or the context ends. ErrCompacted says that since is
	// too long ago to tell what was removed: ask from 0, and take what is not
	// mentioned as removed.
	Changes(ctx context.Context, since Version) ([]LeaseChange, Version, error)
}

// ErrUnavailable says that a store can't be written now; trying again may
// help. Stores wrap it around the cause (a full disk, a server away).
var ErrUnavailable = errors.New("lease store not available")

// ErrSlow says, beside ErrUnavailable, that the store is there and takes too long.
var ErrSlow = errors.New("the store is slow")

// ErrCompacted says that a Store no longer knows what was removed since then.
var ErrCompacted = errors.New("lease changes are asked for from too long ago")

// FencedError says that a store can be written, and yet holds back what concerns a
// service: what it has of that doesn't fit together or can't be read. Nothing has
// happened, and asking again later helps.
type FencedError struct {
	Service vip.ServiceKey
	Why     string // names the place
	Hint    string // what to do, or to wait for
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("what service %s holds can't be changed now: %s", e.Service, e.Why)
}

// ConflictError says that a resource's lease is not what the op expected, or
// that its claim was wrong.
type ConflictError struct {
	Resource Resource
	Actual   *Lease // nil: there is none
	// Claim is set when the claim was wrong. Others are then all other resources
	// that the service holds or was taken to hold, as they are.
	Claim  *Claim
	Others []LeaseChange
}

func (e *ConflictError) Error() string {
	switch {
	case e.Actual != nil && e.Actual.State == Blocked:
		return fmt.Sprintf("%s is blocked: %s", e.Resource, e.Actual.Reason)
	case e.Claim != nil:
		return fmt.Sprintf("what service %s holds changed meanwhile", e.Claim.Service)
	case e.Actual == nil || len(e.Actual.Holders) == 0:
		return fmt.Sprintf("%s changed meanwhile", e.Resource)
	}
	return fmt.Sprintf("%s is held by %s", e.Resource, e.Actual.Holders[0].Service)
}
