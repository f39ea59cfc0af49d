package announce

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/ironvip/ironvip/vip"
)

// RouteKeys are an operator's choices for routes to routers. A key that is nil or "" is not chosen.
type RouteKeys struct {
	Communities []string `json:",omitzero"` // standard, large or by name, up to 64; an empty list: none
	MED         *uint32  `json:",omitzero"` // 0: not sent, which means the same
	LocalPref   *uint32  `json:",omitzero"` // for routers of the same AS; 0: the usual 100
	Prepend     *int     `json:",omitzero"` // for routers of other ASes: how often the ASN is in the path once more
	// LinkBandwidth is LinkBandwidthOff or LinkBandwidthBackends.
	LinkBandwidth string   `json:",omitzero"`
	Peers         []string `json:",omitzero"` // the names of the routers that get the route; nil: all
	HostRoutes    *bool    `json:",omitzero"` // false: only the aggregate of the VIP is announced
}

// Values of RouteKeys.LinkBandwidth: no community, or one with LinkBandwidthUnit for each usable backend of the VIP on this host.
const (
	LinkBandwidthOff      = "off"
	LinkBandwidthBackends = "backends"
)

// LinkBandwidthUnit is the bandwidth in bytes per second that stands for one backend: 1 Mbit/s, as FRR counts paths. Routers
// compare the bandwidths of the paths to a prefix, so only their ratio matters.
const LinkBandwidthUnit = 125_000

// defaultLocalPref is the local preference that routers use without one.
const defaultLocalPref = 100

// Or returns the keys with those that are not chosen from defaults.
func (k RouteKeys) Or(defaults RouteKeys) RouteKeys {
	if k.Communities == nil {
		k.Communities = defaults.Communities
	}
	if k.Peers == nil {
		k.Peers = defaults.Peers
	}
	return RouteKeys{Communities: k.Communities, MED: cmp.Or(k.MED, defaults.MED), LocalPref: cmp.Or(k.LocalPref, defaults.LocalPref),
		Prepend: cmp.Or(k.Prepend, defaults.Prepend), LinkBandwidth: cmp.Or(k.LinkBandwidth, defaults.LinkBandwidth),
		Peers: k.Peers, HostRoutes: cmp.Or(k.HostRoutes, defaults.HostRoutes)}
}

// RouteRule is the choice for the VIPs of some services.
type RouteRule struct {
	vip.Selector
	From string // the rule in words, for operators
	RouteKeys
}

// PoolRoutes are the choices for the routes of a pool's VIPs.
type PoolRoutes struct {
	From string // the pool in words, for operators; "": there are no choices
	RouteKeys
	Aggregates []netip.Prefix // that are announced while a VIP in them is
	Rules      []RouteRule    // the first one counts that selects a service of the VIP
	// CountsBackends says that a router's own keys ask for the link bandwidth.
	CountsBackends bool
}

// RoutePolicy is what the operator has chosen for the routes of one VIP, and where.
type RoutePolicy struct {
	RouteKeys              // of the VIP's rule, else of its pool; those of the router are the defaults
	From      string       // the rule or the pool, in words
	Aggregate netip.Prefix `json:",omitzero"` // that the VIP is in
	// Aggregated is the policy of the aggregate.
	Aggregated PolicyText `json:",omitzero"`
}

// PolicyText is a RoutePolicy as JSON; "" is the zero value. Equal ones share memory, and can be compared.
type PolicyText string

// Text returns the policy's text.
func (p *RoutePolicy) Text() PolicyText {
	text, err := json.Marshal(p)
	if err != nil {
		panic("announce: policy of routes: " + err.Error()) // plain values
	}
	return PolicyText(intern(string(text)))
}

// parsed has the policies in use, and some former ones: there is one for each rule of a pool.
var parsed struct {
	sync.RWMutex
	policies map[PolicyText]RoutePolicy
}

// maxParsed bounds parsed. Beyond it, all are parsed again.
const maxParsed = 4096

