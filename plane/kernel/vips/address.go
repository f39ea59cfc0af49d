package vips

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// address is what is recorded of one address. One without users and without a route has no record.
type address struct {
	users int             // frontends that need the address
	last  vip.FrontendKey // the user that came last
	ours  bool            // users need our route: always, or with Sockets once it has been there
	route route
}

// route is whether the device has the route of an address, as far as is known.
type route uint8

const (
	absent   route = iota
	doubtful       // after an error
	present
)

// setRoute records what is known of a route.
func (p *Plane) setRoute(a netip.Addr, r route) {
	e := p.addrs[a]
	e.route = r
	p.record(a, e)
}

func (p *Plane) record(a netip.Addr, e address) {
	if e.users == 0 && e.route == absent {
		delete(p.addrs, a)
		return
	}
	p.addrs[a] = e
}

// use counts a frontend as a user of its address.
func (p *Plane) use(key vip.FrontendKey) {
	if p.isUser(key) {
		return
	}
	p.users[key] = struct{}{}
	e := p.addrs[key.Addr]
	e.users, e.last, e.ours = e.users+1, key, e.ours || !p.sockets || e.route != absent
	if e.route == present {
		p.usesDevice()
	}
	p.addrs[key.Addr] = e
}

// unuse reverts use.
func (p *Plane) unuse(key vip.FrontendKey) {
	if !p.isUser(key) {
		return
	}
	delete(p.users, key)
	e := p.addrs[key.Addr]
	e.users--
	e.ours = e.ours && e.users > 0
	p.record(key.Addr, e)
}

func (p *Plane) isUser(key vip.FrontendKey) bool {
	_, is := p.users[key]
	return is
}

// userOf returns one of the users of an address. It costs O(all) after the one that came last has gone, and otherwise O(1).
func (p *Plane) userOf(a netip.Addr) vip.FrontendKey {
	e := p.addrs[a]
	if !p.isUser(e.last) {
		for key := range p.users {
			if key.Addr == a {
				e.last = key
				p.addrs[a] = e
				break
			}
		}
	}
	return e.last
}

// wants reports whether an address belongs on the device.
func (p *Plane) wants(a netip.Addr) bool {
	e := p.addrs[a]
	return e.users > 0 && e.ours
}

// lacks reports whether an address needs a route that the device may not have. With Sockets, it costs a socket if the address
// is the host's own.
func (p *Plane) lacks(a netip.Addr) bool {
	e := p.addrs[a]
	if e.ours {
		return e.route != present
	}
	return !p.binds(a)
}

// damage returns what is wrong with an address that frontends use.
func (p *Plane) damage(a netip.Addr, fault string) (out []string) {
	e := p.addrs[a]
	if e.ours && fault != "" {
		out = append(out, fmt.Sprintf("device %s %s", p.name, fault))
	}
	switch {
	case !p.lacks(a):
	case e.ours:
		out = append(out, p.missing(a))
	default:
		out = append(out, fmt.Sprintf("address %s is no longer an address of this host", a))
	}
	return out
}

func (p *Plane) missing(a netip.Addr) string {
	return fmt.Sprintf("address %s missing from %s", a, p.name)
}

// usesDevice records that addresses of the device are ours.
func (p *Plane) usesDevice() {
	select {
	case <-p.uses:
	default:
		close(p.uses)
	}
}

// problem explains why an address could not be added.
func (p *Plane) problem(a netip.Addr, err error) error {
	if !p.sockets {
		return err
	}
	out := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s is not an address of this host", a)}
	var known vip.Problem
	switch {
	case errors.Is(err, host.ErrNoDevice):
		out.Message += fmt.Sprintf(", and %s %s for it", host.ErrNoDevice.Message, p.name)
		// Don't suggest putting the address on another device: the pool would treat it as the
		// host's own.
		out.Hint = "load a module (modprobe dummy), or use a pool inside 127.0.0.0/8"
	case errors.As(err, &known):
		out.Message, out.Hint = out.Message+", and can't be one: "+known.Message, known.Hint
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		out.Hint = "run the agent with CAP_NET_ADMIN, or use a pool inside 127.0.0.0/8"
	default:
		out.Message += fmt.Sprintf(", and putting it on %s failed: %v", p.name, err)
	}
	return out
}

// serves reports whether a frontend serves clients after an update with this result.
func serves(err error) bool {
	if err == nil {
		return true
	}
	_, is := errors.AsType[usage.Partly](err)
	return is
}

// placed reports whether a frontend needs its address. Nil is no frontend.
func placed(f *vip.Frontend) bool { return f != nil && usage.OnDevice(f) }
