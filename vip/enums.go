package vip

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Family is an IP address family.
type Family uint8

// The address families. The zero Family means "not stated".
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of a. An IPv4-mapped IPv6 address counts as IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Families are the address families that a service requests, each once, in the order of the
// request: the first in the low four bits, the second in the high four. The zero Families has none.
type Families uint8

// FamiliesOf returns the families of a list of at most two.
func FamiliesOf(list ...Family) (f Families) {
	for i, one := range list {
		f |= Families(one) << (4 * i)
	}
	return f
}

// List returns the families in their order, nil for none.
func (f Families) List() (list []Family) {
	for ; f != 0; f >>= 4 {
		list = append(list, Family(f&0xf))
	}
	return list
}

// Protocol is a transport protocol, numbered as in the IP header.
type Protocol uint8

// The transport protocols a service port may use.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Scheduler is how a dataplane chooses a backend for a new connection. The names are those of Linux
// IPVS. The zero Scheduler means "not stated".
type Scheduler uint8

// The schedulers of the kernel's IPVS. OtherScheduler is any scheduler that a service cannot
// request. It occurs only in the kernel, set by another program.
const (
	RoundRobin Scheduler = iota + 1
	WeightedRoundRobin
	LeastConnection
	WeightedLeastConnection
	SourceHash
	MaglevHash
	ShortestExpectedDelay
	NeverQueue
	WeightedFailover
	DestinationHash
	OtherScheduler
)

// Schedulers lists every scheduler that a service may request.
func Schedulers() []Scheduler {
	return []Scheduler{RoundRobin, WeightedRoundRobin, LeastConnection, WeightedLeastConnection, SourceHash,
		MaglevHash, ShortestExpectedDelay, NeverQueue, WeightedFailover, DestinationHash}
}

// Forward is how packets travel from the balancing host to a backend. The zero
// Forward means "not stated".
type Forward uint8

// The forwarding methods of IPVS, and ForwardHost: the packets are for this host itself, which has the VIP for its own programs.
const (
	ForwardNAT Forward = iota + 1
	ForwardDirect
	ForwardTunnel
	ForwardHost
)

// TrafficPolicy determines which backends a kind of traffic may reach. The zero TrafficPolicy means
// "not stated".
type TrafficPolicy uint8

// Cluster uses every backend, Local only those on the balancing node.
const (
	Cluster TrafficPolicy = iota + 1
	Local
)

// Masquerade determines when this host's address replaces the client's. The zero Masquerade means
// "not stated".
type Masquerade uint8

// MasqueradeAuto masquerades only where a reply would otherwise miss this host. MasqueradeOwn
// replaces auto where clients keep their address: it masquerades only this host's own connections
// and those of a backend to itself. Frontends have it; services cannot request it.
const (
	MasqueradeAuto Masquerade = iota + 1
	MasqueradeAlways
	MasqueradeNever
	MasqueradeOwn
)

// TrafficDistribution determines which backends are preferred among those that the traffic policy
// allows. The names are those of Kubernetes' trafficDistribution. The zero TrafficDistribution
// means "not stated".
type TrafficDistribution uint8

// DistributeAny prefers no backends. PreferSameZone uses the backends of this node's zone if any is
// ready. PreferSameNode uses those of this node, else of its zone, else all.
const (
	DistributeAny TrafficDistribution = iota + 1
	PreferSameZone
	PreferSameNode
)

// ProxyVersion is a version of the PROXY protocol. The zero ProxyVersion means no header.
type ProxyVersion uint8

// The versions: a line of text, and a binary header.
const (
	ProxyV1 ProxyVersion = iota + 1
	ProxyV2
)

// The names, indexed by value. Values are numbers because every service, frontend and backend has
// several, and strings would take a large part of the memory.
var (
	schedulers           = []string{"", "rr", "wrr", "lc", "wlc", "sh", "mh", "sed", "nq", "fo", "dh", "other"}
	forwards             = []string{"", "nat", "dr", "tunnel", "host"}
	trafficPolicies      = []string{"", "cluster", "local"}
	masquerades          = []string{"", "auto", "always", "never", "own"}
	trafficDistributions = []string{"", "any", "same-zone", "same-node"}
	proxyVersions        = []string{"", "v1", "v2"}
	states               = []string{"", "ready", "drain", "maint", "terminating"}
	healths              = []string{"", "unknown", "healthy", "unhealthy", "unchecked", "ejected"}
	checkTypes           = []string{"", "tcp", "http", "https", "grpc", "udp", "exec", "none"}
)

