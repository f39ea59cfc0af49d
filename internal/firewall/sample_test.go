//go:build linux

package firewall_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/test/accept"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/seed"
)

// samples is how many rule sets are tried; with the tag long, there are more.
var samples = 60

// vipOf is the VIP of the samples, and a pool of its own.
var vipOf = netip.MustParseAddrPort("192.0.2.10:80")

// sample writes rule sets. Conditions that the analysis can't know are false for the packets of the test. Beside the VIP's
// address they are true, as the analysis assumes, in rules that drop nothing.
type sample struct {
	*rand.Rand
	forward bool // the rules are for what nft forwards, whose addresses are unknown
}

func (s sample) one(of ...string) string { return of[s.IntN(len(of))] }

// condition returns the condition of a rule, of nft or of iptables.
func (s sample) condition(iptables, jump bool) string {
	known := []string{"", "ct state new", "ct state established,related", "ct state { new, established }", "ct state != new", "ct state invalid", "ct state new,invalid",
		"meta nfproto ipv4", "meta nfproto ipv6", "meta l4proto tcp", "meta l4proto udp", "meta l4proto != tcp", "meta l4proto { tcp, udp }", "ip protocol tcp", "ip protocol udp", `iifname "lo"`, `iifname != "lo"`, "ct state & (new | established) != 0",
		"ct state vmap { invalid : drop } ct state new", "tcp flags & (fin|syn) != 0 meta nfproto ipv6"}
	unknown := []string{"tcp dport 22", "tcp dport { 22, 443 }", `iifname "eth9"`, "ip saddr 203.0.113.0/24", "meta mark 7", "udp dport 53", "ip saddr { 203.0.113.1, 203.0.113.2 }", "icmp type echo-request", "ct mark 9"}
	address := []string{"ip daddr 192.0.2.10", "ip daddr 192.0.2.0/24", "ip daddr 198.51.100.0/24", "ip daddr != 192.0.2.0/24", "ip daddr { 198.51.100.1, 192.0.2.10 }", "ip daddr { 198.51.100.0/24, 192.0.2.0/25 }",
		"ip daddr != { 198.51.100.1, 192.0.2.10 }", "ip daddr 192.0.2.1-192.0.2.20", "ip daddr 192.0.2.10 tcp dport 80", "ip daddr 192.0.2.10 ct state new", "ip daddr 192.0.2.0/24 tcp dport { 80, 443 }", "ip daddr . tcp dport { 198.51.100.1 . 80 }", "ip daddr . tcp dport { 192.0.2.10 . 80, 192.0.2.11 . 443 }"}
	forwarded := []string{"ct status dnat", "ct status & dnat == 0", "ct status snat", "ct status dnat ct state new", "ct status 0x20", "ip daddr 192.0.2.10"}
	if iptables {
		known = []string{"", "-m conntrack --ctstate NEW", "-m conntrack --ctstate RELATED,ESTABLISHED", "-m conntrack ! --ctstate NEW", "-m conntrack --ctstate INVALID", "-m state --state NEW,ESTABLISHED", "-p tcp", "-p udp",
			"! -p tcp", "-i lo", "! -i lo", "-m comment --comment all", "-p tcp -m conntrack --ctstate NEW"}
		unknown = []string{"-p tcp --dport 22", "-p tcp -m multiport --dports 22,443", "-i eth9", "-s 203.0.113.0/24", "-m mark --mark 7", "-p udp --dport 53", "-p icmp", "-s 203.0.113.1,203.0.113.2", "-m connmark --mark 9"}
		address = []string{"-d 192.0.2.10", "-d 192.0.2.0/24", "-d 198.51.100.0/24", "! -d 192.0.2.0/24", "-d 192.0.2.10 -p tcp --dport 80", "-d 192.0.2.10 -m conntrack --ctstate NEW"}
		forwarded = []string{"-m conntrack --ctstate DNAT", "-m conntrack ! --ctstate DNAT", "-m conntrack --ctstate SNAT", "-m conntrack --ctstate NEW,DNAT", "-d 192.0.2.10"}
	}
	switch n := s.IntN(10); {
	case n < 4 || jump && n < 7:
		return s.one(known...)
	case n < 7:
		return s.one(unknown...)
	case s.forward:
		return s.one(forwarded...)
	}
	return s.one(address...)
}

// kind returns a condition that a verdict may have: one port of a VIP may be dropped.
func kind(condition, verdict string) string {
	if strings.Contains(condition, "192.0.2") && strings.Contains(condition, "dport") && verdict != "accept" && verdict != "-j ACCEPT" {
		return ""
	}
	return condition
}

// chain returns the rules of a chain, which may jump to later ones.
func (s sample) chain(at, chains int) (rules []string) {
	for range s.IntN(5) {
		verdict, jump := s.one("accept", "accept", "drop", "reject", "return", "counter", ""), at+1 < chains && s.IntN(3) == 0
		if jump {
			verdict = s.one("jump", "jump", "goto") + fmt.Sprint(" c", at+1+s.IntN(chains-at-1))
		}
		if s.IntN(8) == 0 {
			verdict = "ct state vmap { new : " + s.one("accept", "drop", "continue", "return") + ", established : " + s.one("accept", "drop") + " }"
		}
		rules = append(rules, strings.TrimSpace(kind(s.condition(false, jump), verdict)+" "+verdict))
	}
	return rules
}

