package health

import (
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// check is one check of a backend: what is probed, and the service ports that it decides for.
type check struct {
	ports  vip.Names // "": all that the backend serves
	target probe.Target
}

// defaultCheck is the check of services without one of their own.
var defaultCheck = vip.HealthCheck{
	Type: vip.CheckTCP, Interval: vip.DefaultCheckInterval, FastInterval: vip.DefaultCheckFastInterval,
	Timeout: vip.DefaultCheckTimeout, Rise: vip.DefaultRise, Fall: vip.DefaultFall,
}

// checksOf returns the checks of a backend.
//
// A tcp check without a port probes each TCP port of the backend and decides for the service ports
// that it serves there. A tcp check that the service states also decides for the ports of other
// protocols. Every other check is one probe, of its port or of the backend's first port of the
// fitting protocol, and decides for all ports.
//
// A service without a check has the default check, unless the backend's source checks the backend
// itself.
//
// With direct routing and tunnels, a backend may listen at the VIP only, and clients reach it only
// with this VIP. So probes take the path of clients, to the VIP of the backend's family. A backend
// without such a VIP has no clients and no check. With nil for VIPs, the dataplane has no paths: then
// probes go to the backend's own address, and only if the service states a check.
//
// The backend of a service with forward host is this host, and the check probes its VIPs, where the programs listen.
func checksOf(s *vip.Service, b *vip.Backend, byDefault bool, vips []netip.Addr) []check {
	if s.Forward == vip.ForwardHost {
		return hostChecks(s, *b, vips)
	}
	if !untranslated(s) {
		return directChecks(s, b, byDefault)
	}
	if vips == nil {
		return directChecks(s, b, false)
	}
	all := directChecks(s, b, byDefault)
	i := slices.IndexFunc(vips, func(a netip.Addr) bool { return vip.FamilyOf(a) == vip.FamilyOf(b.Address) })
	if i < 0 {
		return slices.DeleteFunc(all, func(c check) bool { return c.target.Check().Type != vip.CheckExec })
	}
	for j := range all {
		all[j].target = all[j].target.Along(vip.ProbePath{VIP: vips[i], Backend: all[j].target.Addr.Addr(), Forward: s.Forward})
	}
	return all
}

// hostChecks returns the checks of this host at VIPs. One command checks all of them.
func hostChecks(s *vip.Service, b vip.Backend, vips []netip.Addr) (all []check) {
	for _, b.Address = range vips {
		for _, c := range directChecks(s, &b, false) {
			c.target = c.target.Along(vip.ProbePath{VIP: b.Address, Backend: b.Address, Forward: vip.ForwardHost})
			all = append(all, c)
		}
		if s.Check != nil && s.Check.Type == vip.CheckExec {
			break
		}
	}
	return all
}

// untranslated reports whether packets reach the backends as clients sent them.
func untranslated(s *vip.Service) bool {
	return s.Forward == vip.ForwardDirect || s.Forward == vip.ForwardTunnel
}

// directChecks returns the checks with targets that have no path.
func directChecks(s *vip.Service, b *vip.Backend, byDefault bool) []check {
	c := s.Check
	switch {
	case c == nil && (!byDefault || b.Health != 0):
		return nil
	case c == nil:
		return tcpChecks(s, b, defaultCheck, false)
	case c.Type == vip.CheckNone:
		return nil
	case c.Type == vip.CheckTCP && c.Port == 0:
		return tcpChecks(s, b, *c, true)
	}
	port := c.Port
	if port == 0 {
		if port = firstPort(s, b, protocolOf(c.Type)); port == 0 && c.Type != vip.CheckExec {
			return nil
		}
	}
	return []check{{target: probe.NewTarget(netip.AddrPortFrom(b.Address, port), *c)}}
}

// Rules say which checks backends have.
type Rules struct {
	// Default states that services without a check are probed by tcp.
	Default bool
	// Allocations has the VIPs of services, for probes of direct routing and tunnels that take the path
	// of clients, and of this host. Nil: the dataplane has no such paths.
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
}

// vips returns the VIPs of a service for checksOf; known is false before the service has an answer of
// the allocator.
func (r Rules) vips(s *vip.Service) (vips []netip.Addr, known bool) {
	if r.Allocations == nil || !untranslated(s) && s.Forward != vip.ForwardHost {
		return nil, true
	}
	a, _, known := r.Allocations.Get(s.Key)
	return append([]netip.Addr{}, a.VIPs...), known
}

// Targets returns what the checks of a backend probe.
func (r Rules) Targets(s *vip.Service, b *vip.Backend) (out []probe.Target) {
	vips, _ := r.vips(s)
	for _, c := range checksOf(s, b, r.Default, vips) {
		out = append(out, c.target)
	}
	return out
}

// protocolOf returns the protocol of the ports that a check can probe; 0: any.
func protocolOf(t vip.CheckType) vip.Protocol {
	switch t {
	case vip.CheckUDP:
		return vip.UDP
	case vip.CheckExec:
		return 0
	}
	return vip.TCP
}

// firstPort returns where the backend serves its first port of the protocol, or 0.
func firstPort(s *vip.Service, b *vip.Backend, protocol vip.Protocol) uint16 {
	for i := range s.Ports {
		p := &s.Ports[i]
		if protocol != 0 && p.Protocol != protocol || !b.Serves(p.Name) {
			continue
		}
		if at := b.Endpoint(p.TargetPort).Port(); at != 0 {
			return at
		}
	}
	return 0
}

// tcpChecks returns one check for each TCP port of the backend. With all, the first one also
// decides for the ports that have no check.
func tcpChecks(s *vip.Service, b *vip.Backend, c vip.HealthCheck, all bool) []check {
	var at []uint16
	var names [][]string
	served := 0
	var rest []string
	for i := range s.Ports {
		p := &s.Ports[i]
		if !b.Serves(p.Name) {
			continue
		}
		served++
		port := b.Endpoint(p.TargetPort).Port()
		if p.Protocol != vip.TCP || port == 0 {
			rest = append(rest, p.Name)
			continue
		}
		j := slices.Index(at, port)
		if j < 0 {
			j = len(at)
			at, names = append(at, port), append(names, nil)
		}
		names[j] = append(names[j], p.Name)
	}
	if len(at) == 0 {
		return nil
	}
	if all {
		names[0] = append(names[0], rest...)
	}
	out := make([]check, len(at))
	for j := range at {
		out[j].target = probe.NewTarget(netip.AddrPortFrom(b.Address, at[j]), c)
		if len(names[j]) < served {
			out[j].ports = vip.NamesOf(names[j]...)
		}
	}
	return out
}

// LastFailure returns when a probe of a backend last failed, and why; zero and "" if none did since
// the start. Of is that of the probe.Engine. It may be called concurrently.
func (r Rules) LastFailure(s *vip.Service, b *vip.Backend, of func(probe.Target) (vip.Instant, string)) (at vip.Instant, why string) {
	for _, target := range r.Targets(s, b) {
		if failed, reason := of(target); failed.After(at) {
			at, why = failed, reason
		}
	}
	return at, why
}

// sameChecks reports whether the backends of two versions of a service have the same checks.
func sameChecks(a, b *vip.Service) bool {
	sameCheck := a.Check == b.Check || a.Check != nil && b.Check != nil && *a.Check == *b.Check
	return sameCheck && a.Forward == b.Forward && slices.Equal(a.Ports, b.Ports) &&
		slices.EqualFunc(a.Backends, b.Backends, func(a, b vip.Backend) bool {
			return a.Address == b.Address && a.Port == b.Port && a.Ports == b.Ports && a.Node == b.Node && (a.Health == 0) == (b.Health == 0)
		})
}
