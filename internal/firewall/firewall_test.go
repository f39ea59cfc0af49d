//go:build linux

package firewall_test

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

var pools = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}

// The packets of the dataplanes.
var (
	ipvs  = []firewall.Path{firewall.ToVIP, firewall.Answers}
	nft   = []firewall.Path{firewall.ToBackend, firewall.Answers}
	proxy = []firewall.Path{firewall.ToVIP}
)

// The rules of a kernel that drop packets to a VIP, or answers of backends, are found; those that let them through are not.
func TestFind(t *testing.T) {
	need.Program(t, "nft")
	const drops4, drops6, answers, clients = "192.0.2.0/24", "2001:db8::/64", "answers", "clients"
	both := drops4 + " " + drops6
	input := func(rules string) string {
		return "table inet filter { chain input { type filter hook input priority 0; policy drop; " + rules + " } }"
	}
	// As firewalld writes them.
	firewalld := func(zone string) string {
		return `table inet firewalld {
			chain filter_IN_public { jump filter_IN_public_allow; return; }
			chain filter_IN_public_allow { tcp dport 22 accept; ` + zone + ` }
			chain filter_INPUT_ZONES { iifname "eth0" goto filter_IN_public; goto filter_IN_public; }
			chain filter_INPUT { type filter hook input priority 10; policy accept;
				ct state { established, related } accept; iifname "lo" accept; ct state invalid drop;
				jump filter_INPUT_ZONES; reject with icmpx type admin-prohibited; }
			chain filter_FORWARD { type filter hook forward priority 10; policy accept;
				ct state { established, related } accept; reject with icmpx type admin-prohibited; }
		}`
	}
	// As Docker writes them with iptables.
	docker := func(user string) string {
		return `table ip filter {
			chain DOCKER-USER { ` + user + ` }
			chain DOCKER-CT { oifname "docker0" ct state established,related accept; }
			chain FORWARD { type filter hook forward priority 0; policy drop;
				counter jump DOCKER-USER; jump DOCKER-CT; iifname "docker0" accept; }
		}`
	}
	forward := func(rules string) string {
		return "table inet filter { chain passing { type filter hook forward priority 0; policy drop; " + rules + " } }"
	}
	for _, c := range []struct {
		name, rules, want string
		of                []firewall.Path
	}{
		{"no rules", "", "", ipvs},
		{"a policy", input(""), both, ipvs},
		{"accepted policy", strings.Replace(input("tcp dport 22 accept"), "policy drop", "policy accept", 1), "", ipvs},
		{"ports of the host only", input("ct state established,related accept; iif lo accept; iifname lo accept; tcp dport { 22, 80 } accept"), both, ipvs},
		{"everything of IPv4", input("meta nfproto ipv4 accept"), drops6, ipvs},
		{"the pool", input("ip daddr 192.0.2.0/24 accept; ip6 daddr 2001:db8::/64 tcp dport 443 accept"), "", ipvs},
		{"another pool", input("ip daddr 198.51.100.0/24 accept; ip6 daddr != 2001:db8::/64 accept"), both, ipvs},
		{"a set with the pool", input("ip daddr { 198.51.100.0/24, 192.0.2.0/24 } accept"), drops6, ipvs},
		{"a set without it", input("ip daddr { 198.51.100.0/24, 203.0.113.0/24 } accept"), both, ipvs},
		{"a map of states", input("ct state vmap { established : accept, new : accept }"), "", ipvs},
		{"a map of other states", input("ct state vmap { established : accept, invalid : drop }"), both, ipvs},
		{"a map that drops", strings.Replace(input("ct state vmap { established : accept, new : drop }"), "policy drop", "policy accept", 1), both, ipvs},
		{"a map that goes on", input("ct state vmap { established : accept, new : return }"), both, ipvs},
		{"a map with a jump", strings.Replace(input("ct state vmap { new : jump new_ones, established : accept }"), "chain input", "chain new_ones { accept; }\nchain input", 1), "", ipvs},
		{"the protocol", input("ip protocol tcp accept; ip6 nexthdr tcp accept"), "", ipvs},
		{"another protocol", input("ip protocol udp accept; ip6 nexthdr udp accept"), both, ipvs},
		{"the pool and a port", input("ip daddr . tcp dport { 192.0.2.0 . 80, 203.0.113.1 . 443 } accept"), drops6, ipvs},
		{"another pool and a port", input("ip daddr . tcp dport { 203.0.113.1 . 443 } accept"), both, ipvs},
		{"no later packets", input("ct state new accept"), both, ipvs},
		{"a drop for some clients", strings.Replace(input("ip saddr 203.0.113.0/24 drop"), "policy drop", "policy accept", 1), "", ipvs},
		{"a drop for everybody", strings.Replace(input("ct state new drop"), "policy drop", "policy accept", 1), both, ipvs},
		{"our own table", "table inet ironvip { chain input { type filter hook input priority 0; policy drop; } }", "", ipvs},
		{"another hook", "table inet filter { chain output { type filter hook output priority 0; policy drop; } }", "", ipvs},
		{"firewalld", firewalld(""), both, ipvs},
		{"firewalld with a rich rule", firewalld("ip daddr 192.0.2.0/24 accept; ip6 daddr 2001:db8::/64 accept"), "", ipvs},
		{"Docker", docker(""), answers, ipvs},
		{"Docker with answers", docker("ct state established,related accept"), "", ipvs},
		{"Docker with answers, of nft", docker("ct state established,related accept"), clients, nft},
		{"Docker with DNAT, of nft", docker("ct status dnat accept"), "", nft},
		{"Docker, of the proxy", docker(""), "", proxy},
		{"a policy of input, of nft", input(""), "", nft},
		{"a policy of input, of the proxy", input(""), both, proxy},
		{"a policy of forward, of nft", forward(""), clients, nft},
		{"other bits of the status", forward("ct status snat accept; ct status assured accept; ct status 0x8 accept"), clients, nft},
		{"the opposite", forward("ct status & dnat == 0 accept"), clients, nft},
		{"new and established ones", forward("ct state new,established accept"), "", nft},
		{"after a rule that can't be read", "table inet a { chain passing { type filter hook forward priority 0; ct original ip saddr 203.0.113.1 accept; } }\n" + forward(""), clients, nft},
		{"DNAT of ipvs is unknown", forward("ct status dnat accept"), answers, ipvs},
	} {
		t.Run(c.name, func(t *testing.T) {
			netlab.NewLAN(t, "host").Nodes[0].Do(func() {
				load := exec.Command("nft", "-f", "-")
				load.Stdin = strings.NewReader(strings.ReplaceAll(c.rules, "}", "\n}") + "\n")
				if out, err := load.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				got, err := firewall.Find(firewall.Query{Pools: pools, Paths: c.of, Ours: []string{"ironvip"}})
				expect.Equal(t, strings.Contains(c.rules, "ct original"), (err != nil), "error %v", err)
				var found []string
				for _, d := range got {
					found = append(found, map[firewall.Path]string{firewall.ToVIP: d.To.String(), firewall.ToBackend: clients, firewall.Answers: answers}[d.Path])
				}
				s := strings.Join(found, " ")
				expect.Equal(t, s, c.want, "found %q, want %q: %+v", s, c.want, got)
			})
		})
	}
}

