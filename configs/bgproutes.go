package configs

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// BGPRoute has the keys of the routes to routers, in [[announce.bgp]], [pool.bgp] and [[pool.bgp.match]]. A nil one is
// not set there.
type BGPRoute struct {
	Communities   *[]string `toml:"communities"`
	MED           *int      `toml:"med" values:"0..4294967295"`
	LocalPref     *int      `toml:"local_pref" values:"0..4294967295"`
	Prepend       *int      `toml:"prepend" values:"0..32"`
	LinkBandwidth *string   `toml:"link_bandwidth" values:"off|backends"`
}

// PoolRoute has the keys of the routes of VIPs, in [pool.bgp] and [[pool.bgp.match]].
type PoolRoute struct {
	BGPRoute
	Peers      *[]string `toml:"peers"`       // names of routers: each one's peer, or its interface
	HostRoutes *bool     `toml:"host_routes"` // false: a VIP in an aggregate has no route of its own
}

// PoolBGP is [pool.bgp]: what the routes of the pool's VIPs carry.
type PoolBGP struct {
	PoolRoute
	Aggregate []netip.Prefix `toml:"aggregate"`
	Match     []BGPMatch     `toml:"match"`
}

// BGPMatch is [[pool.bgp.match]]: what the routes of VIPs of some services carry instead.
type BGPMatch struct {
	Namespaces []string `toml:"namespaces"`
	Labels     []string `toml:"labels"` // as dataplane.labels
	PoolRoute
}

const (
	maxCommunities = 64 // they and a prefix must fit into one message
	maxMatches     = 64 // each change of a VIP asks all
	maxAggregates  = 64
)

// keys returns the keys for the announcer. They have been checked.
func (r *BGPRoute) keys() announce.RouteKeys {
	number := func(n *int) *uint32 {
		if n == nil {
			return nil
		}
		return new(uint32(*n))
	}
	k := announce.RouteKeys{MED: number(r.MED), LocalPref: number(r.LocalPref), Prepend: r.Prepend, Communities: listed(r.Communities)}
	if r.LinkBandwidth != nil {
		k.LinkBandwidth = *r.LinkBandwidth
	}
	return k
}

func (r *PoolRoute) keys() announce.RouteKeys {
	k := r.BGPRoute.keys()
	k.Peers, k.HostRoutes = listed(r.Peers), r.HostRoutes
	return k
}

// listed returns a list that is not nil if the key is set.
func listed(list *[]string) []string {
	if list == nil {
		return nil
	}
	return append([]string{}, *list...)
}

// poolRoutes returns what the routes of a pool's VIPs carry.
func (c *Config) poolRoutes(p *Pool) announce.PoolRoutes {
	b := &p.BGP
	out := announce.PoolRoutes{Aggregates: b.Aggregate, CountsBackends: slices.ContainsFunc(c.Announce.BGP, func(r BGPPeer) bool {
		return r.LinkBandwidth != nil && *r.LinkBandwidth == announce.LinkBandwidthBackends
	})}
	if b.isZero() {
		return out
	}
	out.From, out.RouteKeys = "pool "+strconv.Quote(p.Name), b.keys()
	for i := range b.Match {
		m := &b.Match[i]
		from := out.From + ", match " + strconv.Itoa(i+1) + " (" + strings.Join(slices.Concat(m.Namespaces, m.Labels), ", ") + ")"
		out.Rules = append(out.Rules, announce.RouteRule{Selector: vip.Selector{Namespaces: m.Namespaces, Labels: m.Labels}, From: from, RouteKeys: m.keys()})
	}
	return out
}

func (b *PoolBGP) isZero() bool {
	return b.PoolRoute == PoolRoute{} && len(b.Aggregate) == 0 && len(b.Match) == 0
}

