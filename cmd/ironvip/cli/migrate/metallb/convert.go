package metallb

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// Convert reads YAML documents, also lists of them as kubectl prints. name is their name in notes.
func Convert(name, text string) migrate.Result {
	c := converter{Result: &migrate.Result{}, of: map[string][]*object{}}
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var n yaml.Node
		switch err := decoder.Decode(&n); {
		case errors.Is(err, io.EOF):
			c.convert()
			c.SortNotes()
			return *c.Result
		case err != nil: // the decoder can't go on
			c.Note(migrate.Place{File: name, Line: 1}, "not read: %v", err)
			c.SortNotes()
			return *c.Result
		case len(n.Content) == 1:
			c.resource(newObject(name, "", n.Content[0]))
		}
	}
}

// converter has the resources by their kind.
type converter struct {
	*migrate.Result
	of map[string][]*object
}

// kinds are the resources that are converted. ironvip needs no equivalent of ConfigurationState and the like.
var kinds = []string{"IPAddressPool", "L2Advertisement", "BGPAdvertisement", "BGPPeer", "BFDProfile", "Community"}

func (c *converter) resource(o *object) {
	kind := text(c.Result, o, "kind")
	if items := o.at["items"]; items != nil && items.Kind == yaml.SequenceNode {
		for _, item := range items.Content {
			c.resource(newObject(o.File, "", item))
		}
		return
	}
	if !slices.Contains(kinds, kind) {
		c.Note(o.Place, "a resource of kind %q is not converted", kind)
		return
	}
	o.quiet("apiVersion", "metadata", "status")
	c.of[kind] = append(c.of[kind], o)
}

func nameOf(r *migrate.Result, o *object) string { return text(r, newMetadata(o), "name") }

func newMetadata(o *object) *object {
	n := o.at["metadata"]
	if n == nil {
		n = &yaml.Node{}
	}
	return newObject(o.File, "metadata", n)
}

func (c *converter) convert() {
	communities := map[string]string{}
	for _, o := range c.of["Community"] {
		all, _, _ := value[[]struct{ Name, Value string }](c.Result, o.object("spec"), "communities")
		for _, one := range all {
			communities[one.Name] = one.Value
		}
	}
	pools := c.pools()
	c.layer2(pools)
	c.bgp(pools, communities)
	for _, p := range pools {
		c.Pools = append(c.Pools, p.Pool)
	}
	for _, kind := range kinds {
		for _, o := range c.of[kind] {
			o.noteUnread(c.Result)
		}
	}
}

// pool is a pool with the resource that it comes from.
type pool struct {
	migrate.Pool
	*object
	hosts bool // an advertisement has host routes
}

func (c *converter) pools() (out []*pool) {
	for _, o := range c.of["IPAddressPool"] {
		spec := o.object("spec")
		p := &pool{object: o, Pool: migrate.Pool{Name: nameOf(c.Result, o), Announce: announce.Off.String()}}
		ranges, at, _ := value[[]string](c.Result, spec, "addresses")
		for _, r := range ranges {
			r = strings.ReplaceAll(r, " ", "")
			if prefix, err := netip.ParsePrefix(r); err == nil && prefix.Masked() != prefix {
				c.Note(at, "%s has bits set behind its length: %s is used", r, prefix.Masked())
				r = prefix.Masked().String()
			}
			p.CIDRs = append(p.CIDRs, r)
		}
		if auto, _, has := value[bool](c.Result, spec, "autoAssign"); has && !auto {
			p.AutoAssign = new(false)
		}
		if avoid, at, _ := value[bool](c.Result, spec, "avoidBuggyIPs"); avoid {
			c.Note(at, "avoidBuggyIPs is not converted: write the addresses that end with .0 and .255 to exclude of the pool %q", p.Name)
		}
		allocation := spec.object("serviceAllocation")
		p.Namespaces, _, _ = value[[]string](c.Result, allocation, "namespaces")
		out = append(out, p)
	}
	return out
}

// selected returns the pools of an advertisement: those that it names, or all.
func (c *converter) selected(spec *object, pools []*pool) (out []*pool) {
	names, at, _ := value[[]string](c.Result, spec, "ipAddressPools")
	if n := spec.at["ipAddressPoolSelectors"]; n != nil && len(names) == 0 {
		spec.quiet("ipAddressPoolSelectors")
		c.Note(migrate.Place{File: spec.File, Line: n.Line}, "ipAddressPoolSelectors is not converted: set announce in the pools that it selects")
		return nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(pools, func(p *pool) bool { return p.Name == name }) {
			c.Note(at, "there is no IPAddressPool %q here", name)
		}
	}
	for _, p := range pools {
		if len(names) == 0 || slices.Contains(names, p.Name) {
			out = append(out, p)
		}
	}
	return out
}

func (c *converter) layer2(pools []*pool) {
	for _, o := range c.of["L2Advertisement"] {
		spec := o.object("spec")
		c.announces()
		interfaces, _, _ := value[[]string](c.Result, spec, "interfaces")
		for _, name := range interfaces {
			c.Announce.AddInterface(name)
		}
		for _, p := range c.selected(spec, pools) {
			p.Announce = announce.L2.String()
		}
	}
}

func (c *converter) announces() {
	if c.Announce == nil {
		c.Announce = &migrate.Announce{}
	}
}

