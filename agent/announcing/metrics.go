package announcing

import (
	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/metric"
)

// Metrics are the metrics of announcements.
var Metrics = metric.NewGroup("Announcing", "")

var (
	familyUp          = Metrics.Gauge("announcer_up", "1: the announcer is connected.")
	familyVIPs        = Metrics.Gauge("announced_vips", "VIPs that this host announces without a conflict.")
	familyWaiting     = Metrics.Gauge("announce_waiting_vips", "VIPs that this host should announce and does not: no session with a router, or a conflict.")
	familyUnowned     = Metrics.Gauge("announce_unowned_vips", "VIPs of layer 2 that no host announces, as far as this host knows.")
	familyTransitions = Metrics.Counter("announce_transitions_total", "VIPs that this host began or ceased to announce.")
	familyConflicts   = Metrics.Counter("announce_conflicts_total", "VIPs found on another station.")
	familyRestored    = Metrics.Counter("announce_gate_restores_total", "Repairs of the kernel gate of layer 2 after changes of another program.")
	familyPauses      = Metrics.Counter("announcer_pauses_total", "Pauses of the announcer in which other hosts took over.")
	familyUnsent      = Metrics.Counter("announce_unsent_total", "ARP, neighbor discovery and heartbeat packets that found no room in the kernel.")
	familyHeartbeats  = Metrics.Counter("announce_heartbeats_total", "Heartbeats by outcome: sent, received, forged, replayed, malformed, duplicate.", "outcome")
	familyLost        = Metrics.Counter("announce_heartbeats_lost_total", "Heartbeats of a host that did not arrive.", "host")
	familyPeer        = Metrics.Gauge("announce_peer_up", "1: the host is alive, or the session is up.", "kind", "name")
)

// Collector returns the collector of the metrics of announcements. A scrape reads the mirrors, which
// costs O(peers). Without announcing, there are no series.
func (a *Announcing) Collector() metric.Collector {
	return func(w *metric.Writer) {
		if settings, _ := a.Settings(); settings.Announces() {
			w.Add(familyVIPs, float64(a.announced.Load()))
			w.Add(familyWaiting, float64(a.waiting.Load()))
			w.Add(familyUnowned, float64(a.counts.unowned()))
			a.collect(w)
		}
	}
}

func (a *Announcing) collect(w *metric.Writer) {
	w.Truth(familyUp, a.Link.State().Connected)
	s, _, _ := a.Stats.Get(struct{}{})
	for f, n := range map[*metric.Family]uint64{familyTransitions: s.Transitions, familyConflicts: s.Conflicts, familyRestored: s.Restored, familyPauses: s.Pauses, familyUnsent: s.Unsent} {
		w.Add(f, float64(n))
	}
	for outcome, n := range map[string]uint64{"sent": s.Sent, "received": s.Received, "forged": s.Forged, "replayed": s.Replayed, "malformed": s.Malformed, "duplicate": s.Duplicates} {
		w.Add(familyHeartbeats, float64(n), outcome)
	}
	for _, p := range a.peers() {
		w.Truth(familyPeer, p.Up, string(p.Kind), p.Name)
		if p.Kind == announce.Neighbor {
			w.Add(familyLost, float64(p.Lost), p.Name)
		}
	}
}
