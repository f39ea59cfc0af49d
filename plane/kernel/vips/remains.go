package vips

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/ironvip/ironvip/plane/kernel/host"
)

// Remains is what a dataplane left of its addresses. No agent may use the same device meanwhile.
type Remains struct {
	Device    string       // our device, or ""
	Addresses []netip.Addr // on it, sorted
	Foreign   string       // the kind of a foreign device with our device's name, for example "veth", or ""

	device *host.Device
}

// Find looks for what a dataplane with this device left, and changes nothing.
func Find(ctx context.Context, device string) (*Remains, error) {
	device = cmp.Or(device, DefaultDevice)
	d, err := host.OpenDevice(device, new(atomic.Uint64))
	if err != nil {
		return nil, err
	}
	r := &Remains{device: d}
	ours, err := d.Ours()
	state, failed := d.Read(ctx)
	if err := errors.Join(err, failed); err != nil {
		d.Close()
		return nil, err
	}
	if ours {
		r.Device, r.Addresses = device, slices.SortedFunc(maps.Keys(state.Addrs), netip.Addr.Compare)
	} else {
		r.Foreign = state.Kind
	}
	return r, nil
}

// Has reports whether an address is on our device.
func (r *Remains) Has(a netip.Addr) bool {
	_, has := slices.BinarySearchFunc(r.Addresses, a, netip.Addr.Compare)
	return has
}

// RemoveAddresses removes the routes of the addresses, before what they lead to goes. Remove follows.
func (r *Remains) RemoveAddresses(ctx context.Context) error {
	var errs []error
	err := r.device.Remove(ctx, r.Addresses, func(_ netip.Addr, err error) { errs = append(errs, err) })
	return errors.Join(append(errs, err)...)
}

// Remove removes the device with everything on it. Only Close may follow.
func (r *Remains) Remove() error {
	if r.Device == "" {
		return nil
	}
	return r.device.RemoveAll()
}

// Close closes the socket.
func (r *Remains) Close() error {
	r.device.Close()
	return nil
}
