package announcing

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironvip/ironvip/announce"
)

// collector reads the mirrors at each scrape, which costs O(peers).
type collector struct {
	a           *Announcing
	here, alone func() int // VIPs announced here, and those without an owner
}

// Collector returns the metrics of announcements.
func (a *Announcing) Collector() prometheus.Collector {
	count := func(is func(n *announce.Announcement) bool) func() int {
		return a.Link.Announcements.Sum(func(n *announce.Announcement) int {
			if is(n) {
				return 1
			}
			return 0
		})
	}
	return &collector{a, count(func(n *announce.Announcement) bool { return n.Here }),
		count(func(n *announce.Announcement) bool { return n.Mode == announce.L2 && n.Owner == "" })}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ironvip_"+name, help, labels, nil)
}

var (
	descUp          = desc("announcer_up", "1: the announcer is connected.")
	descVIPs        = desc("announced_vips", "VIPs that this host announces.")
	descUnowned     = desc("announce_unowned_vips", "VIPs of layer 2 that no host announces, as far as this host knows.")
	descTransitions = desc("announce_transitions_total", "VIPs that this host began or ceased to announce.")
	descConflicts   = desc("announce_conflicts_total", "VIPs found on another station.")
	descRestored    = desc("announce_gate_restores_total", "Times that another program had changed the kernel gate of layer 2.")
	descPauses      = desc("announcer_pauses_total", "Times that the announcer did not run for so long that other hosts took over.")
	descUnsent      = desc("announce_unsent_total", "ARP, neighbor discovery and heartbeat packets that the kernel had no room for.")
	descHeartbeats  = desc("announce_heartbeats_total", "Heartbeats by outcome: sent, received, forged, replayed, malformed, duplicate.", "outcome")
	descLost        = desc("announce_heartbeats_lost_total", "Heartbeats of a host that did not arrive.", "host")
	descPeer        = desc("announce_peer_up", "1: the host is alive, or the session is up.", "kind", "name")
)

// Describe implements prometheus.Collector. It describes nothing, because peers come and go.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Without announcing, there are no series.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	settings, _ := c.a.Settings()
	if !settings.Announces() {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(descUp, prometheus.GaugeValue, number(c.a.Link.State().Connected))
	send(descVIPs, prometheus.GaugeValue, float64(c.here()))
	send(descUnowned, prometheus.GaugeValue, float64(c.alone()))
	s, _, _ := c.a.Link.Stats.Get(struct{}{})
	for d, n := range map[*prometheus.Desc]uint64{descTransitions: s.Transitions, descConflicts: s.Conflicts, descRestored: s.Restored, descPauses: s.Pauses, descUnsent: s.Unsent} {
		send(d, prometheus.CounterValue, float64(n))
	}
	for outcome, n := range map[string]uint64{"sent": s.Sent, "received": s.Received, "forged": s.Forged, "replayed": s.Replayed, "malformed": s.Malformed, "duplicate": s.Duplicates} {
		send(descHeartbeats, prometheus.CounterValue, float64(n), outcome)
	}
	for _, p := range c.a.peers() {
		send(descPeer, prometheus.GaugeValue, number(p.Up), string(p.Kind), p.Name)
		if p.Kind == announce.Neighbor {
			send(descLost, prometheus.CounterValue, float64(p.Lost), p.Name)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
