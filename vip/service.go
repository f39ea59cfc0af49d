package vip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Limits and defaults of a service, as documented in docs/services.md.
const (
	DefaultNamespace    = "default"
	DefaultScheduler    = WeightedRoundRobin
	DefaultWeight       = 1
	MaxWeight           = 65535
	MaxGroups           = 16
	DefaultDrainTimeout = 60 * time.Second
	MaxDrainTimeout     = 24 * time.Hour
	DefaultAffinity     = 10800 * time.Second // for affinity without a timeout
	MaxAffinity         = 86400 * time.Second
	MinSlowStart        = time.Second
	MaxSlowStart        = time.Hour
	// SlowStartSteps is how many weights an endpoint has from the begin of its slow start to the
	// end: one tenth of its weight first, all of it last.
	SlowStartSteps = 10
)

// Seconds is a time span in whole seconds, in a quarter of the memory of a time.Duration.
type Seconds uint16

// Duration returns the time span.
func (s Seconds) Duration() time.Duration { return time.Duration(s) * time.Second }

// ServiceKey identifies a service. It is unique across all sources.
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

// Compare orders keys by namespace and name.
func (k ServiceKey) Compare(other ServiceKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
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

// CheckLabel returns an error that explains why s is not a DNS label (RFC 1123: 1 to 63 of a-z, 0-9
// and "-", not at either end), or nil.
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

// Service is one desired service as its source defines it, validated and with every default filled
// in. It does not contain what the service was granted (see Allocation) or its status.
type Service struct {
	Key    ServiceKey
	Source string // the name of the source that owns it
	Origin string // where the source found it, for messages: "services.d/web.toml:7"
	Labels map[string]string

	VIPs []netip.Addr // requested addresses, at most one per family; empty: automatic
	// Preferred are addresses that the service has from another program. Each is chosen for a service that holds none of its
	// family, if it is free in the service's pool.
	Preferred []netip.Addr
	Ports     []Port
	Backends  []Backend // sorted by address, then port; no duplicates
	Groups    []Group   // as the source lists them, up to MaxGroups; nil: backends share by their own weights alone

	Settings
	SourceRanges []netip.Prefix // clients that may reach the VIP; empty: all

	Check *HealthCheck   // shared and immutable; nil: the default of package health
	Relay *ProxySettings // shared and immutable; nil: the defaults

	Hostnames Hostnames // DNS names besides those that follow from Key
}

// Selector selects services. Its zero value selects all.
type Selector struct {
	Namespaces []string // of the services; empty: all
	Labels     []string // "key" or "key=value", that a service has all of
}

// Selects reports whether a service with the key and labels is selected.
func (s *Selector) Selects(key ServiceKey, labels map[string]string) bool {
	if len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, key.Namespace) {
		return false
	}
	return !slices.ContainsFunc(s.Labels, func(label string) bool {
		name, want, valued := strings.Cut(label, "=")
		value, has := labels[name]
		return !has || valued && value != want
	})
}

// Settings are the fields of a service that have a single value. They are comparable, so a new field
// here is compared wherever services are.
type Settings struct {
	Pool     string   // "": the first pool with auto_assign
	ShareKey string   // services with the same key may share a VIP on disjoint ports
	Families Families // none: the families of the pool

	Scheduler         Scheduler
	SchedulerFallback bool // sh and mh: go to the next backend when the chosen one has weight 0
	SchedulerPort     bool // sh and mh: also hash the client's port
	OnePacket         bool // UDP: each datagram is scheduled separately; not with ForwardNAT
	// Assigned states that the source determines the VIPs and node ports, and gives none to two
	// services at a time. ironvip uses them unchanged: it chooses none, and an address that another
	// service released has no cooldown.
	Assigned bool
	// NotHere states that the service is outside of this host's scope: it is known, and others serve it. Only the stage that
	// resolves claims sets it.
	NotHere bool
	// ResetUnhealthy resets the open connections of a backend that becomes unhealthy.
	ResetUnhealthy bool
	// PanicThreshold is in percent: if fewer of the ready backends are not unhealthy, health has no
	// effect and all of them take new connections. 0: off.
	PanicThreshold uint8
	Masquerade     Masquerade
	// SynProxy states that the host completes the handshakes of TCP clients itself while too many come.
	SynProxy bool
	// SlowStart is how long the weight of a backend grows after the backend begins to take new
	// connections. 0: it has its whole weight at once.
	SlowStart Seconds
	SourceLimits
	// HealthPort is a host port on which the agent reports by HTTP whether this node has a ready
	// backend of the service. It is for upstream balancers, as Kubernetes' healthCheckNodePort is.
	// It is set only with ExternalTraffic Local.
	HealthPort      NodePort
	Forward         Forward
	InternalTraffic TrafficPolicy
	ExternalTraffic TrafficPolicy
	Distribution    TrafficDistribution
	Affinity        time.Duration // 0: none; else how long a client keeps its backend
	DrainTimeout    time.Duration
}

// The keys of SourceLimits in documents, and the reasons of refusals in metrics.
const (
	MaxConnectionsPerSource = "max_connections_per_source"
	MaxRatePerSource        = "max_rate_per_source"
)

// SynProxy is the key of Settings.SynProxy in documents.
const SynProxy = "syn_proxy"

// SourceLimits bound what one client may open at each address and port of a service; a range counts as one port. A client is
// an address of IPv4, or a /64 of IPv6. Clients on this host have no limit. 0: no limit.
type SourceLimits struct {
	MaxConnectionsPerSource uint16 // open connections and UDP sessions
	MaxRatePerSource        uint16 // new ones per second; a burst may have as many at once
}

