package remote

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/vip"
)

// device is the network device that the local routes of our VIP addresses lead to.
type device interface {
	// list returns the addresses that it makes local; none if the device doesn't exist.
	list() ([]netip.Addr, error)
	// add makes addr local, and creates and configures the device first. It succeeds if the route exists.
	add(addr netip.Addr) error
	// remove removes the route of addr. It succeeds if it doesn't exist.
	remove(addr netip.Addr) error
	close()
}

// addresses records which VIPs are on our device and how many frontends need them. One goroutine at a
// time may use it.
type addresses struct {
	device device
	name   string
	owns   func(netip.Addr) bool

	users map[netip.Addr]int  // the number of OnVIP frontends that listen there
	put   map[netip.Addr]bool // addresses that this process added or adopted
	there map[netip.Addr]bool // addresses of the device at the last refresh; nil before the first
	used  chan struct{}       // see Plane.UsesDevice

	binds func(netip.Addr) bool // whether a socket can be bound
}

func newAddresses(d device, name string, owns func(netip.Addr) bool) *addresses {
	if owns == nil {
		owns = func(netip.Addr) bool { return false }
	}
	return &addresses{device: d, name: name, owns: owns, users: make(map[netip.Addr]int), put: make(map[netip.Addr]bool),
		used: make(chan struct{}), binds: proxy.IsLocal}
}

// refresh reads the addresses of the device.
func (a *addresses) refresh() error {
	list, err := a.device.list()
	if err != nil {
		return err
	}
	a.there = make(map[netip.Addr]bool, len(list))
	for _, addr := range list {
		a.there[addr] = true
	}
	return nil
}

// has reports whether addr was on the device at the last refresh. It makes the first refresh.
func (a *addresses) has(addr netip.Addr) bool {
	if a.there == nil && a.refresh() != nil {
		return false
	}
	return a.there[addr]
}

// ours reports whether we may remove addr from the device.
func (a *addresses) ours(addr netip.Addr) bool {
	return a.put[addr] || a.has(addr) && a.owns(addr)
}

// add adds addr to the device.
func (a *addresses) add(addr netip.Addr) error {
	if err := a.device.add(addr); err != nil {
		return a.problem(addr, err)
	}
	a.uses()
	a.put[addr] = true
	if a.there != nil {
		a.there[addr] = true
	}
	return nil
}

// use counts a frontend that listens on a VIP.
func (a *addresses) use(addr netip.Addr) {
	a.users[addr]++
	if a.ours(addr) {
		a.uses()
		a.put[addr] = true // adopted: from now on, its absence is damage
	}
}

// uses records that addresses of the device are ours.
func (a *addresses) uses() {
	select {
	case <-a.used:
	default:
		close(a.used)
	}
}

// unuse reverts use.
func (a *addresses) unuse(addr netip.Addr) {
	if a.users[addr]--; a.users[addr] <= 0 {
		delete(a.users, addr)
	}
}

// ensure adds addr if it is missing, no matter whether we or the host had added it before.
func (a *addresses) ensure(addr netip.Addr) error {
	// An address can be bound to for a moment after its removal.
	gone := a.put[addr] && a.there != nil && !a.there[addr]
	if !gone && a.binds(addr) {
		return nil
	}
	return a.add(addr)
}

// drop removes addr from the device if it is ours and no frontend uses it.
func (a *addresses) drop(addr netip.Addr) error {
	if a.users[addr] > 0 || !a.ours(addr) {
		return nil
	}
	if err := a.device.remove(addr); err != nil {
		return fmt.Errorf("remove address %s from %s: %w", addr, a.name, err)
	}
	a.uses()
	delete(a.put, addr)
	delete(a.there, addr)
	return nil
}

// damage returns what is wrong with an address that frontends use, as of the last refresh; "" if
// nothing. It costs a socket if the address is the host's own.
func (a *addresses) damage(addr netip.Addr) string {
	switch {
	case a.put[addr] && !a.there[addr]:
		return fmt.Sprintf("address %s missing from %s", addr, a.name)
	case !a.put[addr] && !a.binds(addr):
		return fmt.Sprintf("address %s is no longer an address of this host", addr)
	}
	return ""
}

// orphans returns our addresses on the device that no frontend uses.
func (a *addresses) orphans() []netip.Addr {
	var out []netip.Addr
	for _, addr := range slices.SortedFunc(maps.Keys(a.there), netip.Addr.Compare) {
		if a.users[addr] == 0 && a.ours(addr) {
			out = append(out, addr)
		}
	}
	return out
}

// problem explains why addr could not be added.
func (a *addresses) problem(addr netip.Addr, err error) error {
	p := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s is not an address of this host", addr)}
	var known vip.Problem
	switch {
	case errors.As(err, &known):
		p.Message, p.Hint = p.Message+", and can't be one: "+known.Message, known.Hint
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		p.Hint = "run the agent with CAP_NET_ADMIN, or use a pool inside 127.0.0.0/8"
	case errors.Is(err, unix.EOPNOTSUPP):
		p.Message += fmt.Sprintf(", and this kernel can make neither a dummy device nor a bridge %s for it", a.name)
		// Don't suggest putting the address on another device: the pool would treat it as the
		// host's own.
		p.Hint = "load a module (modprobe dummy), or use a pool inside 127.0.0.0/8"
	default:
		p.Message += fmt.Sprintf(", and putting it on %s failed: %v", a.name, err)
	}
	return p
}

// needs reports whether addr belongs on the device.
func (a *addresses) needs(addr netip.Addr) bool { return a.put[addr] && a.users[addr] > 0 }
