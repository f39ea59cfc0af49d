package vip

import (
	"fmt"
	"net/netip"
	"time"
)

// FrontendKey identifies a frontend by where it listens and for which clients. Dataplanes key their
// rules by it.
type FrontendKey struct {
	Addr     netip.Addr
	Port     uint16 // the first of a range
	LastPort uint16 // the last of a range; 0 for a single port
	Protocol Protocol
	Audience Audience
}

// Audience is the set of clients that a frontend serves. It separates frontends that serve clients
// of one address and port differently.
type Audience uint8

// Everyone is all clients except those that another frontend of the same address and ports serves.
// InternalClients are this host itself and clients inside the pod ranges.
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

// Whole reports whether the key stands for a whole address instead of ports there: that of a service with ForwardHost, or
// leftovers of a dataplane that belong to no frontend.
func (k FrontendKey) Whole() bool { return k.Protocol == 0 }

// String returns "192.0.2.10:80/tcp", "192.0.2.10:10000-10099/tcp" for a range, "192.0.2.10:80/tcp+internal" for internal
// clients, and "192.0.2.10" for the whole address.
func (k FrontendKey) String() string {
	if k.Whole() {
		return k.Addr.String()
	}
	ports := k.AddrPort().String()
	if k.Ranged() {
		ports = fmt.Sprintf("%s-%d", ports, k.LastPort)
	}
	if k.Audience != Everyone {
		return fmt.Sprintf("%s/%s+%s", ports, k.Protocol, k.Audience)
	}
	return fmt.Sprintf("%s/%s", ports, k.Protocol)
}

// FrontendKind is the kind of address that a frontend listens on.
type FrontendKind uint8

// OnVIP listens on a virtual address that ironvip adds to the host. OnHost listens on one of the
// host's own addresses (a node port), which ironvip never adds or removes. OnRealServer is the
// backend's side of direct routing and tunnels: ironvip adds the address, and traffic for it goes
// to this host's own listener.
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

// Frontend is one listener with its backends: the unit that a dataplane programs. The compile stage
// derives it from a service, its leases and this node.
type Frontend struct {
	Key     FrontendKey
	Service ServiceKey
	Port    string // the service port's name

	Kind              FrontendKind
	Scheduler         Scheduler
	SchedulerFallback bool
	SchedulerPort     bool
	OnePacket         bool // UDP: each datagram is scheduled separately
	Masquerade        Masquerade
	Forward           Forward
	KeepsOwner        bool // of a whole address: its owner keeps it while no host has a usable backend
	Affinity          time.Duration
	SourceRanges      []netip.Prefix
	SourceLimits
	SynProxy     bool // of TCP; see Settings
	DrainTimeout time.Duration
	Relay        *ProxySettings // the service's

	Backends []Endpoint // sorted by address, then port; no duplicates
}

// Endpoint is one backend of one frontend.
type Endpoint struct {
	Addr   netip.AddrPort // port 0, only for a range of ports, is the port that the client connects to
	Weight uint16         // 0 to MaxWeight; 0 accepts no new connections
	// Reset states that the endpoint is removed now, with its open connections. The owner of the
	// frontends removes it; dataplanes never see it.
	Reset bool
	// Step is that of its slow start: from 1 to SlowStartSteps-1 while Weight grows, 0 with its whole
	// weight. Dataplanes ignore it: the owner of the frontends changes the weight.
	Step uint8
	// MaxConnections bounds its connections over all frontends of the service; see Backend.
	MaxConnections uint32
	// Leaving is when this endpoint is deleted even if connections remain; zero if it stays. A
	// leaving endpoint has weight 0. Dataplanes ignore it: the owner of the frontends removes the
	// endpoint in time.
	Leaving Instant
}

// Usable reports whether any backend accepts new connections. Without one, a dataplane must refuse
// new clients of the frontend (reset, port unreachable).
func (f *Frontend) Usable() bool {
	for i := range f.Backends {
		if f.Backends[i].Weight > 0 {
			return true
		}
	}
	return false
}

// Refuses reports whether a frontend accepts no new clients. A real server never refuses, because
// the director decides which clients it gets.
func (f *Frontend) Refuses() bool { return f.Kind != OnRealServer && !f.Usable() }

// IsLeaving reports whether the endpoint is draining and has a deadline for its deletion.
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
