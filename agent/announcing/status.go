package announcing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/announce/heartbeat"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
)

// checkName is the name of the line in `ironvip status`.
const checkName = "announce"

// Checks returns the lines of `ironvip status`: none while nothing is or should be announced.
func (a *Announcing) Checks() []v1.Check {
	if !table.IsClosed(a.known) {
		return nil
	}
	settings, _ := a.Settings()
	if a.Nodes.Draining(settings.Node) && !settings.Announces() {
		return []v1.Check{{Name: checkName, Level: v1.LevelWarn, Message: "this node drains", Hint: "end the drain: ironvip node undrain " + settings.Node}}
	}
	if !settings.Announces() && a.Problem() == "" {
		if message := a.unannounced(); message != "" {
			return []v1.Check{{Name: checkName, Level: v1.LevelWarn, Message: message, Hint: announceIt}}
		}
		return nil
	}
	c := v1.Check{Name: checkName, Level: v1.LevelOK, Message: a.summary()}
	warn := func(level, message, hint string) {
		if c.Problems = append(c.Problems, v1.Problem{Message: message, Hint: hint}); c.Level != v1.LevelFail {
			c.Level = level
		}
	}
	state := a.Link.State()
	if !state.Connected {
		c.Message = "the announcer is not reachable: " + state.Reason
		c.Level, c.Hint = v1.LevelFail, "systemctl status ironvip-announcer"
	}
	if problem := a.Problem(); problem != "" {
		warn(v1.LevelFail, problem, "correct it, then: ironvip reload")
	}
	if state.Connected {
		if stats, _, _ := a.Stats.Get(struct{}{}); stats.Problem != "" {
			warn(v1.LevelFail, stats.Problem, "see the log: journalctl -u ironvip-announcer")
		}
		for _, p := range a.peers() {
			if !p.Up || len(p.Problems) > 0 || p.Reason != "" {
				warn(v1.LevelWarn, fmt.Sprintf("%s %s is %s: %s", kindWord(p.Kind), p.Name, p.State, cmp.Or(p.Reason, strings.Join(p.Problems, "; "))), cmp.Or(p.Hint, "ironvip announce peers"))
			}
		}
		if a.counts.conflicts() > 0 {
			for _, r := range a.Announced.All() {
				if r.State != announce.StateConflict {
					continue
				}
				warn(v1.LevelFail, fmt.Sprintf("%s at %s: %s: %s", r.Addr, r.At, r.State, r.Reason), "ironvip announce explain "+r.Addr.String())
			}
		}
	}
	if message := a.unannounced(); message != "" {
		warn(v1.LevelWarn, message, "remove announce of the pool, or set it to \"l2\"")
	}
	host, _, _ := a.Host.Get(struct{}{})
	for i := range settings.LANs {
		for _, message := range sharedLANs(&settings.LANs[i], host) {
			warn(v1.LevelWarn, message, "set announce_interfaces of "+strings.Join(settings.LANs[i].Pools, ", ")+" to one of them, or join them to a bond")
		}
	}
	if a.Nodes.Draining(settings.Node) {
		warn(v1.LevelWarn, "this node drains", "end the drain: ironvip node undrain "+settings.Node)
	}
	if problem := a.Nodes.Problem(); problem != "" {
		warn(v1.LevelWarn, "this host is not published to the fleet: "+problem, "see the store's line")
	}
	if len(c.Problems) > 0 && c.Hint == "" {
		c.Hint, c.InMessage = c.Problems[0].Hint, 1
		if c.Message += "; " + c.Problems[0].Message; len(c.Problems) > 1 {
			c.Message += fmt.Sprintf(", and %d more", len(c.Problems)-1)
		}
	}
	return []v1.Check{c}
}

func kindWord(k announce.PeerKind) string {
	switch k {
	case announce.BGPSession:
		return "router"
	case announce.BFDSession:
		return "BFD session"
	case announce.BGPRange:
		return "range of routers"
	}
	return "host"
}

func (a *Announcing) peers() []announce.Peer {
	var out []announce.Peer
	for _, p := range a.Peers.All() {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b announce.Peer) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return slices.CompactFunc(out, func(a, b announce.Peer) bool { return a.PeerKey == b.PeerKey })
}

// Present returns the names of the hosts whose heartbeats arrive, in order.
func (a *Announcing) Present() (names []string) {
	for _, p := range a.peers() {
		if p.Kind == announce.Neighbor && (p.Up || p.State == heartbeat.OneWay) {
			names = append(names, p.Name)
		}
	}
	return names
}

