package vips

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// address is what is recorded of one address. One without users and without a route has no record.
type address struct {
	users []vip.FrontendKey // the frontends that need it
	route route
}

// route is whether the device has the route of an address, as far as is known.
type route uint8

const (
	absent   route = iota // as with Sockets while the host has the address anyway
	doubtful              // it is ours, and may be gone
	present
)

func (p *Plane) record(a netip.Addr, e address) {
	if len(e.users) == 0 && e.route == absent {
		delete(p.addrs, a)
	} else {
		p.addrs[a] = e
	}
}

func (p *Plane) setRoute(a netip.Addr, r route) {
	e := p.addrs[a]
	e.route = r
	p.record(a, e)
}

// isUser reports whether a frontend counts as a user of its address. It costs O(frontends at the address).
func (p *Plane) isUser(key vip.FrontendKey) bool {
	return slices.Contains(p.addrs[key.Addr].users, key)
}

// use counts a frontend as a user of its address, or no more.
func (p *Plane) use(key vip.FrontendKey, needs bool) {
	e := p.addrs[key.Addr]
	i := slices.Index(e.users, key)
	switch {
	case needs && i < 0:
		e.users = append(e.users, key)
	case !needs && i >= 0:
		e.users = slices.Delete(e.users, i, i+1)
	default:
		return
	}
	if e.route == present {
		p.usesDevice()
	}
	p.record(key.Addr, e)
}

// wants reports whether an address belongs on the device.
func (p *Plane) wants(a netip.Addr) bool {
	e := p.addrs[a]
	return len(e.users) > 0 && (e.route != absent || !p.sockets)
}

// lacks reports whether an address needs a route that the device may not have. With Sockets, it costs a socket if the address
// is the host's own, unless that is in 127.0.0.0/8.
func (p *Plane) lacks(a netip.Addr) bool {
	r := p.addrs[a].route
	return r == doubtful || r == absent && !(p.sockets && (a.Is4() && a.IsLoopback() || p.binds(a)))
}

// damage returns what is wrong with an address that frontends use.
func (p *Plane) damage(a netip.Addr, fault string) (out []string) {
	if fault != "" && p.wants(a) {
		out = append(out, fmt.Sprintf("device %s %s", p.name, fault))
	}
	switch {
	case !p.lacks(a):
	case p.wants(a):
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
