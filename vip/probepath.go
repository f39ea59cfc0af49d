package vip

import (
	"fmt"
	"net/netip"
)

// ProbePath is the path of health probes that reach a backend as its clients do, with direct routing
// or a tunnel: they go to the virtual address, and this host forwards them to the one backend. With
// ForwardHost, they stay on this host, which has the virtual address. It is its own key.
type ProbePath struct {
	VIP     netip.Addr
	Backend netip.Addr // of the VIP's family
	Forward Forward    // ForwardDirect or ForwardTunnel; or ForwardHost, with the VIP as Backend
}

// IsZero reports whether p is the zero ProbePath, which stands for a direct connection.
func (p ProbePath) IsZero() bool { return p == ProbePath{} }

// String returns "10.96.0.1 to 10.0.0.1 by dr".
func (p ProbePath) String() string { return fmt.Sprintf("%s to %s by %s", p.VIP, p.Backend, p.Forward) }

// KeyOfProbePath returns the key of a path: itself.
func KeyOfProbePath(p *ProbePath) ProbePath { return *p }
