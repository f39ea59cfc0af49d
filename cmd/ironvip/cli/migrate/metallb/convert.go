package metallb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// Convert reads YAML documents, also lists of them as kubectl prints. name is their name in notes.
func Convert(name, text string) migrate.Result {
	c := converter{Result: &migrate.Result{}}
	if c.of = c.Objects(name, text, kinds...); c.of != nil {
		c.convert()
	}
	c.SortNotes()
	return *c.Result
}

// converter has the resources by their kind.
type converter struct {
	*migrate.Result
	of map[string][]*migrate.Object
}

// kinds are the resources that are converted. ironvip needs no equivalent of ConfigurationState and the like.
var kinds = []string{"IPAddressPool", "L2Advertisement", "BGPAdvertisement", "BGPPeer", "BFDProfile", "Community"}

func (c *converter) convert() {
	communities := map[string]string{}
	for _, o := range c.of["Community"] {
		all, _, _ := migrate.Value[[]struct{ Name, Value string }](c.Result, o.Object("spec"), "communities")
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
			c.NoteUnreadOf(o)
		}
	}
}

// pool is a pool with the resource that it comes from.
type pool struct {
	migrate.Pool
	*migrate.Object
	hosts bool // an advertisement has host routes
}

func (c *converter) pools() (out []*pool) {
	for _, o := range c.of["IPAddressPool"] {
		spec := o.Object("spec")
		p := &pool{Object: o, Pool: migrate.Pool{Name: c.NameOf(o), Announce: announce.Off.String()}}
		ranges, at, _ := migrate.Value[[]string](c.Result, spec, "addresses")
		for _, r := range ranges {
			p.CIDRs = append(p.CIDRs, c.Masked(at, strings.ReplaceAll(r, " ", "")))
		}
		if auto, _, has := migrate.Value[bool](c.Result, spec, "autoAssign"); has && !auto {
			p.AutoAssign = new(false)
		}
		if avoid, at, _ := migrate.Value[bool](c.Result, spec, "avoidBuggyIPs"); avoid {
			c.Note(at, "avoidBuggyIPs is not converted: write the addresses that end with .0 and .255 to exclude of the pool %q", p.Name)
		}
		allocation := spec.Object("serviceAllocation")
		p.Namespaces, _, _ = migrate.Value[[]string](c.Result, allocation, "namespaces")
		out = append(out, p)
	}
	return out
}

// selected returns the pools of an advertisement: those that it names, or all.
func (c *converter) selected(spec *migrate.Object, pools []*pool) (out []*pool) {
	names, at, _ := migrate.Value[[]string](c.Result, spec, "ipAddressPools")
	if spec.Has("ipAddressPoolSelectors") && len(names) == 0 {
		spec.Quiet("ipAddressPoolSelectors")
		c.Note(spec.At("ipAddressPoolSelectors"), "ipAddressPoolSelectors is not converted: set announce in the pools that it selects")
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
		spec := o.Object("spec")
		c.announces()
		interfaces, _, _ := migrate.Value[[]string](c.Result, spec, "interfaces")
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
	profiles := map[string]*migrate.Object{}
	for _, o := range c.of["BFDProfile"] {
		profiles[c.NameOf(o)] = o.Object("spec")
	}
	routers := map[string]string{} // their addresses
	for _, o := range c.of["BGPPeer"] {
		c.announces()
		r := c.router(o.Object("spec"), profiles)
		routers[c.NameOf(o)] = cmp.Or(r.Peer, r.Interface)
		c.Announce.Routers = append(c.Announce.Routers, r)
	}
	for _, o := range c.of["BGPAdvertisement"] {
		spec := o.Object("spec")
		route := c.route(spec, communities, routers)
		four, _, _ := migrate.Value[int](c.Result, spec, "aggregationLength")
		six, _, _ := migrate.Value[int](c.Result, spec, "aggregationLengthV6")
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
func (c *converter) advertise(p *pool, o *migrate.Object, route migrate.Routes, four, six int) {
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

func (c *converter) route(spec *migrate.Object, communities, routers map[string]string) (out migrate.Routes) {
	names, _, _ := migrate.Value[[]string](c.Result, spec, "communities")
	for _, name := range names {
		if known := communities[name]; known != "" {
			name = known
		}
		out.Communities = append(out.Communities, strings.TrimPrefix(name, "large:"))
	}
	if n, _, has := migrate.Value[int](c.Result, spec, "localPref"); has {
		out.LocalPref = new(n)
	}
	peers, at, _ := migrate.Value[[]string](c.Result, spec, "peers")
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
func (c *converter) router(spec *migrate.Object, profiles map[string]*migrate.Object) (r migrate.Router) {
	r.Peer, r.Interface, r.Source, r.VRF = c.Text(spec, "peerAddress"), c.Text(spec, "interface"), c.Text(spec, "sourceAddress"), c.Text(spec, "vrf")
	r.ASN, _, _ = migrate.Value[int](c.Result, spec, "peerASN")
	r.LocalASN, _, _ = migrate.Value[int](c.Result, spec, "myASN")
	if port, _, has := migrate.Value[int](c.Result, spec, "peerPort"); has && port != 179 {
		r.Port = port
	}
	if hops, _, _ := migrate.Value[bool](c.Result, spec, "ebgpMultiHop"); hops {
		r.Multihop = 255
	}
	if password, at, has := migrate.Value[string](c.Result, spec, "password"); has {
		r.PasswordFile = c.PasswordFile(password)
		c.Note(at, "write the password to the file %s beside ironvip.toml", r.PasswordFile)
	}
	spec.Quiet("enableGracefulRestart", "connectTime", "disableMP", "routerID") // ironvip has the first always, and chooses the others
	if name, at, has := migrate.Value[string](c.Result, spec, "bfdProfile"); has {
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
func (c *converter) detection(profile *migrate.Object) string {
	number := func(key string, standard int) int {
		if n, _, has := migrate.Value[int](c.Result, profile, key); has {
			return n
		}
		return standard
	}
	interval := max(number("receiveInterval", 300), number("transmitInterval", 300))
	profile.Quiet("minimumTtl", "echoInterval") // of an echo mode that is off
	return fmt.Sprintf("%dx%s", number("detectMultiplier", 3), time.Duration(interval)*time.Millisecond)
}
