package firewall

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// Each drop has a command of the firewall that wrote the chain, for its path and family.
func TestAdvice(t *testing.T) {
	four, six := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")
	for _, c := range []struct {
		drop      Drop
		says, fix string
	}{
		{Drop{Family: "inet", Table: "firewalld", Chain: "filter_INPUT", To: six},
			"chain filter_INPUT of nftables table inet firewalld (firewalld) drops packets to 2001:db8::/64 that no rule of it accepts",
			`firewall-cmd --permanent --add-rich-rule='rule family="ipv6" destination address="2001:db8::/64" accept' && firewall-cmd --reload`},
		{Drop{Family: "inet", Table: "firewalld", Chain: "filter_FORWARD", Path: Answers, To: four},
			"chain filter_FORWARD of nftables table inet firewalld (firewalld) drops answers of backends that this host forwards with nat",
			"nft insert rule inet firewalld filter_FORWARD ct state established,related accept"},
		{Drop{Family: "ip", Table: "filter", Chain: "INPUT", To: four, Chains: []string{"INPUT", "ufw-user-input"}},
			"chain INPUT of nftables table ip filter (ufw) drops packets to 192.0.2.0/24 that no rule of it accepts", "ufw allow to 192.0.2.0/24"},
		{Drop{Family: "ip", Table: "filter", Chain: "FORWARD", Path: ToBackend, To: four, Chains: []string{"FORWARD", "ufw-user-forward"}},
			"chain FORWARD of nftables table ip filter (ufw) drops connections of clients that the nft dataplane forwards to backends",
			"iptables -I FORWARD -m conntrack --ctstate DNAT -j ACCEPT"},
		{Drop{Family: "ip6", Table: "filter", Chain: "FORWARD", Path: ToBackend, To: six, Chains: []string{"FORWARD", "DOCKER-USER"}},
			"chain FORWARD of nftables table ip6 filter (Docker) drops connections of clients that the nft dataplane forwards to backends",
			"ip6tables -I DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT"},
		{Drop{Family: "ip6", Table: "filter", Chain: "FORWARD", Path: Answers, To: six, Chains: []string{"FORWARD"}},
			"chain FORWARD of nftables table ip6 filter (iptables) drops answers of backends that this host forwards with nat",
			"ip6tables -I FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		{Drop{Family: "ip6", Table: "filter", Chain: "INPUT", To: six, Chains: []string{"INPUT"}},
			"chain INPUT of nftables table ip6 filter (iptables) drops packets to 2001:db8::/64 that no rule of it accepts",
			"ip6tables -I INPUT -d 2001:db8::/64 -j ACCEPT"},
		{Drop{Family: "inet", Table: "mine", Chain: "fwd", Path: ToBackend, To: six},
			"chain fwd of nftables table inet mine drops connections of clients that the nft dataplane forwards to backends",
			"nft insert rule inet mine fwd ct status dnat accept"},
		{Drop{Family: "ip", Table: "filter", Chain: "input", To: four},
			"chain input of nftables table ip filter drops packets to 192.0.2.0/24 that no rule of it accepts",
			"nft insert rule ip filter input ip daddr 192.0.2.0/24 accept"},
		{Drop{Family: "inet", Table: "firewalld", Chain: "filter_INPUT", To: four},
			"chain filter_INPUT of nftables table inet firewalld (firewalld) drops packets to 192.0.2.0/24 that no rule of it accepts",
			`firewall-cmd --permanent --add-rich-rule='rule family="ipv4" destination address="192.0.2.0/24" accept' && firewall-cmd --reload`},
		{Drop{Family: "ip6", Table: "filter", Chain: "INPUT", To: six, Chains: []string{"INPUT", "ufw6-user-input"}},
			"chain INPUT of nftables table ip6 filter (ufw) drops packets to 2001:db8::/64 that no rule of it accepts", "ufw allow to 2001:db8::/64"},
		{Drop{Family: "ip", Table: "filter", Chain: "FORWARD", Path: Answers, To: four, Chains: []string{"FORWARD", "DOCKER-USER"}},
			"chain FORWARD of nftables table ip filter (Docker) drops answers of backends that this host forwards with nat",
			"iptables -I DOCKER-USER -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"},
		{Drop{Family: "ip", Table: "filter", Chain: "INPUT", To: four, Chains: []string{"INPUT", "DOCKER-USER"}},
			"chain INPUT of nftables table ip filter (iptables) drops packets to 192.0.2.0/24 that no rule of it accepts",
			"iptables -I INPUT -d 192.0.2.0/24 -j ACCEPT"},
		{Drop{Family: "inet", Table: "mine", Chain: "in", To: six},
			"chain in of nftables table inet mine drops packets to 2001:db8::/64 that no rule of it accepts",
			"nft insert rule inet mine in ip6 daddr 2001:db8::/64 accept"},
		{Drop{Family: "inet", Table: "mine", Chain: "fwd", Path: Answers, To: six},
			"chain fwd of nftables table inet mine drops answers of backends that this host forwards with nat",
			"nft insert rule inet mine fwd ct state established,related accept"},
	} {
		expect.Equal(t, c.drop.String(), c.says, "text")
		expect.Equal(t, c.drop.Remedy(), c.fix, "remedy")
	}
}
