package remote

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"go4.org/netipx"
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

// addresses records which VIPs are on our device and which frontends need them. One goroutine at a
// time may use it, except isLocal.
type addresses struct {
	device device
	name   string
	owns   func(netip.Addr) bool

	users map[netip.Addr]users // the OnVIP frontends that listen there
	put   map[netip.Addr]bool  // addresses that this process added or adopted
	there map[netip.Addr]bool  // addresses of the device at the last refresh; nil before the first
	used  chan struct{}        // see Plane.UsesDevice

	routes func() (*netipx.IPSet, error) // the local addresses by the host's routes
	binds  func(netip.Addr) bool         // whether a socket can be bound

	mu      sync.Mutex              // guards the following
	local   *netipx.IPSet           // of routes since the last refresh; nil if not read
	removed map[netip.Addr]struct{} // by us since then
}

// users are the frontends that share an address.
type users struct {
	n   uint32
	one place // of one of them; zero after its end, until one is needed again
}

// place is a FrontendKey without its address.
type place struct {
	port, last uint16
	protocol   vip.Protocol
	audience   vip.Audience
}

func placeAt(key vip.FrontendKey) place {
	return place{key.Port, key.LastPort, key.Protocol, key.Audience}
}

// key returns the FrontendKey of a place, or zero for a zero place.
func (p place) key(addr netip.Addr) vip.FrontendKey {
	if p == (place{}) {
		return vip.FrontendKey{}
	}
	return vip.FrontendKey{Addr: addr, Port: p.port, LastPort: p.last, Protocol: p.protocol, Audience: p.audience}
}

func newAddresses(d device, name string, owns func(netip.Addr) bool) *addresses {
	if owns == nil {
		owns = func(netip.Addr) bool { return false }
	}
	return &addresses{device: d, name: name, owns: owns, users: make(map[netip.Addr]users), put: make(map[netip.Addr]bool),
		used: make(chan struct{}), routes: localRoutes, binds: proxy.IsLocal}
}

// refresh reads the addresses of the device.
func (a *addresses) refresh() error {
	list, err := a.device.list()
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.local, a.removed = nil, nil
	a.mu.Unlock()
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
func (a *addresses) use(key vip.FrontendKey) {
	addr := key.Addr
	a.users[addr] = users{a.users[addr].n + 1, placeAt(key)}
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
func (a *addresses) unuse(key vip.FrontendKey) {
	addr := key.Addr
	u := a.users[addr]
	if u.one == placeAt(key) {
		u.one = place{}
	}
	if u.n <= 1 {
		delete(a.users, addr)
		return
	}
	u.n--
	a.users[addr] = u
}

// ensure adds addr if it is missing, no matter whether we or the host had added it before. With many addresses at once, it
// relies on the routes of the last refresh.
func (a *addresses) ensure(addr netip.Addr, many bool) error {
	// An address can be bound to for a moment after its removal.
	gone := a.put[addr] && a.there != nil && !a.there[addr]
	if !gone && (many && a.isLocal(addr) || !many && a.binds(addr)) {
		return nil
	}
	return a.add(addr)
}

// drop removes addr from the device if it is ours and no frontend uses it.
func (a *addresses) drop(addr netip.Addr) error {
	if a.users[addr].n > 0 || !a.ours(addr) {
		return nil
	}
	if err := a.device.remove(addr); err != nil {
		return fmt.Errorf("remove address %s from %s: %w", addr, a.name, err)
	}
	a.uses()
	delete(a.put, addr)
	delete(a.there, addr)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.removed == nil {
		a.removed = make(map[netip.Addr]struct{})
	}
	a.removed[addr] = struct{}{}
	return nil
}

// damage returns what is wrong with an address that frontends use, as of the last refresh; "" if
// nothing.
func (a *addresses) damage(addr netip.Addr) string {
	switch {
	case a.put[addr] && !a.there[addr]:
		return fmt.Sprintf("address %s missing from %s", addr, a.name)
	case !a.put[addr] && !a.isLocal(addr):
		return fmt.Sprintf("address %s is no longer an address of this host", addr)
	}
	return ""
}

// isLocal is like proxy.IsLocal, with positive results as of the last refresh. It reads the
// routes once for all addresses. It tries a socket only for an address that has no local route,
// which ip_nonlocal_bind can still allow.
// It may be called concurrently.
func (a *addresses) isLocal(addr netip.Addr) bool { return a.hasRoute(addr) || a.binds(addr) }

// hasRoute reports whether addr had a local route at the last refresh, and we haven't removed it since.
func (a *addresses) hasRoute(addr netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.local == nil {
		routes, err := a.routes()
		if err != nil {
			routes = &netipx.IPSet{}
		}
		a.local = routes
	}
	_, removed := a.removed[addr]
	return !removed && a.local.Contains(addr)
}

// orphans returns our addresses on the device that no frontend uses.
func (a *addresses) orphans() []netip.Addr {
	var out []netip.Addr
	for _, addr := range slices.SortedFunc(maps.Keys(a.there), netip.Addr.Compare) {
		if a.users[addr].n == 0 && a.ours(addr) {
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
func (a *addresses) needs(addr netip.Addr) bool { return a.put[addr] && a.users[addr].n > 0 }