// Policy returns the policy, whose lists are not to be changed; of a text that is not one, the zero value.
func (t PolicyText) Policy() RoutePolicy {
	parsed.RLock()
	known, ok := parsed.policies[t]
	parsed.RUnlock()
	if ok || t == "" {
		return known
	}
	var p RoutePolicy
	if json.Unmarshal([]byte(t), &p) != nil {
		p = RoutePolicy{}
	}
	parsed.Lock()
	defer parsed.Unlock()
	if parsed.policies == nil || len(parsed.policies) == maxParsed {
		parsed.policies = map[PolicyText]RoutePolicy{}
	}
	parsed.policies[t] = p
	return p
}

// GobEncode and GobDecode carry a text between processes, where equal ones are to share memory again.
func (t PolicyText) GobEncode() ([]byte, error) { return []byte(t), nil }

func (t *PolicyText) GobDecode(text []byte) error {
	*t = PolicyText(intern(string(text)))
	return nil
}

// Route is what the routes of a VIP carry: the choices of the operator, before those of a router. It is comparable.
type Route struct {
	Policy PolicyText
	// Backends is how many backends of the VIP are usable on this host, if a router may get the link bandwidth; else 0.
	Backends int
}

// PrefixRoute is a route to announce.
type PrefixRoute struct {
	Prefix netip.Prefix // without host bits
	Route
}

// KeyOfPrefixRoute returns the key of a row.
func KeyOfPrefixRoute(r *PrefixRoute) netip.Prefix { return r.Prefix }

// For returns the routes of a VIP: its own and that of its aggregate. An invalid prefix is none.
func (r Route) For(addr netip.Addr) (own, aggregate PrefixRoute) {
	own = PrefixRoute{netip.PrefixFrom(addr, addr.BitLen()), r}
	p := r.Policy.Policy()
	if !p.Aggregate.IsValid() {
		return own, aggregate
	}
	if p.HostRoutes != nil && !*p.HostRoutes {
		own = PrefixRoute{}
	}
	return own, PrefixRoute{p.Aggregate, Route{Policy: p.Aggregated}}
}

// RouteAttributes are what a route says to one router.
type RouteAttributes struct {
	Communities   []string
	MED           uint32
	LocalPref     uint32 // of a router of the same AS; else 0
	Prepend       int
	LinkBandwidth int // bytes per second; 0: none
}

// stands reports whether a name of the configuration is that of a router, or of a range that has it.
func stands(name, router string) bool {
	of, vrf, _ := strings.Cut(name, "@")
	at, its, _ := strings.Cut(router, "@")
	network, badNetwork := netip.ParsePrefix(of)
	addr, badAddr := netip.ParseAddr(at)
	return name == router || badNetwork == nil && badAddr == nil && vrf == its && network.Contains(addr.WithZone(""))
}

// Attributes returns what the route says to a router with the given defaults, and whether the router gets the route at all. A
// draining host asks routers to use other paths (RFC 8326, 4.2).
func (r Route) Attributes(router string, defaults RouteKeys, ibgp, draining bool) (a RouteAttributes, gets bool) {
	k := r.Policy.Policy().Or(defaults)
	if k.Peers != nil && !slices.ContainsFunc(k.Peers, func(name string) bool { return stands(name, router) }) {
		return a, false
	}
	a.Communities, a.MED = k.Communities, value(k.MED)
	if k.LinkBandwidth == LinkBandwidthBackends {
		a.LinkBandwidth = r.Backends * LinkBandwidthUnit
	}
	if ibgp {
		a.LocalPref = cmp.Or(value(k.LocalPref), defaultLocalPref)
	} else {
		a.Prepend = value(k.Prepend)
	}
	if draining {
		a.Communities, a.LocalPref = append(slices.Clone(a.Communities), gracefulShutdown), 0
	}
	return a, true
}

// gracefulShutdown is the name of the community of a draining host.
const gracefulShutdown = "graceful-shutdown"

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
