package vip

import (
	"fmt"
	"net/netip"
	"time"
)

// FrontendKey is where a frontend listens, and for whom: what a dataplane keys
// its rules by.
type FrontendKey struct {
	Addr     netip.Addr
	Port     uint16 // the first of a range
	LastPort uint16 // the last of a range; 0 for a single port
	Protocol Protocol
	Audience Audience
}

// Audience is whom a frontend serves, where clients of one address and port
// are not all served alike.
type Audience uint8

// Everyone is all clients but those that another frontend of the same address
// and ports serves. InternalClients are this host itself and clients inside the
// pod ranges.
const (
	Everyone Audience = iota
	InternalClients
)

func (a Audience) String() string {
	switch a {
	case Everyone:
		return "everyone"
	case InternalClients:
		return "internal"
	}
	return fmt.Sprintf("audience(%d)", uint8(a))
}

// AddrPort returns the address and the (first) port of the key.
func (k FrontendKey) AddrPort() netip.AddrPort { return netip.AddrPortFrom(k.Addr, k.Port) }

// Ranged reports whether the key is for a range of ports.
func (k FrontendKey) Ranged() bool { return k.LastPort != 0 }

// String returns "192.0.2.10:80/tcp", "192.0.2.10:10000-10099/tcp" for a range,
// and "192.0.2.10:80/tcp+internal" for an audience of its own.
func (k FrontendKey) String() string {
	ports := k.AddrPort().String()
	if k.Ranged() {
		ports = fmt.Sprintf("%s-%d", ports, k.LastPort)
	}
	if k.Audience != Everyone {
		return fmt.Sprintf("%s/%s+%s", ports, k.Protocol, k.Audience)
	}
	return fmt.Sprintf("%s/%s", ports, k.Protocol)
}

// FrontendKind says what kind of address a frontend listens on.
type FrontendKind uint8

// OnVIP listens on a virtual address that ironvip brings up; OnHost on one of
// the host's own addresses (a node port), which ironvip never adds or removes.
// OnRealServer is the backend's side of direct routing and tunnels: the address
// is brought up, and what arrives for it goes to this host's own listener.
const (
	OnVIP FrontendKind = iota + 1
	OnHost
	OnRealServer
)

func (k FrontendKind) String() string {
	switch k {
	case OnVIP:
		return "vip"
	case OnHost:
		return "node-port"
	case OnRealServer:
		return "real-server"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Frontend is one listener with its backends: the unit a dataplane programs.
// It is what compile makes of a service, its leases and this node.
type Frontend struct {
	Key     FrontendKey
	Service ServiceKey
	Port    string // the service port's name

	Kind              FrontendKind
	Scheduler         Scheduler
	SchedulerFallback bool
	SchedulerPort     bool
	OnePacket         bool // UDP: every datagram is scheduled anew
	Masquerade        Masquerade
	Forward           Forward
	Affinity          time.Duration
	SourceRanges      []netip.Prefix
	DrainTimeout      time.Duration

	Backends []Endpoint // sorted by address, then port; no two alike
}

// Endpoint is one backend of one frontend.
type Endpoint struct {
	Addr   netip.AddrPort // port 0, with a range of ports only, is the port that the client asked for
	Weight uint32         // 0 takes no new connections
	// Leaving is when this endpoint is deleted even if connections remain; zero
	// for one that is to stay. A leaving endpoint has weight 0. Dataplanes don't
	// act on it: whoever owns the frontends takes the endpoint out in time.
	Leaving Instant
}

// Usable reports whether any backend takes new connections. A dataplane must
// refuse (reset, port unreachable) new clients of a frontend without one.
func (f *Frontend) Usable() bool {
	for i := range f.Backends {
		if f.Backends[i].Weight > 0 {
			return true
		}
	}
	return false
}

// Refuses reports whether a frontend accepts no new client. A real server never
// refuses: the director decides which clients it gets.
func (f *Frontend) Refuses() bool { return f.Kind != OnRealServer && !f.Usable() }

// IsLeaving reports whether the endpoint drains and is deleted at a deadline.
func (e Endpoint) IsLeaving() bool { return !e.Leaving.IsZero() }

// CompareEndpoints orders endpoints by address, then port.
func CompareEndpoints(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }

// CompareFrontendKeys orders keys by address, port, protocol, last port and
// audience.
func CompareFrontendKeys(a, b FrontendKey) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	if a.Port != b.Port {
		return int(a.Port) - int(b.Port)
	}
	if a.Protocol != b.Protocol {
		return int(a.Protocol) - int(b.Protocol)
	}
	if a.LastPort != b.LastPort {
		return int(a.LastPort) - int(b.LastPort)
	}
	return int(a.Audience) - int(b.Audience)
}
