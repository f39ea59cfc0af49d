package firewall

import (
	"fmt"
	"slices"
	"strings"
)

// The firewalls whose commands we know.
const (
	firewalld = "firewalld"
	ufw       = "ufw"
	docker    = "Docker"
	iptables  = "iptables"
)

// owner returns the program that wrote a chain, or "".
func (d Drop) owner() string {
	has := func(prefix string) bool {
		return slices.ContainsFunc(d.Chains, func(c string) bool { return strings.HasPrefix(c, prefix) })
	}
	switch {
	case d.Table == "firewalld":
		return firewalld
	case has("ufw-"), has("ufw6-"):
		return ufw
	case d.Path != ToVIP && has("DOCKER-USER"):
		return docker
	case d.Table == "filter" && (d.Chain == "INPUT" || d.Chain == "FORWARD"):
		return iptables
	}
	return ""
}

// String says which packets are dropped, where and by whom.
func (d Drop) String() string {
	chain := fmt.Sprintf("chain %s of nftables table %s %s", d.Chain, d.Family, d.Table)
	if owner := d.owner(); owner != "" {
		chain += " (" + owner + ")"
	}
	switch d.Path {
	case ToBackend:
		return chain + " drops connections of clients that the nft dataplane forwards to backends"
	case Answers:
		return chain + " drops answers of backends that this host forwards with nat"
	}
	return chain + fmt.Sprintf(" drops packets to %s that no rule of it accepts", d.To)
}

// Remedy returns the command that lets the packets through, and the others of this dataplane at the same hook.
// Packets that nft forwards, in both directions, are known by the destination that connection tracking has changed.
func (d Drop) Remedy() string {
	family, command, daddr := "ipv4", "iptables", "ip daddr"
	if d.Family == "ip6" || d.To.Addr().Is6() {
		family, command, daddr = "ipv6", "ip6tables", "ip6 daddr"
	}
	states, native := "RELATED,ESTABLISHED", "ct state established,related"
	if d.Path == ToBackend {
		states, native = "DNAT", "ct status dnat"
	}
	forward, owner := d.Path != ToVIP, d.owner()
	switch {
	case owner == firewalld && !forward:
		return fmt.Sprintf(`firewall-cmd --permanent --add-rich-rule='rule family="%s" destination address="%s" accept' && firewall-cmd --reload`, family, d.To)
	case owner == ufw && !forward:
		return fmt.Sprintf("ufw allow to %s", d.To)
	case owner == docker:
		return fmt.Sprintf("%s -I DOCKER-USER -m conntrack --ctstate %s -j ACCEPT", command, states)
	case (owner == iptables || owner == ufw) && forward:
		return fmt.Sprintf("%s -I FORWARD -m conntrack --ctstate %s -j ACCEPT", command, states)
	case owner == iptables:
		return fmt.Sprintf("%s -I INPUT -d %s -j ACCEPT", command, d.To)
	case forward:
		return fmt.Sprintf("nft insert rule %s %s %s %s accept", d.Family, d.Table, d.Chain, native)
	}
	return fmt.Sprintf("nft insert rule %s %s %s %s %s accept", d.Family, d.Table, d.Chain, daddr, d.To)
}
