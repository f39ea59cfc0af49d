package announce

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Mode is how a VIP is announced.
type Mode uint8

// The modes. L2 has one owner, which answers ARP and neighbor solicitations. With BGP, every eligible
// host announces a route. With Routes, every eligible host sets a route for a router on the host.
const (
	Off Mode = iota
	L2
	BGP
	Routes
)

var modes = [...]string{Off: "off", L2: "l2", BGP: "bgp", Routes: "routes"}

func (m Mode) String() string {
	if int(m) < len(modes) {
		return modes[m]
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error {
	for i, name := range modes {
		if name == string(text) {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not a mode", text)
}

// DefaultPriority is the priority of a host without another one.
const DefaultPriority = 100

// Policy is the operator's choice of a host for a VIP at layer 2. Its zero value is the default, also as an older build sends it.
type Policy struct {
	// Moved is the Move.Stamp of the operator's move of the VIP to this host; 0: none. The newest one wins.
	Moved   uint32
	Pinned  bool  // of Moved: Move.Pin
	Standby bool  // the host owns only if no host without it can
	Above   int16 // its priority minus DefaultPriority; a host with a higher one owns first
}

// Priority returns the host's priority, from 0 to 255.
func (p Policy) Priority() int { return DefaultPriority + int(p.Above) }

// Move is an operator's choice of the host that owns a VIP at layer 2, before all else that ranks hosts. There is one for a VIP.
type Move struct {
	Addr   netip.Addr
	Node   string
	Pin    bool      // it stays when the host fails; else it ends when the host fails, drains or is not eligible
	Since  time.Time // in whole seconds
	Author string
}

// Stamp returns Since in Unix seconds, which orders moves.
func (m *Move) Stamp() uint32 { return uint32(m.Since.Unix()) }

// KeyOfMove returns the key of a row.
func KeyOfMove(m *Move) netip.Addr { return m.Addr }

// Eligible is a VIP of this host, and whether the host may announce it.
type Eligible struct {
	Addr   netip.Addr
	Mode   Mode
	Policy Policy
	// Services is how many services of the VIP this host serves: each has a frontend on the VIP
	// that is usable and applied. With 0, the host must not announce the VIP.
	Services int
	// Keep says that this host keeps the VIP at layer 2, if it has it, while Services is 0 here and no other host announces it.
	Keep bool
	// Reason is why Services is 0, or less than the VIP has; else "".
	Reason string
	Route  Route // of mode BGP
}

// KeyOfEligible returns the key of a row.
func KeyOfEligible(e *Eligible) netip.Addr { return e.Addr }

// Host is another host that exchanges heartbeats with this one.
type Host struct {
	Name     string
	Alive    bool
	Draining bool
	Weight   int // its share of VIPs relative to other hosts
	// OneWay says that the host is alive and does not receive this host's heartbeats. It acts as if
	// this host were dead.
	OneWay bool
}

// MaxServices bounds the number of services of a VIP that hosts compare: a heartbeat has one byte for it.
const MaxServices = 255

// Claim is what another host says of a VIP.
type Claim struct {
	Addr     netip.Addr
	Services int  // as in Eligible
	Owned    bool // it announces the VIP at layer 2
	Policy   Policy
}

// IsEmpty reports whether the host has nothing to say of the VIP. Its policy means nothing then.
func (c Claim) IsEmpty() bool { return c.Services == 0 && !c.Owned }

// Announcement is the decision for one VIP.
type Announcement struct {
	Addr netip.Addr
	Mode Mode
	Here bool // this host announces it
	// New says that no host has announced the VIP before, as far as this host knows.
	New    bool
	Policy Policy // of this host
	Moved  uint32 // L2: the newest Policy.Moved that is known of any host, dead ones included
	Over   uint32 // of this host: the Policy.Moved of the agent that is over, and that the agent should forget; 0: none
	Owner  string // L2: the host that announces it; "": none is known
	// Services is how many services of the VIP this host offers to announce it for.
	Services int
	Why      string
	// Ranking is L2: the hosts that could own the VIP, best first, each with what ranks it below the one before; "" for
	// fewer than two.
	Ranking string
	Since   time.Time // of Here and Owner
	Route   Route
	Updated vip.Instant // of Route
}

// KeyOfAnnouncement returns the key of a row.
func KeyOfAnnouncement(a *Announcement) netip.Addr { return a.Addr }

// NewPrefixes returns an empty table of prefixes, which the speaker of package routes follows.
func NewPrefixes() *table.Table[netip.Prefix, netip.Prefix] {
	return table.New(new(table.Clock), func(p *netip.Prefix) netip.Prefix { return *p }, func(a, b netip.Prefix) bool { return a == b })
}

// NewPrefixRoutes returns an empty table of routes, which the speaker of package bgp follows.
func NewPrefixRoutes() *table.Table[netip.Prefix, PrefixRoute] {
	return table.New(new(table.Clock), KeyOfPrefixRoute, func(a, b PrefixRoute) bool { return a == b })
}

// Place is where a VIP is announced: an interface at layer 2, a session with a router, or the routing table.
type Place struct {
	Addr netip.Addr
	At   string
}

// Announced is the result of an Announcement at one place.
type Announced struct {
	Place
	State  string // StateAnnounced or another one
	Reason string
	Since  time.Time

	Negotiated string // of a session with a router, as that of its Peer
}

// KeyOfAnnounced returns the key of a row.
func KeyOfAnnounced(a *Announced) Place { return a.Place }

// PeerKey identifies a Peer.
type PeerKey struct {
	Kind PeerKind
	Name string
}

// PeerKind is what a peer is.
type PeerKind string

// A Neighbor is another host of ironvip, the other kinds are sessions with routers, and where they may come from.
const (
	Neighbor   PeerKind = "host"
	BGPSession PeerKind = "bgp"
	BFDSession PeerKind = "bfd"
	BGPRange   PeerKind = "range" // of routers that may connect
)

// MaxVIPs bounds the VIPs that a Peer names.
const MaxVIPs = 20

// Peer is the state of a host or a router that the announcer is in touch with, in words.
type Peer struct {
	PeerKey
	Address string
	State   string // "alive", "dead", "one-way", "unknown"; of BGP and BFD their own
	Up      bool
	Since   time.Time
	Reason  string
	Hint    string // what to do about Reason
	// Problems are what an operator should change.
	Problems []string
	Differs  bool // a Neighbor decides by other settings, pools or rules than this host
	Draining bool
	Weight   int
	Eligible int // VIPs that it could announce
	Owned    int // VIPs that it announces; of a dead host, that it announced
	// VIPs are those of Owned of a dead host, in order, up to MaxVIPs.
	VIPs []netip.Addr
	Lost uint64 // heartbeats that did not arrive

	// Negotiated is what a session with a router has negotiated, in words; "" if it is not established.
	Negotiated string
	// Of a session with a router: why it carries no VIPs of IPv4 and of IPv6; "": it does, if it is up.
	Lacks [2]string
	// Sending is when everything had been sent for the last time, while something waits for the router to read; zero: nothing
	// waits.
	Sending time.Time
	Routes  RouteKeys // the router's own
	IBGP    bool
}

// KeyOfPeer returns the key of a row.
func KeyOfPeer(p *Peer) PeerKey { return p.PeerKey }

// SamePeer reports whether two rows are equal.
func SamePeer(a, b Peer) bool {
	same := slices.Equal(a.Problems, b.Problems)
	a.Problems, b.Problems = nil, nil
	return same && reflect.DeepEqual(a, b)
}
