package remote

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// kernelDevice is the kernel's device of that name, as the other dataplanes have it. It doesn't answer ARP. It is a dummy
// or, on a kernel without these, a bridge without ports; or one of another kind that somebody has made for this.
type kernelDevice struct {
	name    string
	d       *host.Device // nil before it is used
	ensured bool         // it exists, and has routes instead of addresses
	routes  atomic.Uint64
}

func (k *kernelDevice) open() (err error) {
	if k.d == nil {
		k.d, err = host.OpenDevice(k.name, &k.routes)
	}
	return err
}

func (k *kernelDevice) list() ([]netip.Addr, error) {
	if err := k.open(); err != nil {
		return nil, err
	}
	s, err := k.read()
	if err == nil && len(s.Addrs) > 0 && !k.ensured && k.ensure() == nil { // what an earlier version has put there
		s, err = k.read()
	}
	return slices.Collect(maps.Keys(s.Addrs)), err
}

// read reads the device, whatever its kind is.
func (k *kernelDevice) read() (s host.DeviceState, err error) {
	s, err = k.d.Read(context.Background())
	if err == nil && s.Kind != "" && s.Kind != k.d.Kind {
		k.d.Kind = s.Kind
		s, err = k.d.Read(context.Background())
	}
	return s, err
}

// ensure makes the device, or prepares the one that there is.
func (k *kernelDevice) ensure() error {
	k.d.Kind = host.DeviceKind
	_, err := k.read()
	if err == nil {
		_, err = k.d.Ensure()
	}
	if isMissing(err) && k.d.Kind != host.BridgeKind {
		k.d.Kind = host.BridgeKind
		_, err = k.d.Ensure()
	}
	if isMissing(err) {
		err = unix.EOPNOTSUPP
	}
	k.ensured = err == nil
	return err
}

// isMissing reports whether the kernel can't make such a device.
func isMissing(err error) bool {
	_, is := errors.AsType[vip.Problem](err)
	return is
}

func (k *kernelDevice) add(addr netip.Addr) error {
	if err := k.open(); err != nil {
		return err
	}
	if !k.ensured {
		if err := k.ensure(); err != nil {
			return err
		}
	}
	err := k.change(k.d.Add, addr)
	if errors.Is(err, unix.ENODEV) { // somebody has deleted it, or set it down
		if err = k.ensure(); err == nil {
			err = k.change(k.d.Add, addr)
		}
	}
	return err
}

func (k *kernelDevice) remove(addr netip.Addr) error {
	if err := k.open(); err != nil {
		return err
	}
	return k.change(k.d.Remove, addr)
}

func (k *kernelDevice) close() {
	if k.d != nil {
		k.d.Close()
	}
}

// change changes one route.
func (k *kernelDevice) change(f func(context.Context, []netip.Addr, func(netip.Addr, error)) error, addr netip.Addr) error {
	var failed error
	err := f(context.Background(), []netip.Addr{addr}, func(_ netip.Addr, err error) { failed = err })
	if err != nil {
		return err
	}
	return failed
}
