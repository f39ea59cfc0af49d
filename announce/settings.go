package announce

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Settings are all settings of the announcer, secrets included. The agent reads the configuration
// and sends them.
type Settings struct {
	Node     string // the name of this host
	Weight   int
	Draining bool

	Device string // the interface with the VIPs
	LANs   []LAN  // L2: of all pools
	Pools  []Pool

	Listen    string // UDP address of the heartbeats
	Peers     []netip.AddrPort
	Keys      [][]byte // the first one signs
	Heartbeat time.Duration
	Missed    int
	Settle    time.Duration
	// Hold is how long announcements stay when the agent is gone.
	Hold time.Duration

	RouterID netip.Addr // of BGP: an IPv4 address
	BGP      []BGPPeer
}

// Equal reports whether two settings are the same.
func (s Settings) Equal(other Settings) bool { return reflect.DeepEqual(s, other) }

// LAN is where the VIPs of some pools are announced at layer 2.
type LAN struct {
	Pools      []string // their names
	CIDRs      []netip.Prefix
	Interfaces []string // of this host; empty: it has none there
}

// At returns the interfaces as a Place has them.
func (l *LAN) At() string { return strings.Join(l.Interfaces, ",") }

// Has reports whether a VIP is announced here.
func (l *LAN) Has(vip netip.Addr) bool {
	return slices.ContainsFunc(l.CIDRs, func(p netip.Prefix) bool { return p.Contains(vip) })
}

// Interfaces returns those of all LANs, in order.
func Interfaces(lans []LAN) (names []string) {
	for _, l := range lans {
		names = append(names, l.Interfaces...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Pool is a range of VIPs with its mode.
type Pool struct {
	Name  string         `json:"name"`
	Mode  Mode           `json:"mode"`
	CIDRs []netip.Prefix `json:"cidrs"`
	// The following are this host's own. The agent applies them, and the announcer ignores them.
	Policy      Policy     `json:"-"`
	MinBackends Least      `json:"-"`
	Routes      PoolRoutes `json:"-"` // of BGP
}

// Least is how many backends of a service must be usable before this host may announce its VIPs. The zero value is one.
type Least struct {
	Number  int
	Percent int // of all backends of the service that are not being removed, rounded up; 0 to 100
}

// Of returns the number for a service with this many backends: at least 1.
func (l Least) Of(backends int) int {
	return max(1, l.Number, (backends*l.Percent+99)/100)
}

// String returns "2" or "50%".
func (l Least) String() string {
	if l.Percent > 0 {
		return fmt.Sprintf("%d%%", l.Percent)
	}
	return fmt.Sprint(max(1, l.Number))
}

// BGPPeer is a router to announce routes to. It is valid: the configuration has been checked, which has no
// two with the same name.
type BGPPeer struct {
	Peer      netip.Addr   // with a zone if it is link-local; invalid with Interface and PeerRange
	Interface string       // unnumbered: the router at the other end of this interface
	PeerRange netip.Prefix // each router with an address in it that connects to this host
	PeerLimit int          // of PeerRange: sessions at the same time

	Source  netip.Addr // this host's address; invalid: the kernel chooses, and passive sessions are accepted at any
	VRF     string     // the VRF, or another interface, to which the sockets are bound; "": none
	Port    uint16     // TCP, of the side that accepts the connection; 0: 179
	Passive bool       // the router connects; also set with PeerRange

	ASN      uint32
	LocalASN uint32 // of this host; the same as ASN: iBGP
	Password string // of TCP MD5 signatures (RFC 2385); "": none
	Multihop int    // the largest number of hops to it; 0: a router of another AS must be directly connected
	// TTLSecurity accepts only packets that have passed at most Multihop routers (RFC 5082). The router
	// needs the same setting.
	TTLSecurity bool

	// Of the routes, as in RouteKeys: the defaults of what pools choose. A change of these alone keeps the session, as
	// does one of BFD.
	Communities   []string
	MED           *uint32
	LocalPref     *uint32
	Prepend       *int
	LinkBandwidth string

	BFDInterval   time.Duration // 0: no BFD
	BFDMultiplier int
}

// Name identifies the router: its address, its interface if it is unnumbered, or the range, and the VRF.
func (p *BGPPeer) Name() string {
	name := p.Interface
	switch {
	case p.PeerRange.IsValid():
		name = p.PeerRange.String()
	case name == "":
		name = p.Peer.String()
	}
	if p.VRF != "" {
		name += "@" + p.VRF
	}
	return name
}

// Of returns the settings of one router of the range.
func (p BGPPeer) Of(router netip.Addr) BGPPeer {
	p.Peer, p.PeerRange, p.PeerLimit = router, netip.Prefix{}, 0
	return p
}

// Routes returns the keys of the routes.
func (p *BGPPeer) Routes() RouteKeys {
	return RouteKeys{Communities: p.Communities, MED: p.MED, LocalPref: p.LocalPref, Prepend: p.Prepend, LinkBandwidth: p.LinkBandwidth}
}

// IBGP reports whether the router is in the same AS.
func (p *BGPPeer) IBGP() bool { return p.ASN == p.LocalASN }

// Announces reports whether any pool is announced.
func (s *Settings) Announces() bool { return s.Uses(L2) || s.Uses(BGP) || s.Uses(Routes) }

// Uses reports whether any pool uses the mode.
func (s *Settings) Uses(m Mode) bool {
	for _, p := range s.Pools {
		if p.Mode == m {
			return true
		}
	}
	return false
}

// Ranges returns the ranges of the pools with a mode.
func (s *Settings) Ranges(m Mode) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s.Pools {
		if p.Mode == m {
			out = append(out, p.CIDRs...)
		}
	}
	return out
}

// rules is the number of the rules by which candidate.compare ranks hosts. A build with other rules has another number.
const rules = 2

// Digest is equal on hosts that decide alike: it covers the rules, the pools and the times.
func (s *Settings) Digest() uint64 {
	shared, err := json.Marshal([]any{rules, s.Pools, s.Heartbeat, s.Missed, s.Settle})
	if err != nil {
		panic("announce: settings: " + err.Error()) // plain values
	}
	h := fnv.New64a()
	h.Write(shared)
	return h.Sum64()
}

// Timing returns the times of the decision.
func (s *Settings) Timing() Timing {
	return Timing{Settle: s.Settle, Handover: s.Heartbeat * time.Duration(s.Missed), Leave: leave}
}

// leave is how long the routes of a draining host stay after routers were asked to avoid them. A
// router applies that within one run of its decision; 2 s leaves room for slow ones.
const leave = 2 * time.Second
