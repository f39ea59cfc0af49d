package ipam

import (
	"errors"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Released is a service that gives up everything it holds.
type Released struct {
	Service  vip.ServiceKey
	Cooldown time.Duration
}

// Reserving says what to reserve: an address, or any free one of a pool.
type Reserving struct {
	Addr   netip.Addr     // invalid: one of Pool
	Pool   string         // without Addr
	Family vip.Family     // of the address from Pool; zero: the pool's, IPv4 if it has both
	For    vip.ServiceKey // zero: for any service that requests the address by its number
}

// ErrNotReserved says that an address has no lease to remove a reservation from.
var ErrNotReserved = errors.New("not reserved")
