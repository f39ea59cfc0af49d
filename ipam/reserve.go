package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/ipam/internal/pool"
	"github.com/ironvip/ironvip/vip"
)

// Reserving says what to reserve: an address, or any free one of a pool.
type Reserving struct {
	Addr   netip.Addr     // invalid: one of Pool
	Pool   string         // without Addr
	Family vip.Family     // of the address from Pool; zero: the pool's, IPv4 if it has both
	For    vip.ServiceKey // zero: for any service that requests the address by its number
}

// ErrNotReserved says that an address has no lease to remove a reservation from.
var ErrNotReserved = errors.New("not reserved")

// Reserve keeps an address for a service, which need not exist, or for nobody yet, and returns its
// lease. An address that is in use can be reserved only for a service that holds it or that it cools
// down for. The error is a vip.Problem that names the cause, or wraps ErrUnavailable or a
// *ConflictError, and then trying again may help. It costs O(the pool's ranges).
func (a *Allocator) Reserve(ctx context.Context, what Reserving) (Lease, error) {
	a.write.Lock()
	defer a.write.Unlock()
	for try := 1; ; try++ {
		op, problem := newPlan(&a.state, a.now(), 1).reserve(what)
		if problem.Code != "" {
			return Lease{}, problem
		}
		if err := a.commitOne(ctx, &op); err == nil {
			a.reservationChanged("address_reserved", op.New, reservedMessage(op.New))
			return *op.New, nil
		} else if !isConflict(err) || try == tries {
			return Lease{}, fmt.Errorf("reserve %s: %w", op.New.Resource, err)
		}
	}
}

// Unreserve removes the reservation of an address. The address is free afterwards, unless a service
// holds it: that keeps it, as if it had never been reserved. The error is ErrNotReserved if the
// address has no lease, or as those of Reserve. The result is the lease, without a state if the
// address is free now.
func (a *Allocator) Unreserve(ctx context.Context, addr netip.Addr) (Lease, error) {
	a.write.Lock()
	defer a.write.Unlock()
	for try := 1; ; try++ {
		op, err := a.unreserve(Resource{Addr: addr})
		if err != nil {
			return Lease{}, err
		}
		if err := a.commitOne(ctx, &op); err == nil {
			message := fmt.Sprintf("reservation of %s is released", addr)
			a.reservationChanged("reservation_released", op.Old, message)
			if op.New == nil {
				return Lease{Resource: op.Old.Resource, Pool: op.Old.Pool, Since: vip.InstantOf(a.now())}, nil
			}
			return *op.New, nil
		} else if !isConflict(err) || try == tries {
			return Lease{}, fmt.Errorf("release the reservation of %s: %w", addr, err)
		}
	}
}

// unreserve returns the op that removes the reservation of a resource.
func (a *Allocator) unreserve(r Resource) (Op, error) {
	if u, unreadable := a.unreadable[r]; unreadable {
		return Op{}, reserveTaken(fmt.Sprintf("lease of %s unreadable: %s", r, u.stored.Reason), "fix or remove that key")
	}
	l, there := a.lease(r)
	switch {
	case !there:
		return Op{}, ErrNotReserved
	case l.Reservation == nil && l.State == Held:
		return Op{}, reserveTaken(heldMessage(&l)+", and is not reserved", "delete the service, or have it request another address")
	case l.Reservation == nil:
		return Op{}, reserveTaken(r.String()+" is not reserved: it "+cooledMessage(&l)[len(r.String())+1:], "wait until then")
	case l.State == Reserved:
		return Op{Old: &l}, nil
	}
	now := l
	now.Reservation = nil
	return Op{Old: &l, New: &now}, nil
}

// commitOne commits one op. The caller holds write.
func (a *Allocator) commitOne(ctx context.Context, op *Op) error {
	ops := []Op{*op}
	if err := a.commit(ctx, ops, a.store.Commit); err != nil {
		return err
	}
	return ops[0].Err
}

// reservationChanged publishes that the reservation of l was made or released.
func (a *Allocator) reservationChanged(kind string, l *Lease, message string) {
	a.mu.Lock()
	a.recallHolders(l)
	a.mu.Unlock()
	e := event.Event{Kind: kind, Object: l.Resource.String(), Message: message}
	if k := l.Reservation.For; k != (vip.ServiceKey{}) {
		e.Service = k.String()
	}
	a.events.Add(e)
}

