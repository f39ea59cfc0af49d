//go:build linux

package planetest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/netlab"
)

// neighborRules are tables as other programs make them: Docker and kube-proxy by iptables-nft, kube-proxy by nftables,
// firewalld, and one with every kind of set.
const neighborRules = `
table ip nat {
	chain DOCKER {
		iifname "docker0" counter packets 0 bytes 0 return
		iifname != "docker0" tcp dport 8080 counter packets 0 bytes 0 dnat to 172.17.0.2:80
	}
	chain KUBE-SVC-TCOU7JCQXEZGVUNU {
		meta l4proto udp ip daddr 10.43.0.10 udp dport 53 counter packets 0 bytes 0 jump KUBE-MARK-MASQ
	}
	chain KUBE-MARK-MASQ {
		counter packets 0 bytes 0 meta mark set mark or 0x4000
	}
	chain KUBE-SERVICES {
		meta l4proto udp ip daddr 10.43.0.10 udp dport 53 counter packets 0 bytes 0 jump KUBE-SVC-TCOU7JCQXEZGVUNU
	}
	chain PREROUTING {
		type nat hook prerouting priority dstnat; policy accept;
		ip daddr 10.43.0.0/16 jump KUBE-SERVICES
		fib daddr type local tcp dport 8080 jump DOCKER
	}
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 172.17.0.0/16 oifname != "docker0" counter packets 0 bytes 0 masquerade
	}
}
table ip filter {
	chain DOCKER-USER {
		counter packets 0 bytes 0 return
	}
	chain FORWARD {
		type filter hook forward priority filter; policy accept;
		iifname "docker0" jump DOCKER-USER
	}
}
table inet firewalld {
	chain mangle_PREROUTING {
		type filter hook prerouting priority mangle + 10; policy accept;
		jump mangle_PREROUTING_ZONES
	}
	chain mangle_PREROUTING_ZONES {
		goto mangle_PRE_public
	}
	chain mangle_PRE_public {
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
	}
}
table inet neighbor {
	set s {
		type ipv4_addr . inet_proto . inet_service
		elements = { 203.0.113.7 . tcp . 99, 203.0.113.7 . udp . 53 }
	}
	map m {
		type ipv4_addr : mark
		elements = { 203.0.113.9 : 0x1000 }
	}
	chain in {
		type filter hook input priority -10; policy accept;
		ip daddr . meta l4proto . th dport @s accept comment "theirs"
	}
}
table ip kube-proxy {
	chain post {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x4000 masquerade
		ip daddr 203.0.113.9 meta mark set ip daddr map { 203.0.113.9 : 0x1000 }
	}
}
`

var neighborTables = []string{"ip nat", "ip filter", "inet firewalld", "inet neighbor", "ip kube-proxy"}

// neighborLinks are devices, addresses and routes of others.
const neighborLinks = `link add kube-ipvs0 type KIND
addr add 203.0.113.7/32 dev kube-ipvs0
addr add 2001:db8:7::1/128 dev kube-ipvs0 nodad
link add lan0 type KIND
link set lan0 addrgenmode none
link set lan0 up
addr add 198.18.0.1/24 dev lan0
route add 198.19.0.0/16 via 198.18.0.254
addr add 203.0.113.8/32 dev lo
`

// MoveIn gives a node the state of other programs, until the test ends: tables, devices of a kind that the kernel has
// (dummy, or bridge), addresses and routes.
func MoveIn(t testing.TB, node *netlab.Node, kind string) {
	t.Helper()
	node = node.For(t)
	AddNeighborRules(t, node)
	if out, err := node.Feed(strings.ReplaceAll(neighborLinks, "KIND", kind), "ip", "-batch", "-"); err != nil {
		t.Fatalf("ip: %v: %s", err, out)
	}
	t.Cleanup(func() {
		for _, table := range neighborTables {
			node.Run(append([]string{"nft", "delete", "table"}, strings.Fields(table)...)...)
		}
		node.Run("ip", "link", "del", "kube-ipvs0")
		node.Run("ip", "link", "del", "lan0")
		node.Run("ip", "addr", "del", "203.0.113.8/32", "dev", "lo")
	})
}

// AddNeighborRules adds the tables of MoveIn, where they are missing.
func AddNeighborRules(t testing.TB, node *netlab.Node) {
	t.Helper()
	if out, err := node.Feed(neighborRules, "nft", "-f", "-"); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// held are the tables that keep connections through a flush. Each agent has one under a name of its own, and they go with it.
var held = regexp.MustCompile(`(?m)^table inet ironvip(_nft)?_[0-9]+ \{(.*\n)+?\}\n`)

// Lasting returns what nft lists, without the tables that end with their agent.
func Lasting(ruleset string) string { return held.ReplaceAllString(ruleset, "") }

// State returns what commands of other programs list of a node, except what goes with the agent.
func State(t testing.TB, node *netlab.Node, commands ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, c := range append([]string{"nft list ruleset", "ip -o addr", "ip -o link", "ip route show table all", "ip -6 route show table all", "ip rule"}, commands...) {
		text := Lasting(node.For(t).Run(strings.Fields(c)...))
		if strings.Contains(c, " route ") { // the kernel lists the routes of one prefix in the order in which links came up
			text = strings.Join(slices.Sorted(strings.Lines(text)), "")
		}
		all[c] = text
	}
	return all
}

// Foreign returns the part of a State that isn't ours: without our tables, our device, and the lines that ours recognizes.
func Foreign(state map[string]string, ours func(command, line string) bool) map[string]string {
	rest := map[string]string{}
	for command, text := range state {
		var kept strings.Builder
		ourTable := false
		for l := range strings.Lines(text) {
			ourTable = ourTable || l == "table inet ironvip {\n" || l == "table inet ironvip_nft {\n"
			device := strings.HasPrefix(command, "ip ") && strings.Contains(l, "ironvip0")
			if !ourTable && !device && !ours(command, l) {
				kept.WriteString(l)
			}
			ourTable = ourTable && l != "}\n"
		}
		rest[command] = kept.String()
	}
	return rest
}

// SameState compares two states.
func SameState(t testing.TB, step string, now, before map[string]string) {
	t.Helper()
	for command, want := range before {
		if now[command] != want {
			t.Errorf("after %s, %s is\n%s\nwas\n%s", step, command, now[command], want)
		}
	}
}