// ruleset returns tables for nft with base chains at a hook.
func (s sample) ruleset(hook string) string {
	var out strings.Builder
	for table := range 1 + s.IntN(2) {
		family, chains := s.one("inet", "inet", "ip"), 1+s.IntN(4)
		fmt.Fprintf(&out, "table %s t%d {\n", family, table)
		for c := chains - 1; c >= 0; c-- {
			fmt.Fprintf(&out, "chain c%d {\n", c)
			if c == 0 {
				fmt.Fprintf(&out, "type filter hook %s priority %s; policy %s;\n", hook, s.one("0", "10", "-5"), s.one("accept", "drop"))
			}
			for _, r := range s.chain(c, chains) {
				if family == "ip" && (strings.Contains(r, "nfproto") || strings.Contains(r, "icmpx")) {
					continue
				}
				fmt.Fprintln(&out, r)
			}
			out.WriteString("}\n")
		}
		out.WriteString("}\n")
	}
	return out.String()
}

// restore returns the same for iptables-restore.
func (s sample) restore(chain string) string {
	chains := []string{chain, "C1", "C2"}
	var out strings.Builder
	fmt.Fprintf(&out, "*filter\n:%s %s\n:C1 -\n:C2 -\n", chain, s.one("ACCEPT", "DROP"))
	for i, name := range chains {
		for range s.IntN(5) {
			target, jump := "-j "+s.one("ACCEPT", "ACCEPT", "DROP", "REJECT", "RETURN"), i < 2 && s.IntN(3) == 0
			if jump {
				target = s.one("-j", "-j", "-g") + " " + chains[i+1+s.IntN(2-i)]
			}
			fmt.Fprintf(&out, "-A %s %s %s\n", name, kind(s.condition(true, jump), target), target)
		}
	}
	return out.String() + "COMMIT\n"
}

// The analysis of random rules finds a drop exactly if a connection fails. An analysis that can't read a rule says so.
//
// Slow: a connection that fails takes its time, and each rule set is loaded by nft.
func TestSample(t *testing.T) {
	need.Program(t, "nft")
	need.Program(t, "iptables-nft-restore")
	lab := netlab.New(t)
	host, backend := lab.Director, lab.Backends[0]
	host.Holds(netip.PrefixFrom(vipOf.Addr(), 32))
	for _, n := range []*netlab.Node{host, backend} {
		at := vipOf
		if n == backend {
			at = netip.AddrPortFrom(n.Addr4, vipOf.Port())
		}
		l := n.Listen(at)
		t.Cleanup(func() { l.Close() })
		accept.Each(l, func(c net.Conn) {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				c.Write([]byte{0})
			}
		})
	}
	host.Run("nft", "add table ip nothing") // the modules
	connects := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		c, err := lab.Client.DialContext(ctx, "tcp", vipOf.String())
		if err != nil {
			return false
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(within))
		c.Write([]byte{0})
		_, err = c.Read(make([]byte, 1))
		return err == nil
	}
	const translation = "table ip ironvip { chain pre { type nat hook prerouting priority -100; ip daddr 192.0.2.10 dnat to %s; }\n}\n"
	random := rand.New(rand.NewPCG(seed.Of(t), 1))
	dropped, passed := 0, 0
	for i := range samples {
		s, mode, hook := sample{random, i%2 == 0}, proxy, "input"
		ours := ""
		if s.forward {
			mode, hook, ours = nft, "forward", fmt.Sprintf(translation, backend.Addr4)
		}
		rules, program := "flush ruleset\n"+ours, []string{"nft", "-f", "-"}
		var more string
		if i%3 > 0 {
			rules += s.ruleset(hook)
		} else {
			more = s.restore(strings.ToUpper(hook))
		}
		if out, err := host.Feed(rules, program...); err != nil {
			t.Fatalf("%v: %s\n%s", err, out, rules)
		}
		if more != "" {
			if out, err := host.Feed(more, "iptables-nft-restore"); err != nil {
				t.Fatalf("%v: %s\n%s", err, out, more)
			}
		}
		var drops []firewall.Drop
		var err error
		host.Do(func() {
			drops, err = firewall.Find(firewall.Query{Pools: []netip.Prefix{netip.PrefixFrom(vipOf.Addr(), 32)}, Paths: mode, Ours: []string{"ironvip"}})
		})
		if err != nil {
			continue // a part of the rules is unknown
		}
		want, within := len(drops) == 0, 20*time.Second
		if !want {
			within = 20 * time.Millisecond
		}
		if connects(within) != want {
			t.Errorf("sample %d, %v: the analysis finds %v, and a connection %s\n%s%s", i, mode, drops, map[bool]string{true: "fails", false: "works"}[want], rules, more)
		}
		if want {
			passed++
		} else {
			dropped++
		}
	}
	if slices.Min([]int{dropped, passed}) < samples/5 {
		t.Errorf("%d samples drop, %d pass: of %d", dropped, passed, samples)
	}
}
