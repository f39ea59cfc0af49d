package configs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/problemtest"
)

const twoRouters = `[announce]
mode = "bgp"
[[announce.bgp]]
peer = "10.0.0.254"
asn = 65000
local_asn = 65010
communities = ["65010:1"]
[[announce.bgp]]
interface = "eth1"
asn = 65010
local_asn = 65010
link_bandwidth = "backends"
`

func TestRoutesOfAPool(t *testing.T) {
	c, problems := Parse("c.toml", []byte(twoRouters+`
[[pool]]
name = "web"
cidrs = ["192.0.2.0/24"]
[pool.bgp]
communities = ["no-export", "4200065010:1:100"]
med = 0
local_pref = 200
prepend = 2
link_bandwidth = "off"
peers = ["eth1"]
aggregate = ["192.0.2.0/25"]
host_routes = false
[[pool.bgp.match]]
labels = ["tier=gold"]
namespaces = ["shop"]
communities = []
host_routes = true
[[pool]]
name = "mail"
cidrs = ["198.51.100.0/24"]
bgp = { med = 5 }
[[pool]]
name = "plain"
cidrs = ["203.0.113.0/24"]
`))
	problemtest.Expect(t, problems)
	for i, want := range []string{
		`{"From":"pool \"web\"","Communities":["no-export","4200065010:1:100"],"MED":0,"LocalPref":200,"Prepend":2,"LinkBandwidth":"off","Peers":["eth1"],"HostRoutes":false,` +
			`"Aggregates":["192.0.2.0/25"],"Rules":[{"Namespaces":["shop"],"Labels":["tier=gold"],"From":"pool \"web\", match 1 (shop, tier=gold)","Communities":[],"HostRoutes":true}],"CountsBackends":true}`,
		`{"From":"pool \"mail\"","MED":5,"Aggregates":null,"Rules":null,"CountsBackends":true}`,
		`{"From":"","Aggregates":null,"Rules":null,"CountsBackends":true}`,
	} {
		got := must.Get(json.Marshal(c.AnnouncePool(&c.Pools[i]).Routes))(t)
		expect.Equal(t, string(got), want, "pool %d", i)
	}
	routers := must.Get(c.Announce.Routers())(t)
	expect.Equal(t, strings.Join(routers[0].Communities, " ")+routers[1].LinkBandwidth, "65010:1backends")
}

func TestMistakesInRoutes(t *testing.T) {
	const pool = "[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\n"
	for _, c := range []struct {
		text  string
		wants []string
	}{
		{"[pool.bgp]\ncommunities = ['65010', 'no-exports', '1:2:3:4']\nmed = -1\nprepend = 33\nlink_bandwidth = 'backend'\nlocal_pref = 4294967296", []string{
			`c.toml:17: pool[0].bgp.communities[0]: "65010" is not a community | write "65010:100", "4200065010:1:100", or a name: blackhole, graceful-shutdown, no-advertise, no-export, no-export-subconfed, no-peer`,
			`c.toml:17: pool[0].bgp.communities[1]: "no-exports" is not a community`, `c.toml:17: pool[0].bgp.communities[2]: "1:2:3:4" is not`,
			`c.toml:18: pool[0].bgp.med: -1 is out of bounds | use 0 to 4294967295`, `c.toml:19: pool[0].bgp.prepend: 33 is out of bounds | use 0 to 32`,
			`c.toml:20: pool[0].bgp.link_bandwidth: "backend" is not a known value | did you mean "backends"?`, `c.toml:21: pool[0].bgp.local_pref: 4294967296 is out of bounds`}},
		{"[pool.bgp]\npeers = ['10.0.0.253', 'eth1', 'eth1']", []string{
			`c.toml:17: pool[0].bgp.peers[0]: "10.0.0.253" is not a router of [[announce.bgp]] | did you mean "10.0.0.254"? use 10.0.0.254, eth1`, `c.toml:17: pool[0].bgp.peers[2]: "eth1" is defined twice`}},
		{"[pool.bgp]\npeers = []", []string{`c.toml:17: pool[0].bgp.peers: names no router | remove it for all routers`}},
		{"announce = 'l2'\n[pool.bgp]\nmed = 1", []string{`c.toml:17: pool[0].bgp: has no effect: the VIPs of this pool are not announced by BGP | set announce = "bgp"`}},
		{"[pool.bgp]\naggregate = ['192.0.2.0/25', '192.0.2.64/26', '198.51.100.0/24', '192.0.2.200/32', '192.0.2.1/24']", []string{
			`c.toml:17: pool[0].bgp.aggregate[4]: 192.0.2.1/24 is not the first address`,
			`c.toml:17: pool[0].bgp.aggregate[1]: 192.0.2.64/26 overlaps 192.0.2.0/25 of c.toml:17 | keep one of them`, `c.toml:17: pool[0].bgp.aggregate[2]: 198.51.100.0/24 has no address of the pool`,
			`c.toml:17: pool[0].bgp.aggregate[3]: 192.0.2.200/32 is one address`}},
		{"[pool.bgp]\nhost_routes = false\n[[pool.bgp.match]]\nhost_routes = true\n[[pool.bgp.match]]\nlabels = ['=gold']\nnamespaces = ['A']\nmet = 1", []string{
			`c.toml:17: pool[0].bgp.host_routes: needs an aggregate | add aggregate`, `c.toml:18: pool[0].bgp.match[0]: selects no services | add labels = ["tier=gold"]`,
			`c.toml:19: pool[0].bgp.match[0].host_routes: needs an aggregate`, `c.toml:21: pool[0].bgp.match[1].labels[0]: "=gold" is not a label`,
			`c.toml:22: pool[0].bgp.match[1].namespaces[0]: "A" is not a DNS label`, `c.toml:23: pool[0].bgp.match[1].met: unknown key | did you mean "med"?`}},
	} {
		_, problems := Parse("c.toml", []byte(twoRouters+pool+c.text))
		problemtest.Expect(t, problems, c.wants...)
	}
	// The keys that routers of one kind never get.
	for router, c := range map[string][2]string{
		"peer = '10.0.0.254'\nasn = 65000\nlocal_asn = 65010": {"local_pref = 5", "pool[0].bgp.local_pref: is for a router of the same AS"},
		"peer = '10.0.0.254'\nasn = 65010\nlocal_asn = 65010": {"prepend = 5", "pool[0].bgp.prepend: is for a router of another AS"},
	} {
		_, problems := Parse("c.toml", []byte("[announce]\nmode = 'bgp'\n[[announce.bgp]]\n"+router+"\n"+pool+"[pool.bgp]\n"+c[0]))
		problemtest.Expect(t, problems, "c.toml:11: "+c[1])
	}
}
