package proxy

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// device is the network device our VIP addresses are on.
type device interface {
	// list returns its host addresses (/32 and /128, no link-local ones); none
	// when there is no such device.
	list() ([]netip.Addr, error)
	// add puts addr on it, making it and setting it up first; it is there
	// already: fine.
	add(addr netip.Addr) error
	// remove takes addr off it; it isn't there: fine.
	remove(addr netip.Addr) error
}

// addresses keeps which VIPs are on our device and which frontends need them.
// It is used by one goroutine at a time.
type addresses struct {
	device device
	name   string
	owns   func(netip.Addr) bool

	users map[netip.Addr]int  // frontends of kind OnVIP that listen there
	put   map[netip.Addr]bool // what this process put on the device or adopted
	there map[netip.Addr]bool // what the device has, as of the last refresh; nil before the first

	routes func() (*netipx.IPSet, error) // what the host's routes say is local
	binds  func(netip.Addr) bool         // what a socket says
	local  *netipx.IPSet                 // of routes, since the last refresh; nil is not asked yet
}

func newAddresses(d device, name string, owns func(netip.Addr) bool) *addresses {
	if owns == nil {
		owns = func(netip.Addr) bool { return false }
	}
	return &addresses{device: d, name: name, owns: owns, users: make(map[netip.Addr]int), put: make(map[netip.Addr]bool),
		routes: localRoutes, binds: isLocal}
}

// refresh reads the device.
func (a *addresses) refresh() error {
	list, err := a.device.list()
	if err != nil {
		return err
	}
	a.local = nil
	a.there = make(map[netip.Addr]bool, len(list))
	for _, addr := range list {
		a.there[addr] = true
	}
	return nil
}

// has reports what the last reading says; the first reading is made here.
func (a *addresses) has(addr netip.Addr) bool {
	if a.there == nil && a.refresh() != nil {
		return false
	}
	return a.there[addr]
}

// ours reports whether addr is one that we may remove from the device.
func (a *addresses) ours(addr netip.Addr) bool {
	return a.put[addr] || a.has(addr) && a.owns(addr)
}

// add brings addr up on the device.
func (a *addresses) add(addr netip.Addr) error {
	if err := a.device.add(addr); err != nil {
		return a.problem(addr, err)
	}
	a.put[addr] = true
	if a.there != nil {
		a.there[addr] = true
	}
	return nil
}

// use counts a frontend that listens, if it does so on a VIP.
func (a *addresses) use(spec *vip.Frontend) {
	if spec.Kind != vip.OnVIP {
		return
	}
	addr := spec.Key.Addr
	a.users[addr]++
	if a.ours(addr) {
		a.put[addr] = true // adopted: from now on its absence is damage
	}
}

// unuse takes back what use counted.
func (a *addresses) unuse(spec *vip.Frontend) {
	if spec.Kind != vip.OnVIP {
		return
	}
	addr := spec.Key.Addr
	if a.users[addr]--; a.users[addr] <= 0 {
		delete(a.users, addr)
	}
}

// restore puts addr back if it was ours and is gone, or if it was the host's
// and is gone.
func (a *addresses) restore(addr netip.Addr) error {
	if a.binds(addr) {
		return nil
	}
	return a.add(addr)
}

// drop takes addr off the device if it is ours and no frontend uses it.
func (a *addresses) drop(addr netip.Addr) error {
	if a.users[addr] > 0 || !a.ours(addr) {
		return nil
	}
	if err := a.device.remove(addr); err != nil {
		return fmt.Errorf("remove address %s from %s: %w", addr, a.name, err)
	}
	delete(a.put, addr)
	delete(a.there, addr)
	return nil
}

// damage says what is wrong with an address that frontends use, as of the last
// refresh; "" is nothing.
func (a *addresses) damage(addr netip.Addr) string {
	switch {
	case a.put[addr] && !a.there[addr]:
		return fmt.Sprintf("address %s missing from %s", addr, a.name)
	case !a.put[addr] && !a.isLocal(addr):
		return fmt.Sprintf("address %s is no longer an address of this host", addr)
	}
	return ""
}

// isLocal is the function of that name, as of the last refresh where it says yes.
// The routes are read once for all addresses; a socket is for one that they don't
// have, which may be had all the same (ip_nonlocal_bind).
func (a *addresses) isLocal(addr netip.Addr) bool {
	if a.local == nil {
		routes, err := a.routes()
		if err != nil {
			routes = &netipx.IPSet{}
		}
		a.local = routes
	}
	return a.local.Contains(addr) || a.binds(addr)
}

// orphans returns what is ours on the device and used by no frontend.
func (a *addresses) orphans() []netip.Addr {
	var out []netip.Addr
	for _, addr := range slices.SortedFunc(maps.Keys(a.there), netip.Addr.Compare) {
		if a.users[addr] == 0 && a.ours(addr) {
			out = append(out, addr)
		}
	}
	return out
}

// problem explains why addr could not be brought up.
func (a *addresses) problem(addr netip.Addr, err error) error {
	p := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s is not an address of this host", addr)}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		p.Hint = "run with CAP_NET_ADMIN, use mode ipvs, or a pool inside 127.0.0.0/8"
	case errors.Is(err, unix.EOPNOTSUPP):
		p.Message += fmt.Sprintf(", and this kernel can't make the dummy device %s for it", a.name)
		// Not "put the address on another device": the pool takes that for the host's own.
		p.Hint = fmt.Sprintf("load the module (modprobe dummy), make %[1]s of another kind (ip link add %[1]s type bridge), or use a pool inside 127.0.0.0/8", a.name)
	default:
		p.Message += fmt.Sprintf(", and putting it on %s failed: %v", a.name, err)
	}
	return p
}

// isLocal reports whether sockets can be bound to addr: the kernel's own word,
// which knows 127.0.0.0/8 and local routes too. It costs a socket.
func isLocal(addr netip.Addr) bool {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return !isNotLocal(err)
	}
	c.Close()
	return true
}

// isNotLocal reports whether err is of a bind to an address that isn't the
// host's.
func isNotLocal(err error) bool { return errors.Is(err, unix.EADDRNOTAVAIL) }
