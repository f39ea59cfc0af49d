package vip

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Limits and defaults of a service, as the reference page docs/services.md
// states them.
const (
	DefaultNamespace    = "default"
	DefaultScheduler    = WeightedRoundRobin
	DefaultWeight       = 1
	MaxWeight           = 65535
	DefaultDrainTimeout = 60 * time.Second
	MaxDrainTimeout     = 24 * time.Hour
	DefaultAffinity     = 10800 * time.Second // when affinity is asked for without a timeout
	MaxAffinity         = 86400 * time.Second
)

// ServiceKey names a service, uniquely across all sources.
type ServiceKey struct {
	Namespace, Name string
}

// String returns "name" in the default namespace, else "namespace/name".
func (k ServiceKey) String() string {
	if k.Namespace == DefaultNamespace || k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// ParseServiceKey reads "name" or "namespace/name".
func ParseServiceKey(s string) (ServiceKey, error) {
	ns, name, found := strings.Cut(s, "/")
	if !found {
		ns, name = DefaultNamespace, s
	}
	k := ServiceKey{Namespace: ns, Name: name}
	for _, part := range []string{ns, name} {
		switch err := CheckLabel(part); {
		case err == nil:
		case found || s == "": // the error names a part, or nothing
			return ServiceKey{}, fmt.Errorf("service %q: %w", s, err)
		default:
			return ServiceKey{}, fmt.Errorf("service %w", err)
		}
	}
	return k, nil
}

// CheckLabel says why s is not a DNS label (RFC 1123: 1 to 63 of a-z, 0-9 and
// "-", not at either end), or returns nil.
func CheckLabel(s string) error {
	if s == "" {
		return fmt.Errorf("a name is needed")
	}
	if len(s) > 63 {
		return fmt.Errorf("%q... is longer than 63 characters", s[:20])
	}
	for i := range len(s) {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' && i > 0 && i < len(s)-1
		if !ok {
			return fmt.Errorf("%q is not a DNS label: use a-z, 0-9 and inner \"-\"", s)
		}
	}
	return nil
}

// Service is one desired service as its source gives it, validated and with
// every default filled in. It says nothing of what the service was granted
// (see Allocation) or of how it fares.
type Service struct {
	Key    ServiceKey
	Source string // the name of the source that owns it
	Origin string // where the source found it, for messages: "services.d/web.toml:7"
	Labels map[string]string

	Pool     string       // "" is the first pool with auto_assign
	VIPs     []netip.Addr // requested addresses, at most one a family; empty is automatic
	ShareKey string       // services with the same key may share a VIP on disjoint ports

	Ports    []Port
	Backends []Backend // sorted by address, then port; no two alike

	Families          Families // none is what the pool has
	Scheduler         Scheduler
	SchedulerFallback bool // sh and mh: go to the next backend when the chosen one has weight 0
	SchedulerPort     bool // sh and mh: hash the client's port too
	OnePacket         bool // UDP: every datagram is scheduled anew; not with ForwardNAT
	// Assigned says that VIPs and node ports were given out elsewhere, by whoever
	// the source follows, and to no two services at a time: they are taken as they
	// are, never chosen, and what another service gave up needs no cooling.
	Assigned bool
	// HealthPort is a port of the host on which the agent answers, by HTTP,
	// whether this node has a ready backend of the service: for upstream
	// balancers, as Kubernetes' healthCheckNodePort. Only with ExternalTraffic
	// Local.
	HealthPort      NodePort
	Forward         Forward
	InternalTraffic TrafficPolicy
	ExternalTraffic TrafficPolicy
	Distribution    TrafficDistribution
	Masquerade      Masquerade
	Affinity        time.Duration  // 0 is none; else how long a client keeps its backend
	SourceRanges    []netip.Prefix // clients that may reach the VIP; empty is all
	DrainTimeout    time.Duration
}

// Port is one port of a service, or a range of ports. Two ports of a service
// never share both number and protocol.
type Port struct {
	Name       string // unique in the service; "80/tcp" style when the source gave none
	Protocol   Protocol
	Port       uint16   // the first of a range
	LastPort   uint16   // the last of a range, above Port; 0 for a single port
	TargetPort uint16   // the backends' port unless a backend states its own; 0, for ranges only, is the port that the client asked for
	NodePort   NodePort // never for a range
}

// Key returns what names the port within its service.
func (p *Port) Key() PortKey {
	return PortKey{Port: p.Port, LastPort: p.LastPort, Protocol: p.Protocol}
}

// NodePort is whether a port is also served on the host's own addresses.
type NodePort struct {
	Auto   bool   // the allocator chooses
	Number uint16 // requested; 0 with Auto false is off
}

// Wanted reports whether a node port is asked for at all.
func (n NodePort) Wanted() bool { return n.Auto || n.Number != 0 }

// Backend is one server behind a service.
type Backend struct {
	Address netip.Addr
	Port    uint16 // 0 is each service port's TargetPort
	State   State
	Weight  uint32 // 0 to MaxWeight; 0 takes no new connections
	Reason  Reason // why the source reports another state than ready, where known
	Node    string // the host it runs on, where known
	Zone    string // where that host is, where known

	Ports    Names // the service ports, by name, that it serves; empty is all
	ForZones Names // whom it is meant for, as Kubernetes' topology hints say; empty
	ForNodes Names // is whoever comes. See compile for when hints count.
}

// BackendKey names a backend of a service. Port is as in Backend, so 0 for one
// that follows the service's target ports.
type BackendKey struct {
	Service ServiceKey
	Address netip.Addr
	Port    uint16
}

// ID returns the backend's name within its service: "10.1.0.11:8080",
// "[2001:db8::1]:8080", or the address alone where it follows target ports.
func (b Backend) ID() string {
	if b.Port == 0 {
		return b.Address.String()
	}
	return netip.AddrPortFrom(b.Address, b.Port).String()
}

// Key returns the backend's key within service.
func (b Backend) Key(service ServiceKey) BackendKey {
	return BackendKey{Service: service, Address: b.Address, Port: b.Port}
}

// Serves reports whether the backend serves the service port of that name.
func (b *Backend) Serves(port string) bool { return b.Ports == "" || b.Ports.Has(port) }

// Endpoint returns where the backend serves a service port whose TargetPort is
// target.
func (b Backend) Endpoint(target uint16) netip.AddrPort {
	if b.Port != 0 {
		target = b.Port
	}
	return netip.AddrPortFrom(b.Address, target)
}

// ParseBackendID reads what Backend.ID writes. It rejects port 0, which Backend uses for
// "the service's target port".
func ParseBackendID(s string) (netip.Addr, uint16, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil && ap.Addr().Zone() == "" {
		if ap.Port() == 0 {
			return netip.Addr{}, 0, fmt.Errorf("invalid port 0 in backend %q: must be 1 to 65535", s)
		}
		return ap.Addr().Unmap(), ap.Port(), nil
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, 0, fmt.Errorf("%q is not a backend: use address or address:port, IPv6 as [address]:port", s)
	}
	return a.Unmap(), 0, nil
}

// BackendState is what an operator says of a backend.
type BackendState struct {
	Backend BackendKey
	State   State
}

// Allocation is what the allocator granted a service.
type Allocation struct {
	Asked      *Service     // the service that this answers, as it is in its row: shared, nobody changes it
	ServiceRev uint64       // revision of that row
	VIPs       []netip.Addr // at most one a family, IPv4 first
	Pool       string
	NodePorts  map[PortKey]uint16 // granted node ports
	Since      Instant            // when the oldest of the leases was drawn
	Problems   []Problem          // what could not be granted, and who holds it
}

// PortKey names a port, or a range of ports, of a service. Port 0 with TCP
// stands for the service's HealthPort among its node ports.
type PortKey struct {
	Port     uint16
	LastPort uint16 // as in Port
	Protocol Protocol
}

// HealthPortKey is what Allocation.NodePorts has a service's HealthPort under.
var HealthPortKey = PortKey{Protocol: TCP}

// String returns "80/tcp", "10000-10099/tcp" for a range, and "health-check"
// for HealthPortKey.
func (k PortKey) String() string {
	if k == HealthPortKey {
		return "health-check"
	}
	if k.LastPort != 0 {
		return fmt.Sprintf("%d-%d/%s", k.Port, k.LastPort, k.Protocol)
	}
	return fmt.Sprintf("%d/%s", k.Port, k.Protocol)
}

// Overlaps reports whether some port is in both.
func (k PortKey) Overlaps(o PortKey) bool {
	return k.Protocol == o.Protocol && k.Port <= max(o.Port, o.LastPort) && o.Port <= max(k.Port, k.LastPort)
}
