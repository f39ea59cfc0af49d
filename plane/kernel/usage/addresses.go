package usage

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
)

// Addresses are the virtual addresses of the device.
type Addresses struct {
	*host.Device
	Lost bool // the device may lack addresses
}

// Prepare creates or repairs the device. If it had to, addresses may be lost.
func (a *Addresses) Prepare() error {
	changed, err := a.Ensure()
	a.Lost = a.Lost || changed || err != nil // an answer may have been lost after the change
	return err
}

// Put adds fresh addresses to the device, or, if it may lack others, all. It calls failed for each
// that it can't add; failed reports whether the caller accounts for it.
func (a *Addresses) Put(ctx context.Context, fresh []netip.Addr, all func() []netip.Addr, failed func(netip.Addr, error) bool) error {
	var astray error
	each := func(addr netip.Addr, err error) {
		if !failed(addr, err) {
			astray = err
		}
	}
	if !a.Lost {
		err := a.Add(ctx, fresh, each)
		if !errors.Is(err, unix.ENODEV) {
			return errors.Join(err, astray)
		}
		// The device was deleted or set down, with all its addresses.
		if err := a.Prepare(); err != nil {
			return err
		}
	}
	a.Lost, astray = true, nil
	if err := a.Add(ctx, all(), each); err != nil {
		return err
	}
	a.Lost = astray != nil
	return astray
}