func wordOf[T ~uint8](n T, words []string) string {
	if int(n) < len(words) {
		return words[n]
	}
	return fmt.Sprintf("%T(%d)", n, uint8(n))
}

func readWord[T ~uint8](n *T, text []byte, words []string) error {
	i := slices.Index(words, string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of %s", text, strings.Join(words[1:], ", "))
	}
	*n = T(i)
	return nil
}

// String returns the name, as "rr", or "" if not stated.
func (s Scheduler) String() string { return wordOf(s, schedulers) }

// MarshalText writes String.
func (s Scheduler) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Scheduler) UnmarshalText(b []byte) error { return readWord(s, b, schedulers) }

// String returns "nat", "dr", "tunnel" or "host", or "" if not stated.
func (f Forward) String() string { return wordOf(f, forwards) }

// MarshalText writes String.
func (f Forward) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (f *Forward) UnmarshalText(b []byte) error { return readWord(f, b, forwards) }

// String returns "cluster" or "local", or "" if not stated.
func (p TrafficPolicy) String() string { return wordOf(p, trafficPolicies) }

// MarshalText writes String.
func (p TrafficPolicy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *TrafficPolicy) UnmarshalText(b []byte) error { return readWord(p, b, trafficPolicies) }

// String returns "auto", "always", "never" or "own", or "" if not stated.
func (m Masquerade) String() string { return wordOf(m, masquerades) }

// MarshalText writes String.
func (m Masquerade) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (m *Masquerade) UnmarshalText(b []byte) error { return readWord(m, b, masquerades) }

// String returns "any", "same-zone" or "same-node", or "" if not stated.
func (d TrafficDistribution) String() string { return wordOf(d, trafficDistributions) }

// MarshalText writes String.
func (d TrafficDistribution) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (d *TrafficDistribution) UnmarshalText(b []byte) error {
	return readWord(d, b, trafficDistributions)
}

// String returns "v1" or "v2", or "" for none.
func (p ProxyVersion) String() string { return wordOf(p, proxyVersions) }

// MarshalText writes String.
func (p ProxyVersion) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *ProxyVersion) UnmarshalText(b []byte) error { return readWord(p, b, proxyVersions) }

// State is the state that an operator or a source sets for a backend. The zero State means "not
// stated", which is ready.
type State uint8

// Ready accepts new connections. Drain keeps the open connections and accepts no new ones. Maint is
// the same to the dataplane and shows that an operator did it. Terminating is about to end and
// still serves: it accepts new connections only if no backend is ready.
const (
	Ready State = iota + 1
	Drain
	Maint
	Terminating
)

// String returns "ready", "drain", "maint" or "terminating", or "" if not stated.
func (s State) String() string { return wordOf(s, states) }

// MarshalText writes String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *State) UnmarshalText(b []byte) error { return readWord(s, b, states) }

func (f Family) String() string {
	switch f {
	case IPv4:
		return "ipv4"
	case IPv6:
		return "ipv6"
	}
	return fmt.Sprintf("family(%d)", uint8(f))
}

// MarshalText writes "ipv4" or "ipv6".
func (f Family) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads "ipv4" or "ipv6".
func (f *Family) UnmarshalText(b []byte) error {
	switch strings.ToLower(string(b)) {
	case "ipv4":
		*f = IPv4
	case "ipv6":
		*f = IPv6
	default:
		return fmt.Errorf("%q is not an address family: use ipv4 or ipv6", b)
	}
	return nil
}

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return fmt.Sprintf("protocol(%d)", uint8(p))
}

// MarshalText writes the lower-case name.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads tcp, udp or sctp in upper or lower case.
func (p *Protocol) UnmarshalText(b []byte) error {
	switch strings.ToLower(string(b)) {
	case "tcp":
		*p = TCP
	case "udp":
		*p = UDP
	case "sctp":
		*p = SCTP
	default:
		return fmt.Errorf("%q is not a protocol: use tcp, udp or sctp", b)
	}
	return nil
}