func (c *converter) bgp(pools []*pool, communities map[string]string) {
	profiles := map[string]*object{}
	for _, o := range c.of["BFDProfile"] {
		profiles[nameOf(c.Result, o)] = o.object("spec")
	}
	routers := map[string]string{} // their addresses
	for _, o := range c.of["BGPPeer"] {
		c.announces()
		r := c.router(o.object("spec"), profiles)
		routers[nameOf(c.Result, o)] = cmp.Or(r.Peer, r.Interface)
		c.Announce.Routers = append(c.Announce.Routers, r)
	}
	for _, o := range c.of["BGPAdvertisement"] {
		spec := o.object("spec")
		route := c.route(spec, communities, routers)
		four, _, _ := value[int](c.Result, spec, "aggregationLength")
		six, _, _ := value[int](c.Result, spec, "aggregationLengthV6")
		for _, p := range c.selected(spec, pools) {
			c.advertise(p, o, route, four, six)
		}
	}
	for _, p := range pools {
		if p.BGP != nil && len(p.BGP.Aggregate) > 0 && !p.hosts {
			p.BGP.HostRoutes = new(false)
		}
	}
}

// advertise makes an advertisement a part of a pool, which has one policy.
func (c *converter) advertise(p *pool, o *object, route migrate.Routes, four, six int) {
	if p.Announce == announce.L2.String() {
		c.Note(o.Place, "pool %q is announced at layer 2, too, and a pool has one mode: bgp is used", p.Name)
	}
	p.Announce = announce.BGP.String()
	switch {
	case p.BGP == nil:
		first := route
		p.BGP = &first
	case !p.BGP.Same(route):
		c.Note(o.Place, "the BGPAdvertisement differs from that of before for the pool %q, which has one policy of routes: it is not converted", p.Name)
		return
	}
	for _, text := range p.CIDRs {
		cidr, err := netip.ParsePrefix(text)
		length := four
		if err == nil && cidr.Addr().Is6() {
			length = six
		}
		if length == 0 || err == nil && length == cidr.Addr().BitLen() {
			p.hosts = true
			continue
		}
		if err != nil {
			c.Note(o.Place, "an aggregate of the range %s is not converted: write it to bgp.aggregate of the pool %q", text, p.Name)
			p.hosts = true
			continue
		}
		if length > cidr.Bits() {
			c.Note(o.Place, "aggregates of /%d in %s become one of %s: the pool %q announces it while any of its VIPs is served", length, cidr, cidr, p.Name)
			length = cidr.Bits()
		}
		aggregate := netip.PrefixFrom(cidr.Addr(), length).Masked().String()
		if !slices.Contains(p.BGP.Aggregate, aggregate) {
			p.BGP.Aggregate = append(p.BGP.Aggregate, aggregate)
		}
	}
}

func (c *converter) route(spec *object, communities, routers map[string]string) (out migrate.Routes) {
	names, _, _ := value[[]string](c.Result, spec, "communities")
	for _, name := range names {
		if known := communities[name]; known != "" {
			name = known
		}
		out.Communities = append(out.Communities, strings.TrimPrefix(name, "large:"))
	}
	if n, _, has := value[int](c.Result, spec, "localPref"); has {
		out.LocalPref = new(n)
	}
	peers, at, _ := value[[]string](c.Result, spec, "peers")
	for _, name := range peers {
		if routers[name] == "" {
			c.Note(at, "there is no BGPPeer %q here", name)
			continue
		}
		out.Peers = append(out.Peers, routers[name])
	}
	return out
}

// router converts a BGPPeer.
func (c *converter) router(spec *object, profiles map[string]*object) (r migrate.Router) {
	r.Peer, r.Interface, r.Source, r.VRF = text(c.Result, spec, "peerAddress"), text(c.Result, spec, "interface"), text(c.Result, spec, "sourceAddress"), text(c.Result, spec, "vrf")
	r.ASN, _, _ = value[int](c.Result, spec, "peerASN")
	r.LocalASN, _, _ = value[int](c.Result, spec, "myASN")
	if port, _, has := value[int](c.Result, spec, "peerPort"); has && port != 179 {
		r.Port = port
	}
	if hops, _, _ := value[bool](c.Result, spec, "ebgpMultiHop"); hops {
		r.Multihop = 255
	}
	if _, at, has := value[string](c.Result, spec, "password"); has {
		r.PasswordFile = "bgp-password"
		c.Note(at, "write the password to the file %s beside ironvip.toml", r.PasswordFile)
	}
	spec.quiet("enableGracefulRestart", "connectTime", "disableMP", "routerID") // ironvip has the first always, and chooses the others
	if name, at, has := value[string](c.Result, spec, "bfdProfile"); has {
		profile := profiles[name]
		if profile == nil {
			c.Note(at, "there is no BFDProfile %q here", name)
			return r
		}
		r.BFD = c.detection(profile)
	}
	return r
}

// detection returns the detection of a BFDProfile: "3x300ms". The defaults are MetalLB's.
func (c *converter) detection(profile *object) string {
	number := func(key string, standard int) int {
		if n, _, has := value[int](c.Result, profile, key); has {
			return n
		}
		return standard
	}
	interval := max(number("receiveInterval", 300), number("transmitInterval", 300))
	profile.quiet("minimumTtl", "echoInterval") // of an echo mode that is off
	return fmt.Sprintf("%dx%s", number("detectMultiplier", 3), time.Duration(interval)*time.Millisecond)
}