// The same rules in the form of iptables, whose conditions are modules of xtables.
func TestFindIptables(t *testing.T) {
	need.Program(t, "iptables-nft")
	netlab.NewLAN(t, "host").Nodes[0].Do(func() {
		run := func(args string) {
			t.Helper()
			if out, err := exec.Command("iptables-nft", strings.Fields(args)...).CombinedOutput(); err != nil {
				t.Fatalf("iptables-nft %s: %v: %s", args, err, out)
			}
		}
		of := ipvs
		count := func(what string, want int) {
			t.Helper()
			got, err := firewall.Find(firewall.Query{Pools: pools, Paths: of})
			if err != nil || len(got) != want {
				t.Errorf("%s: %+v, %v; want %d", what, got, err, want)
			}
		}
		run("-P INPUT DROP")
		run("-P FORWARD DROP")
		run("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
		run("-A INPUT -p tcp --dport 22 -m comment --comment ssh -j ACCEPT")
		count("policies", 2)
		run("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
		count("answers pass", 1)
		run("-A INPUT -d 192.0.2.0/24 -j ACCEPT")
		count("all pass", 0)
		run("-I INPUT -j REJECT")
		count("all are rejected", 1)
		of = nft
		count("connections that nft forwards", 1)
		run("-I FORWARD -m state --state NEW -j DROP")
		count("a drop of the older module", 1)
		run("-P FORWARD ACCEPT")
		count("a drop of the older module alone", 1)
		run("-D FORWARD 1")
		run("-P FORWARD DROP")
		run("-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT")
		count("they pass", 0)
	})
}