// checkPoolRoutes checks [pool.bgp] of all pools.
func (c *Config) checkPoolRoutes(doc *tomlfile.Checker) {
	var aggregates []netip.Prefix // of all pools
	var places []string
	for i := range c.Pools {
		p := &c.Pools[i]
		b, t := &p.BGP, doc.In(strict.Index("pool", i)).In("bgp")
		if b.isZero() {
			continue
		}
		if c.AnnounceMode(p) != announce.BGP {
			t.Bad("", `set announce = "bgp" in the pool, or announce.mode`, "has no effect: the VIPs of this pool are not announced by BGP")
		}
		c.checkPoolRoute(t, &b.PoolRoute)
		for i, a := range b.Aggregate {
			key := strict.Index("aggregate", i)
			clash := slices.IndexFunc(aggregates, a.Overlaps)
			switch {
			case !a.IsValid(): // decoding has reported it
			case a.IsSingleIP():
				t.Bad(key, "remove it", "%s is one address: its host route is announced without an aggregate", a)
			case !slices.ContainsFunc(p.CIDRs, a.Overlaps):
				t.Bad(key, "write a range with addresses of cidrs", "%s has no address of the pool", a)
			case clash >= 0:
				t.Bad(key, "keep one of them", "%s overlaps %s of %s", a, aggregates[clash], places[clash])
			}
			aggregates, places = append(aggregates, a), append(places, t.Place(key))
		}
		atMost(t, "aggregate", "ranges", len(b.Aggregate), maxAggregates)
		atMost(t, "match", "rules", len(b.Match), maxMatches)
		if b.HostRoutes != nil && len(b.Aggregate) == 0 {
			t.Bad("host_routes", "add aggregate, the ranges that are announced instead", "needs an aggregate")
		}
		for i := range b.Match {
			m, t := &b.Match[i], t.In(strict.Index("match", i))
			if len(m.Namespaces)+len(m.Labels) == 0 {
				t.Bad("", `add labels = ["tier=gold"] or namespaces, or move its keys to [pool.bgp]`, "selects no services")
			}
			t.List("namespaces", m.Namespaces, t.Label)
			checkLabels(t, m.Labels)
			c.checkPoolRoute(t, &m.PoolRoute)
			if m.HostRoutes != nil && len(b.Aggregate) == 0 {
				t.Bad("host_routes", "add aggregate to [pool.bgp], the ranges that are announced instead", "needs an aggregate")
			}
		}
	}
}

func (c *Config) checkPoolRoute(t *tomlfile.Checker, r *PoolRoute) {
	ibgp, ebgp := false, false
	var names []string
	for i := range c.Announce.BGP {
		router := c.Announce.BGP[i].router()
		ibgp, ebgp = ibgp || router.IBGP(), ebgp || !router.IBGP()
		names = append(names, router.Name())
	}
	r.check(t, ibgp, ebgp)
	if r.Peers == nil {
		return
	}
	if len(*r.Peers) == 0 {
		t.Bad("peers", "remove it for all routers, or name some", "names no router")
	}
	t.List("peers", *r.Peers, func(key, name string) {
		if !slices.Contains(names, name) {
			t.Bad(key, strict.OneOf(name, names...), "%s is not a router of [[announce.bgp]]", strict.Quote(name))
		}
	})
}

// check checks the keys for routers of the same AS, of other ones, or both.
func (r *BGPRoute) check(t *tomlfile.Checker, ibgp, ebgp bool) {
	if r.Communities != nil {
		atMost(t, "communities", "communities", len(*r.Communities), maxCommunities)
		for i, text := range *r.Communities {
			if err := new(message.PathAttributes).AddCommunity(text); err != nil {
				t.Bad(strict.Index("communities", i), `write "65010:100", "4200065010:1:100", or a name: `+strings.Join(message.CommunityNames(), ", "), "%s is not a community", strict.Quote(text))
			}
		}
	}
	if r.LocalPref != nil && *r.LocalPref != 0 && !ibgp {
		t.Bad("local_pref", "remove it", "is for a router of the same AS, and asn and local_asn differ")
	}
	if r.Prepend != nil && *r.Prepend != 0 && !ebgp {
		t.Bad("prepend", "remove it, or use local_pref", "is for a router of another AS, and asn and local_asn are the same")
	}
}

func atMost(t *tomlfile.Checker, key, things string, n, most int) {
	if n > most {
		t.Bad(key, "remove some", "%d %s are more than %d", n, things, most)
	}
}
