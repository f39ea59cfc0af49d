//go:build system

package announce

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/routers"
	"github.com/ironvip/ironvip/test/wait"
)

// The operator chooses by pool and by label what a router gets: an aggregate instead of host routes, and a host route of
// its own for a service with a label. A reload and a new label change the routes that differ, and no session.
func TestPolicyOfRoutes(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 1)
	a := l.hosts[0]
	node := l.Join("router")
	labeled := func(names ...string) string {
		text := services(serviceCount, l.backends)
		for _, name := range names {
			text = strings.Replace(text, fmt.Sprintf("name = %q\n", name), fmt.Sprintf("name = %q\nlabels = { tier = \"gold\" }\n", name), 1)
		}
		return text
	}
	policy := func(community string) string {
		return bgpPeer(node.Addr4, 65000, "med = 7") + fmt.Sprintf(`
[pool.bgp]
communities = [%q]
aggregate = ["10.78.0.128/25"]
host_routes = false
[[pool.bgp.match]]
labels = ["tier=gold"]
communities = ["4200065010:1:200"]
host_routes = true
`, community)
	}
	a.configure(labeled("s0"), l.config(a, "bgp", policy("65010:100")))
	a.start()
	bird := routers.StartBird(t, node, birdConfig(l, ""))
	carries := func(prefix, attribute string) {
		t.Helper()
		show := func() string { return bird.Ask("show", "route", "where", "net = "+prefix, "all") }
		wait.Until(t, prefix+" with "+attribute, func() bool { return strings.Contains(show(), attribute) }, func() any { return show() + a.must("announce", "list", "-o", "wide") })
	}
	const aggregate, gold = "10.78.0.128/25", "BGP.large_community: (4200065010, 1, 200)"
	own := func(i int) string { return vip4(i).String() + "/32" }
	carries(aggregate, "BGP.community: (65010,100)")
	carries(own(0), gold)
	carries(vip6(1).String()+"/128", "BGP.community: (65010,100)") // the aggregate is for IPv4 only
	expect.Equal(t, bird.Count(), 1+1+serviceCount, "routes")
	expect.Contains(t, bird.Ask("show", "route", aggregate, "all"), "BGP.med: 7", "the router's own key is no default")
	for vip, want := range map[string]string{vip4(1).String(): `  10.78.0.128/25 with communities 65010:100, med 7, from pool "lan"`,
		vip4(0).String(): `  10.78.0.130/32 with communities 4200065010:1:200, med 7, from pool "lan", match 1 (tier=gold)`} {
		out := func() string { return a.must("announce", "explain", vip) }
		wait.Until(t, "explanation of "+vip, func() bool {
			return strings.Contains(out(), "is announced by this host") && strings.Contains(out(), want)
		}, func() any { return out() })
	}

	updates := func() string {
		return regexp.MustCompile(`Import updates: +\d+`).FindString(bird.Ask("show", "protocols", "all", a.Name)) // the first one is of IPv4
	}
	before, since := updates(), bird.Since(a.Name)
	a.configure(labeled("s0"), l.config(a, "bgp", policy("65010:300")))
	a.must("reload")
	carries(aggregate, "BGP.community: (65010,300)")
	carries(vip6(1).String()+"/128", "BGP.community: (65010,300)")
	n := func(text string) (n int) { fmt.Sscanf(text, "Import updates: %d", &n); return n }
	expect.Equal(t, n(updates())-n(before), 1, "updates of IPv4: of the aggregate")
	a.configure(labeled("s0", "s1"), l.config(a, "bgp", policy("65010:300")))
	a.must("reload")
	carries(own(1), gold)
	expect.Between(t, bird.Since(a.Name)-since, -routers.SinceError, routers.SinceError, "the session was restarted")
}