// reserve returns the op for a reservation.
func (p *plan) reserve(what Reserving) (Op, vip.Problem) {
	mark := &Reservation{For: what.For, Since: p.now}
	if !what.Addr.IsValid() {
		return p.reserveAny(what, mark)
	}
	r := Resource{Addr: what.Addr}
	if problem, unreadable := p.unreadableProblem(r); unreadable {
		return Op{}, reserveTaken(problem.Message, problem.Hint)
	}
	l, there := p.lease(r)
	switch {
	case l.Reservation != nil:
		return Op{}, reserveTaken(reservedMessage(&l), "release the reservation first")
	case l.State == Held && l.HeldBy(what.For) < 0:
		return Op{}, reserveTaken(heldMessage(&l), "reserve it for that service, or choose another address")
	case l.State == Held:
		now := l
		now.Reservation = mark
		return Op{Old: &l, New: &now}, vip.Problem{}
	case there && !l.KeptFor(what.For):
		return Op{}, reserveTaken(cooledMessage(&l), "wait, or reserve it for that service")
	}
	from := p.poolOf(what.Addr)
	switch {
	case from == nil:
		return Op{}, vip.Problem{
			Code: vip.CodeOutsidePool, Field: "address", Message: fmt.Sprintf("%s is in no pool", what.Addr),
			Hint: "choose an address of a pool, or add a pool for it",
		}
	case !from.Allows(what.Addr):
		problem := from.Refusal(what.Addr)
		problem.Field, problem.Hint = "address", "choose another address"
		return Op{}, problem
	}
	op := Op{New: Lease{Resource: r, Pool: from.Name, Reservation: mark}.reserved(l.holder(what.For))}
	if there {
		op.Old = &l
	}
	return op, vip.Problem{}
}

// reserveAny returns the op for a reservation of a free address of a pool.
func (p *plan) reserveAny(what Reserving, mark *Reservation) (Op, vip.Problem) {
	from := p.pool(what.Pool)
	if from == nil {
		return Op{}, vip.Problem{Code: vip.CodeNoPool, Field: "pool", Message: fmt.Sprintf("there is no pool %q", what.Pool), Hint: p.poolHint()}
	}
	f := what.Family
	if f == 0 {
		f = from.Families()[0] // a pool has a range
	}
	in := from.Ranges[f]
	if in == nil {
		return Op{}, vip.Problem{
			Code: vip.CodeNoPool, Field: "family", Message: fmt.Sprintf("pool %q has no %s range", from.Name, familyName(f)), Hint: "choose the other family, or add a range to the pool",
		}
	}
	op, ok := p.free(in, p.index.addrs[f], func(k numbers.Number) Resource { return Resource{Addr: in.Addr(k)} }, Lease{Pool: from.Name, Reservation: mark})
	if !ok {
		problem := p.poolFull(from, f)
		problem.Field = "pool"
		return Op{}, problem
	}
	op.New = op.New.reserved(nil)
	return op, vip.Problem{}
}

// poolOf returns the pool with a range that has the address, or nil.
func (s *state) poolOf(addr netip.Addr) *pool.Pool {
	for _, from := range s.pools {
		if from.Covers(addr) {
			return from
		}
	}
	return nil
}

func reserveTaken(message, hint string) vip.Problem {
	return vip.Problem{Code: vip.CodeAddressTaken, Field: "address", Message: message, Hint: hint}
}

// heldMessage says who holds an address.
func heldMessage(l *Lease) string {
	h := l.Holders[0]
	return fmt.Sprintf("%s is held by service %q of source %s since %s", l.Resource, h.Service, h.Source, l.Since.Time().Format(time.RFC3339))
}

// reservedMessage says for whom an address is reserved.
func reservedMessage(l *Lease) string {
	who := ""
	if k := l.Reservation.For; k != (vip.ServiceKey{}) {
		who = fmt.Sprintf(" for service %q", k)
	}
	return fmt.Sprintf("%s is reserved%s since %s", l.Resource, who, l.Reservation.Since.Time().Format(time.RFC3339))
}
