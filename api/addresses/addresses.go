// Package addresses serves the routes of leases, reservations, pools and DNS names.
//
// Its input is requests. Its output is rows of the tables, and reservations, which the allocator makes. It owns no table.
//
// Files:
//
//	leases.go        leases of addresses and node ports, and pools
//	reservations.go  reservations of addresses
//	dns.go           DNS names, and answers to queries
package addresses

import (
	"context"
	"net/netip"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
)

// Deps contains what the handlers read and call, beside the tables of statuses.
type Deps struct {
	Leases       table.Reader[ipam.Resource, *ipam.Lease]
	Pools        func() []ipam.PoolStatus
	Reservations Reservations
	// Zone returns the domain of the DNS names and the configured addresses; no address: names are not answered.
	Zone func() (domain string, listen []netip.AddrPort)
}

// Reservations keeps addresses for services. Its errors are those of allocator.Allocator.
type Reservations interface {
	Reserve(context.Context, ipam.Reserving) (ipam.Lease, error)
	Unreserve(context.Context, netip.Addr) (ipam.Lease, error)
}

type handlers struct {
	Deps
	*status.Tables
	http *server.Server
}

// AddRoutes adds the routes to a server.
func AddRoutes(s *server.Server, t *status.Tables, d Deps) {
	h := &handlers{d, t, s}
	h.leaseRoutes()
	h.reservationRoutes()
	h.dnsRoutes()
}
