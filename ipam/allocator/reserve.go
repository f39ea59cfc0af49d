package allocator

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/plan"
	"github.com/ironvip/ironvip/vip"
)

// Reserve keeps an address for a service, which need not exist, or for nobody yet, and returns its
// lease. An address that is in use can be reserved only for a service that holds it or that it cools
// down for. The error is a vip.Problem that names the cause, or wraps ErrUnavailable or a
// *ConflictError, and then trying again may help. It costs O(the pool's ranges).
func (a *Allocator) Reserve(ctx context.Context, what ipam.Reserving) (ipam.Lease, error) {
	op, err := a.commitOne(ctx, "reserve", func(p *plan.Plan) error { return p.Reserve(what) })
	if err != nil {
		return ipam.Lease{}, err
	}
	a.reservationChanged("address_reserved", op.New, plan.ReservedMessage(op.New))
	return *op.New, nil
}

// Unreserve removes the reservation of an address. The address is free afterwards, unless a service
// holds it: that keeps it, as if it had never been reserved. The error is ErrNotReserved if the
// address has no lease, or as those of Reserve. The result is the lease, without a state if the
// address is free now.
func (a *Allocator) Unreserve(ctx context.Context, addr netip.Addr) (ipam.Lease, error) {
	op, err := a.commitOne(ctx, "release the reservation of", func(p *plan.Plan) error { return p.Unreserve(addr) })
	if err != nil {
		return ipam.Lease{}, err
	}
	a.reservationChanged("reservation_released", op.Old, fmt.Sprintf("reservation of %s is released", addr))
	if op.New == nil {
		return ipam.Lease{Resource: op.Old.Resource, Pool: op.Old.Pool, Since: vip.InstantOf(a.now())}, nil
	}
	return *op.New, nil
}

// commitOne commits a plan of one op, and plans it again after a conflict.
func (a *Allocator) commitOne(ctx context.Context, what string, add func(*plan.Plan) error) (ipam.Op, error) {
	a.write.Lock()
	defer a.write.Unlock()
	for try := 1; ; try++ {
		p := plan.New(a.state, a.now(), 1)
		if err := add(p); err != nil {
			return ipam.Op{}, err
		}
		err := a.commit(ctx, p.Ops, a.store.Commit, p.Durable)
		op := p.Ops[0]
		if err = cmp.Or(err, op.Err); err == nil {
			return op, nil
		} else if !isConflict(err) || try == tries {
			return op, fmt.Errorf("%s %s: %w", what, op.Resource(), err)
		}
	}
}

// reservationChanged publishes that the reservation of l was made or released.
func (a *Allocator) reservationChanged(kind string, l *ipam.Lease, message string) {
	a.mu.Lock()
	a.recallHolders(l)
	a.mu.Unlock()
	e := event.Event{Kind: kind, Object: l.Resource.String(), Message: message}
	if k := l.Reservation.For; k != (vip.ServiceKey{}) {
		e.Service = k.String()
	}
	a.events.Add(e)
}