// GroupOf returns the group of a backend; nil if it has none.
func (s *Service) GroupOf(b *Backend) *Group {
	if b.Group == "" {
		return nil
	}
	for i := range s.Groups {
		if s.Groups[i].Name == b.Group {
			return &s.Groups[i]
		}
	}
	return nil
}

// Port is one port of a service, or a range of ports. No two ports of a service have both the same
// number and the same protocol.
type Port struct {
	Name       string // unique in the service; "80/tcp" style if the source gave none
	Protocol   Protocol
	Port       uint16   // the first of a range
	LastPort   uint16   // the last of a range, above Port; 0 for a single port
	TargetPort uint16   // default port of the backends; 0, for ranges only: the port that the client connects to
	NodePort   NodePort // never for a range
}

// Key returns the port's key within its service.
func (p *Port) Key() PortKey {
	return PortKey{Port: p.Port, LastPort: p.LastPort, Protocol: p.Protocol}
}

// NodePort determines whether a port is also served on the host's own addresses.
type NodePort struct {
	Auto   bool   // the allocator chooses
	Number uint16 // requested; 0 with Auto false: off
}

// Wanted reports whether a node port is requested.
func (n NodePort) Wanted() bool { return n.Auto || n.Number != 0 }

// Backend is one server behind a service.
type Backend struct {
	Address netip.Addr
	Port    uint16 // 0: each service port's TargetPort
	State   State
	Health  Health // what its source observed: Healthy or Unhealthy; 0: the source checks nothing
	Backup  bool   // takes new connections only if no other backend does
	Weight  uint32 // 0 to MaxWeight; 0 accepts no new connections
	// MaxConnections bounds the open connections and UDP sessions to each of its ports, over all of
	// the service's addresses. 0: no limit.
	MaxConnections uint32
	Group          string // the name of one of the service's Groups; empty: none
	Reason         Reason // why the source reports it as unhealthy or not ready, if known
	Node           string // its host, if known
	Zone           string // the zone of that host, if known

	Ports    Names // names of the service ports that it serves; empty: all
	ForZones Names // zones that it is intended for (Kubernetes' topology hints); empty: all
	ForNodes Names // nodes that it is intended for; empty: all. See compile for when hints apply.
}

// Group is a part of a service's backends with a share of the new connections: its weight, of the weights of all groups
// with a usable backend. How many backends it has doesn't matter.
type Group struct {
	Name   string // a DNS label, unique in the service
	Weight uint32 // 0 to MaxWeight; 0 accepts no new connections
}

// BackendKey identifies a backend of a service. Port is as in Backend: 0 if the backend uses the
// service's target ports.
type BackendKey struct {
	Service ServiceKey
	Address netip.Addr
	Port    uint16
}

// Compare orders backends by service, then by address and port.
func (k BackendKey) Compare(other BackendKey) int {
	return cmp.Or(k.Service.Compare(other.Service), k.Address.Compare(other.Address), cmp.Compare(k.Port, other.Port))
}

// ID returns the backend's name within its service; see Backend.ID.
func (k BackendKey) ID() string { return Backend{Address: k.Address, Port: k.Port}.ID() }

// ID returns the backend's name within its service: "10.1.0.11:8080", "[2001:db8::1]:8080", or only
// the address if it uses target ports.
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

// Endpoint returns where the backend serves a service port with TargetPort target.
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

// OverrideKey identifies an operator's override: of a backend, or of a group of a service.
type OverrideKey struct {
	BackendKey        // without Address and Port: Group
	Group      string // "": the backend
}

// Compare orders keys by service, its backends first.
func (k OverrideKey) Compare(other OverrideKey) int {
	return cmp.Or(k.Service.Compare(other.Service), cmp.Compare(k.Group, other.Group), k.BackendKey.Compare(other.BackendKey))
}

// ID returns the name of the backend or group within its service. No DNS label is an address.
func (k OverrideKey) ID() string {
	if k.Group != "" {
		return k.Group
	}
	return k.BackendKey.ID()
}

// BackendState is an operator's override of a backend's state, or of the weight of a group.
type BackendState struct {
	Backend BackendKey
	Group   string  // the group of the service of Backend, whose other fields are zero; "": a backend
	State   State   // of a backend
	Weight  uint32  // of a group
	Since   Instant // when it was set
	Until   Instant // when it expires; zero: never
	Author  string  // who set it: a user of the host, or "tcp 127.0.0.1"; "" if unknown
	Node    string  // the node through which it was set; "" without a fleet
	Local   bool    // it is in effect on this host only, until the fleet's store is reachable
}

// Sets returns what the override sets: "drain", or "weight 10".
func (s *BackendState) Sets() string {
	if s.Group == "" || s.State != 0 {
		return s.State.String()
	}
	return fmt.Sprintf("weight %d", s.Weight)
}

// Allocation is what the allocator granted to a service.
type Allocation struct {
	Asked      *Service     // the service that this is for, as in its row: shared and immutable
	ServiceRev uint64       // revision of that row
	VIPs       []netip.Addr // at most one per family, IPv4 first
	Pool       string
	NodePorts  map[PortKey]uint16 // granted node ports
	Since      Instant            // when the oldest of the leases was created
	Problems   []Problem          // what could not be granted, and who holds it
	Reserved   [2]bool            // of each of VIPs: it stays reserved after the service
}

// PortKey identifies a port, or a range of ports, of a service. Port 0 with TCP is the service's
// HealthPort among its node ports.
type PortKey struct {
	Port     uint16
	LastPort uint16 // as in Port
	Protocol Protocol
}

// HealthPortKey is the key of a service's HealthPort in Allocation.NodePorts.
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

// Overlaps reports whether the two keys have a port in common.
func (k PortKey) Overlaps(o PortKey) bool {
	return k.Protocol == o.Protocol && k.Port <= max(o.Port, o.LastPort) && o.Port <= max(k.Port, k.LastPort)
}
