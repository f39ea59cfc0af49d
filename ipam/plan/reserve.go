package plan

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/numbers"
	"github.com/ironvip/ironvip/vip"
)

// Reserve plans a reservation as one op. The error is a vip.Problem.
func (p *Plan) Reserve(what ipam.Reserving) error {
	op, problem := p.reserve(what)
	if problem.Code != "" {
		return problem
	}
	p.Ops = append(p.Ops, op)
	return nil
}

// reserve returns the op for a reservation.
func (p *Plan) reserve(what ipam.Reserving) (ipam.Op, vip.Problem) {
	mark := &ipam.Reservation{For: what.For, Since: p.now}
	if !what.Addr.IsValid() {
		return p.reserveAny(what, mark)
	}
	r := ipam.Resource{Addr: what.Addr}
	if problem, unreadable := p.unreadableProblem(r); unreadable {
		return ipam.Op{}, reserveTaken(problem.Message, problem.Hint)
	}
	l, there := p.Lease(r)
	switch {
	case l.Reservation != nil:
		return ipam.Op{}, reserveTaken(ReservedMessage(&l), "release the reservation first")
	case l.State == ipam.Held && l.HeldBy(what.For) < 0:
		return ipam.Op{}, reserveTaken(heldMessage(&l), "reserve it for that service, or choose another address")
	case l.State == ipam.Held:
		now := l
		now.Reservation = mark
		return ipam.Op{Old: &l, New: &now}, vip.Problem{}
	case there && !l.KeptFor(what.For):
		return ipam.Op{}, reserveTaken(cooledMessage(&l), "wait, or reserve it for that service")
	}
	from := p.state.poolOf(what.Addr)
	switch {
	case from == nil:
		return ipam.Op{}, vip.Problem{
			Code: vip.CodeOutsidePool, Field: "address", Message: fmt.Sprintf("%s is in no pool", what.Addr),
			Hint: "choose an address of a pool, or add a pool for it",
		}
	case !from.Allows(what.Addr):
		problem := from.Refusal(what.Addr)
		problem.Field, problem.Hint = "address", "choose another address"
		return ipam.Op{}, problem
	}
	op := ipam.Op{New: ipam.Lease{Resource: r, Pool: from.Name, Reservation: mark}.Unheld(l.HolderOf(what.For))}
	if there {
		op.Old = &l
	}
	return op, vip.Problem{}
}

// reserveAny returns the op for a reservation of a free address of a pool.
func (p *Plan) reserveAny(what ipam.Reserving, mark *ipam.Reservation) (ipam.Op, vip.Problem) {
	from := p.state.pool(what.Pool)
	if from == nil {
		return ipam.Op{}, vip.Problem{Code: vip.CodeNoPool, Field: "pool", Message: fmt.Sprintf("there is no pool %q", what.Pool), Hint: p.poolHint(what.For.Namespace)}
	}
	f := what.Family
	if f == 0 {
		f = from.Families()[0] // a pool has a range
	}
	in := from.Ranges[f]
	if in == nil {
		return ipam.Op{}, vip.Problem{
			Code: vip.CodeNoPool, Field: "family", Message: fmt.Sprintf("pool %q has no %s range", from.Name, familyName(f)), Hint: "choose the other family, or add a range to the pool",
		}
	}
	op, ok := p.free(in, p.state.index.addrs[f], func(k numbers.Number) ipam.Resource { return ipam.Resource{Addr: in.Addr(k)} }, ipam.Lease{Pool: from.Name, Reservation: mark})
	if !ok {
		problem := p.poolFull(from, f)
		problem.Field = "pool"
		return ipam.Op{}, problem
	}
	op.New = op.New.Unheld(nil)
	return op, vip.Problem{}
}

func reserveTaken(message, hint string) vip.Problem {
	return vip.Problem{Code: vip.CodeAddressTaken, Field: "address", Message: message, Hint: hint}
}

// heldMessage says who holds an address.
func heldMessage(l *ipam.Lease) string {
	h := l.Holders[0]
	return fmt.Sprintf("%s is held by service %q of source %s since %s", l.Resource, h.Service, h.Source, l.Since.Time().Format(time.RFC3339))
}

// ReservedMessage says for whom an address is reserved.
func ReservedMessage(l *ipam.Lease) string {
	who := ""
	if k := l.Reservation.For; k != (vip.ServiceKey{}) {
		who = fmt.Sprintf(" for service %q", k)
	}
	return fmt.Sprintf("%s is reserved%s since %s", l.Resource, who, l.Reservation.Since.Time().Format(time.RFC3339))
}

// Unreserve plans the end of a reservation as one op. The error is a vip.Problem or ErrNotReserved.
func (p *Plan) Unreserve(addr netip.Addr) error {
	r := ipam.Resource{Addr: addr}
	if problem, unreadable := p.unreadableProblem(r); unreadable {
		return reserveTaken(problem.Message, "fix or remove that key")
	}
	l, there := p.Lease(r)
	op := ipam.Op{Old: &l}
	switch {
	case !there:
		return ipam.ErrNotReserved
	case l.Reservation == nil && l.State == ipam.Held:
		return reserveTaken(heldMessage(&l)+", and is not reserved", "delete the service, or have it request another address")
	case l.Reservation == nil:
		return reserveTaken(r.String()+" is not reserved: it "+cooledMessage(&l)[len(r.String())+1:], "wait until then")
	case l.State != ipam.Reserved:
		now := l
		now.Reservation = nil
		op.New = &now
	}
	p.Ops = append(p.Ops, op)
	return nil
}
