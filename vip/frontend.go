package vip

import (
	"fmt"
	"net/netip"
	"time"
)

// FrontendKey is where a frontend listens: what a dataplane keys its rules by.
type FrontendKey struct {
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
}

// AddrPort returns the address and port of the key.
func (k FrontendKey) AddrPort() netip.AddrPort { return netip.AddrPortFrom(k.Addr, k.Port) }

// String returns "192.0.2.10:80/tcp".
func (k FrontendKey) String() string { return fmt.Sprintf("%s/%s", k.AddrPort(), k.Protocol) }

// FrontendKind says what kind of address a frontend listens on.
type FrontendKind uint8

// OnVIP listens on a virtual address that ironvip brings up; OnHost on one of
// the host's own addresses (a node port), which ironvip never adds or removes.
const (
	OnVIP FrontendKind = iota + 1
	OnHost
)

func (k FrontendKind) String() string {
	switch k {
	case OnVIP:
		return "vip"
	case OnHost:
		return "node-port"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Frontend is one listener with its backends: the unit a dataplane programs.
// It is what compile makes of a service, its leases and this node.
type Frontend struct {
	Key     FrontendKey
	Kind    FrontendKind
	Service ServiceKey
	Port    string // the service port's name

	Scheduler         Scheduler
	SchedulerFallback bool
	SchedulerPort     bool
	Forward           Forward
	Affinity          time.Duration
	Masquerade        Masquerade
	SourceRanges      []netip.Prefix
	DrainTimeout      time.Duration

	Backends []Endpoint // sorted by address, then port; no two alike
}

// Endpoint is one backend of one frontend.
type Endpoint struct {
	Addr   netip.AddrPort
	Weight uint32 // 0 takes no new connections
	// Leaving is when this endpoint is deleted even if connections remain; zero
	// for one that is to stay. A leaving endpoint has weight 0. Dataplanes don't
	// act on it: whoever owns the frontends takes the endpoint out in time.
	Leaving time.Time
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

// CompareEndpoints orders endpoints by address, then port.
func CompareEndpoints(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }

// CompareFrontendKeys orders keys by address, port, protocol.
func CompareFrontendKeys(a, b FrontendKey) int {
	if c := a.Addr.Compare(b.Addr); c != 0 {
		return c
	}
	if a.Port != b.Port {
		return int(a.Port) - int(b.Port)
	}
	return int(a.Protocol) - int(b.Protocol)
}
