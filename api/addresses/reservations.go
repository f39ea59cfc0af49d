package addresses

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"syscall"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

func (h *handlers) reservationRoutes() {
	server.Handle(h.http, server.Route{Method: http.MethodPost, Path: v1.PathVIPs, Need: access.Operate, ID: "reserve-vip", Tag: "addresses", Summary: "Reserve an address",
		Description: "No other service gets the address, now and after the one that it is for, until the reservation is released. " +
			"Except that services with the same share_key can join the one that holds it, and keep it after that one. " +
			"Without \"for\" it is given to a service that requests it. 409 if it is reserved, or in use by another service.",
		Status: http.StatusCreated, Body: v1.ReservationSpec{}}, h.reserveVIP)
	server.HandleJSON(h.http, server.Route{Method: http.MethodDelete, Path: v1.PathVIPs + "/{ip}", Need: access.Operate, ID: "release-vip", Tag: "addresses", Summary: "Release a reservation",
		Description: "A service that holds the address keeps it; otherwise the address is free. 409 if the address has a lease that is not reserved."}, h.releaseVIP)
}

type reserveVIPInput struct {
	request.Payload
}

func (h *handlers) reserveVIP(ctx context.Context, in *reserveVIPInput) (*request.Object[v1.VIP], error) {
	var body v1.ReservationSpec
	if p := in.Decode(&body, v1.CodeInvalidReservation); p != nil {
		return nil, p
	}
	what, problems := reserving(&body)
	if len(problems) > 0 {
		return nil, invalidReservation(problems...)
	}
	l, err := h.Reservations.Reserve(ctx, what)
	if err != nil {
		return nil, reservationRefused(err)
	}
	row := h.written(ctx, &l)
	return &request.Object[v1.VIP]{Status: http.StatusCreated, Location: v1.VIPPath(row.Address), Body: row}, nil
}

func (h *handlers) releaseVIP(ctx context.Context, in *request.AddressPath) (v1.VIP, error) {
	addr, err := in.Address()
	if err != nil {
		return v1.VIP{}, err
	}
	l, err := h.Reservations.Unreserve(ctx, addr)
	if errors.Is(err, ipam.ErrNotReserved) {
		return v1.VIP{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, addr.String()+" is not reserved", "list all leases: ironvip vip list")
	}
	if err != nil {
		return v1.VIP{}, reservationRefused(err)
	}
	return h.written(ctx, &l), nil
}

// written returns the API's form of a lease after a write, and notes the revision of the leases for
// the audit line. Another write may have changed the lease since.
func (h *handlers) written(ctx context.Context, l *ipam.Lease) v1.VIP {
	row := vipView(l, h.Leases.Revision())
	if l.State == 0 {
		row.State = "free"
	}
	server.Wrote(ctx, row.Revision)
	return row
}

// reserving checks what a caller wants to reserve.
func reserving(body *v1.ReservationSpec) (what ipam.Reserving, problems []vip.Problem) {
	refuse := func(field, message, hint string) {
		problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Field: field, Message: message, Hint: hint})
	}
	what.Pool = body.Pool
	switch {
	case body.Address == "" && body.Pool == "":
		refuse("address", "is missing", "name an address, or a pool to choose one from")
	case body.Address != "" && body.Pool != "":
		refuse("pool", "can't be combined with an address", "name one of them")
	case body.Address != "":
		addr, err := netip.ParseAddr(body.Address)
		if what.Addr = addr.Unmap(); err != nil || addr.Zone() != "" {
			refuse("address", "\""+body.Address+"\" is not an address", "use an IPv4 or IPv6 address")
		}
	}
	switch body.Family {
	case "":
	case "ipv4":
		what.Family = vip.IPv4
	case "ipv6":
		what.Family = vip.IPv6
	default:
		refuse("family", "\""+body.Family+"\" is not a family", "use ipv4 or ipv6")
	}
	if body.Family != "" && body.Address != "" {
		refuse("family", "can't be combined with an address", "leave it out: the address has one")
	}
	if body.For != "" {
		var err error
		if what.For, err = vip.ParseServiceKey(body.For); err != nil {
			refuse("for", err.Error(), "use NAME or NAMESPACE/NAME of a service")
		}
	}
	return what, problems
}

func invalidReservation(problems ...vip.Problem) *server.Problem {
	return request.InvalidAs(v1.CodeInvalidReservation, problems)
}

// reservationRefused returns the problem of a reservation that was not made or released.
func reservationRefused(err error) error {
	if p, ok := errors.AsType[vip.Problem](err); ok {
		switch p.Code {
		case vip.CodeAddressTaken:
			return request.Refuse(http.StatusConflict, v1.CodeAddressTaken, []vip.Problem{p})
		case vip.CodePoolFull:
			return request.Refuse(http.StatusConflict, v1.CodePoolFull, []vip.Problem{p})
		}
		return invalidReservation(p)
	}
	if _, conflict := errors.AsType[*ipam.ConflictError](err); conflict {
		return server.Refuse(http.StatusConflict, v1.CodeConflict, err.Error(), "other hosts change it at the same time: read it with ironvip vip list, and try again")
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return server.Refuse(http.StatusInsufficientStorage, v1.CodeStoreFull, err.Error(), "free disk space in state_dir and try again")
	case errors.Is(err, ipam.ErrUnavailable):
		return request.StoreAway(err.Error(), "the result is unknown until the store is reachable: read it with ironvip vip list then. Traffic is not affected")
	}
	return request.WriteFailed(err)
}