// IsPeer reports whether heartbeats are sent to an address.
func (a *Announcing) IsPeer(address string) bool {
	settings, _ := a.Settings()
	return slices.ContainsFunc(settings.Peers, func(p netip.AddrPort) bool { return p.String() == address })
}

// counts are maintained by the tables of the announcer, so that a status costs O(trouble).
type counts struct {
	here, elsewhere func() int // VIPs that this host announces, and other hosts
	unowned         func() int // VIPs of layer 2 that no host announces
	conflicts       func() int // places with a conflict
}

func newCounts(t control.Tables) counts {
	count := func(is func(*announce.Announcement) bool) func() int {
		return t.Announcements.Sum(func(n *announce.Announcement) int { return number(is(n)) })
	}
	return counts{
		here:      count(func(n *announce.Announcement) bool { return n.Here }),
		elsewhere: count(func(n *announce.Announcement) bool { return !n.Here && n.Owner != "" }),
		unowned:   count(func(n *announce.Announcement) bool { return !n.Here && n.Owner == "" && n.Mode == announce.L2 }),
		conflicts: t.Announced.Sum(func(r *announce.Announced) int { return number(r.State == announce.StateConflict) }),
	}
}

func number(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Count returns how many VIPs a host announces that is present; nil: this host doesn't know.
func (a *Announcing) Count(node string) *int {
	settings, _ := a.Settings()
	n := 0
	if node == settings.Node && settings.Announces() {
		n = a.counts.here()
		return &n
	}
	p, _, ok := a.Peers.Get(announce.PeerKey{Kind: announce.Neighbor, Name: node})
	if !ok || !p.Up {
		return nil
	}
	n = p.Owned
	return &n
}

// summary counts the VIPs.
func (a *Announcing) summary() string {
	elsewhere, none := a.counts.elsewhere(), a.counts.unowned()
	out := text.Plural(int(a.announced.Load()), "VIP") + " announced here"
	if waiting := a.waiting.Load(); waiting > 0 {
		out += fmt.Sprintf(", %d waiting", waiting)
	}
	if elsewhere > 0 {
		out += fmt.Sprintf(", %d by other hosts", elsewhere)
	}
	if none > 0 {
		out += fmt.Sprintf(", %d without an owner", none)
	}
	return out
}

// unannounced returns a warning of a pool that is not announced, in a subnet of several hosts of a
// fleet: each host answers for each VIP then, and clients use whichever answered last. "": none.
// Without a fleet, `ironvip doctor` asks for other hosts.
func (a *Announcing) unannounced() string {
	cfg := a.Config()
	if !a.Fleet || cfg.Dataplane.Role != configs.RoleDirector {
		return ""
	}
	hosts := a.Balancers()
	if hosts < 2 {
		return ""
	}
	host, _, _ := a.Host.Get(struct{}{})
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		if cfg.AnnounceMode(p) != announce.Off {
			continue
		}
		for _, h := range host.Addrs {
			if h.Link == cfg.Dataplane.Device || h.Link == "lo" || h.Prefix.IsSingleIP() || !slices.ContainsFunc(p.CIDRs, func(c netip.Prefix) bool { return sameLAN(h, c) }) {
				continue
			}
			return fmt.Sprintf("off, and pool %s is in the subnet of %s: %d hosts of the fleet answer ARP for every VIP, and a client loses its VIPs for some 20 s when the host that answered last fails", p.Name, h.Link, hosts)
		}
	}
	return ""
}

// announceIt is the hint for a pool that should be announced.
const announceIt = `set announce.mode to "l2" and start ironvip-announcer`

func sameLAN(h hostnet.Addr, pool netip.Prefix) bool { return h.Prefix.Masked().Overlaps(pool) }

// sharedLANs names interfaces that announce the same VIPs in one subnet: they answer for each VIP with two link addresses,
// between which clients and switches move to and fro.
func sharedLANs(lan *announce.LAN, host hostnet.Snapshot) (out []string) {
	links := map[netip.Prefix][]string{} // by subnet
	for _, h := range host.Addrs {
		subnet := h.Prefix.Masked()
		if slices.Contains(lan.Interfaces, h.Link) && !h.Prefix.IsSingleIP() && !subnet.Addr().IsLinkLocalUnicast() && !slices.Contains(links[subnet], h.Link) {
			links[subnet] = append(links[subnet], h.Link)
		}
	}
	for subnet, on := range links {
		if len(on) > 1 {
			out = append(out, fmt.Sprintf("%s are on one LAN, %s: VIPs there are answered for with the link address of each of them", strings.Join(on, " and "), subnet))
		}
	}
	slices.Sort(out)
	return out
}
