package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor/firewall"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/nft"
)

// firewalls checks whether rules of other programs drop packets to VIPs, or the answers that this host forwards.
func firewalls(h Host, w Want) []Finding {
	if h.Firewall == nil || len(w.Pools) == 0 {
		return nil
	}
	ours := ipvs.TableOf(w.Device)
	drops, err := h.Firewall(firewall.Query{Pools: w.Pools, Forward: w.Mode != configs.ModeProxy && !w.RealServer, Ours: []string{ours, probepath.TableOf(ours), nft.TableOf(w.Device)}})
	switch {
	case errors.Is(err, unix.EPERM):
		return []Finding{{Warn, "firewall", "this user may not read nftables: the host's firewall was not checked", "run ironvip doctor as root"}}
	case err != nil:
		return []Finding{{Warn, "firewall", "the host's firewall was not checked: " + err.Error(), ""}}
	case len(drops) == 0:
		return []Finding{{OK, "firewall", "firewall: no nftables rules drop packets to the pools", ""}}
	}
	var out []Finding
	for _, d := range drops {
		owner := ownerOf(d)
		chain := fmt.Sprintf("chain %s of nftables table %s %s", d.Chain, d.Family, d.Table)
		if owner != "" {
			chain += " (" + owner + ")"
		}
		what := fmt.Sprintf("drops packets to %s that no rule of it accepts", d.To)
		if d.Forward {
			what = "drops answers of backends that this host forwards with nat"
		}
		out = append(out, Finding{Warn, "firewall", chain + " " + what, accept(d, owner)})
	}
	return out
}

// legacy reports tables of iptables-legacy that drop packets. The kernel passes packets through them and through nftables.
func legacy(h Host, w Want) (out []Finding) {
	if h.Legacy == nil || len(w.Pools) == 0 {
		return nil
	}
	found, err := h.Legacy()
	for _, t := range found {
		out = append(out, Finding{Warn, "firewall_legacy",
			fmt.Sprintf("the filter table of %s drops packets (%s, policies included): whether also those to the pools was not checked", t.Command, text.Plural(t.Drops, "rule")),
			fmt.Sprintf("%s-save -t filter shows them; move them to nftables, or accept the pools before them", t.Command)})
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		out = append(out, Finding{Warn, "firewall_legacy", "this user may not read the tables of iptables-legacy: they were not checked", "run ironvip doctor as root"})
	case err != nil:
		out = append(out, Finding{Warn, "firewall_legacy", "the tables of iptables-legacy were not checked: " + err.Error(), ""})
	}
	return out
}

// The firewalls whose commands we know.
const (
	firewalld = "firewalld"
	ufw       = "ufw"
	docker    = "Docker"
	iptables  = "iptables"
)

// ownerOf returns the program that wrote a chain, or "".
func ownerOf(d firewall.Drop) string {
	has := func(prefix string) bool {
		return slices.ContainsFunc(d.Chains, func(c string) bool { return strings.HasPrefix(c, prefix) })
	}
	switch {
	case d.Table == "firewalld":
		return firewalld
	case has("ufw-"), has("ufw6-"):
		return ufw
	case d.Forward && has("DOCKER-USER"):
		return docker
	case d.Table == "filter" && (d.Chain == "INPUT" || d.Chain == "FORWARD"):
		return iptables
	}
	return ""
}

// accept returns the command that lets the packets through.
func accept(d firewall.Drop, owner string) string {
	family, command := "ipv4", "iptables"
	if d.Family == "ip6" || d.To.Addr().Is6() {
		family, command = "ipv6", "ip6tables"
	}
	const answers = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
	switch {
	case owner == firewalld && !d.Forward:
		return fmt.Sprintf(`firewall-cmd --permanent --add-rich-rule='rule family="%s" destination address="%s" accept' && firewall-cmd --reload`, family, d.To)
	case owner == ufw && !d.Forward:
		return fmt.Sprintf("ufw allow to %s", d.To)
	case owner == docker:
		return fmt.Sprintf("%s -I DOCKER-USER %s", command, answers)
	case (owner == iptables || owner == ufw) && d.Forward:
		return fmt.Sprintf("%s -I FORWARD %s", command, answers)
	case owner == iptables:
		return fmt.Sprintf("%s -I INPUT -d %s -j ACCEPT", command, d.To)
	case d.Forward:
		return fmt.Sprintf("nft insert rule %s %s %s ct state established,related accept", d.Family, d.Table, d.Chain)
	}
	return fmt.Sprintf("nft insert rule %s %s %s %s daddr %s accept", d.Family, d.Table, d.Chain, map[string]string{"ipv4": "ip", "ipv6": "ip6"}[family], d.To)
}

// clientMTU is the size of packets from clients in Ethernet networks.
const clientMTU = 1500

// tunnels checks whether clients' packets fit into tunnels to backends.
func tunnels(h Host, w Want) []Finding {
	if h.Route == nil || len(w.Tunnels) == 0 {
		return nil
	}
	type path struct {
		device         string
		mtu, need, tcp int // tcp is the size of the inner headers
	}
	small := map[path][]string{}
	var paths []path
	for _, a := range w.Tunnels {
		device, mtu, err := h.Route(a)
		p := path{device, mtu, clientMTU + 20, 40} // the outer header of IPv4
		if a.Is6() {
			p.need, p.tcp = clientMTU+40, 60
		}
		if err != nil || mtu >= p.need {
			continue // without a route, health checks fail
		}
		if small[p] == nil {
			paths = append(paths, p)
		}
		small[p] = append(small[p], a.String())
	}
	if len(paths) == 0 {
		return []Finding{{OK, "mtu", "mtu: packets of " + fmt.Sprint(clientMTU) + " bytes fit into the tunnels to " + text.Plural(len(w.Tunnels), "backend"), ""}}
	}
	var out []Finding
	for _, p := range paths {
		out = append(out, Finding{Warn, "mtu",
			fmt.Sprintf("%s has MTU %d: a packet of %d bytes from a client has %d in the tunnel to %s", p.device, p.mtu, clientMTU, p.need, firstFew(small[p])),
			fmt.Sprintf("ip link set %s mtu %d, if the network and the backends allow it; otherwise advertise a smaller MSS on the backends: ip route change default ... advmss %d", p.device, p.need, p.mtu-p.need+clientMTU-p.tcp)})
	}
	return out
}
