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
	a.write.Lock()
	defer a.write.Unlock()
	for try := 1; ; try++ {
		p := plan.New(a.state, a.now(), 1)
		if problem := p.Reserve(what); problem.Code != "" {
			return ipam.Lease{}, problem
		}
		op := &p.Ops[0]
		err := a.commit(ctx, p.Ops, a.store.Commit, p.Durable)
		if err = cmp.Or(err, op.Err); err == nil {
			a.reservationChanged("address_reserved", op.New, plan.ReservedMessage(op.New))
			return *op.New, nil
		} else if !isConflict(err) || try == tries {
			return ipam.Lease{}, fmt.Errorf("reserve %s: %w", op.New.Resource, err)
		}
	}
}

// Unreserve removes the reservation of an address. The address is free afterwards, unless a service
// holds it: that keeps it, as if it had never been reserved. The error is ErrNotReserved if the
// address has no lease, or as those of Reserve. The result is the lease, without a state if the
// address is free now.
func (a *Allocator) Unreserve(ctx context.Context, addr netip.Addr) (ipam.Lease, error) {
	a.write.Lock()
	defer a.write.Unlock()
	for try := 1; ; try++ {
		op, err := a.state.Unreserve(ipam.Resource{Addr: addr})
		if err != nil {
			return ipam.Lease{}, err
		}
		ops := []ipam.Op{op}
		err = a.commit(ctx, ops, a.store.Commit, nil)
		if err = cmp.Or(err, ops[0].Err); err == nil {
			message := fmt.Sprintf("reservation of %s is released", addr)
			a.reservationChanged("reservation_released", op.Old, message)
			if op.New == nil {
				return ipam.Lease{Resource: op.Old.Resource, Pool: op.Old.Pool, Since: vip.InstantOf(a.now())}, nil
			}
			return *op.New, nil
		} else if !isConflict(err) || try == tries {
			return ipam.Lease{}, fmt.Errorf("release the reservation of %s: %w", addr, err)
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
