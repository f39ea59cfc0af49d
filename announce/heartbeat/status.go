package heartbeat

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
)

// The states of a peer.
const (
	Alive   = "alive"
	Dead    = "dead"
	OneWay  = "one-way" // one of the hosts does not receive the other one
	Unknown = "unknown" // no heartbeat received with a key of this host
)

// Counters returns the counters.
func (e *Exchange) Counters() Counters { return e.count }

// Peers returns the state of each peer and of each configured address without one, sorted by name.
func (e *Exchange) Peers(now time.Time) []announce.Peer {
	var out []announce.Peer
	seen := map[*peer]bool{}
	for _, d := range e.dests {
		if d.peer == nil {
			if slices.ContainsFunc(slices.Collect(maps.Values(e.peers)), func(p *peer) bool { return p.waiting.from == d.addr }) {
				continue // listed by its name below
			}
			out = append(out, announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: d.addr.String()}, Address: d.addr.String(), State: Unknown, Since: e.started,
				Reason: "no authenticated heartbeat has arrived"})
			continue
		}
		if !seen[d.peer] && d.peer.name != e.o.Name {
			seen[d.peer] = true
			out = append(out, e.peer(d, now))
		}
	}
	for _, p := range e.peers {
		if p.epoch == 0 && p.waiting.epoch != 0 && p.name != e.o.Name {
			out = append(out, announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: p.name}, Address: p.waiting.from.String(), State: OneWay, Since: e.started,
				Reason: fmt.Sprintf("heartbeats from %s arrive, and its answers to ours do not: check the firewalls on UDP", p.waiting.from)})
		}
	}
	slices.SortFunc(out, func(a, b announce.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (e *Exchange) peer(d *dest, now time.Time) announce.Peer {
	p := d.peer
	h := p.host()
	out := announce.Peer{
		PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: p.name}, Address: p.addr.String(), State: Alive, Up: p.alive, Since: p.since,
		Draining: h.Draining, Weight: h.Weight, Eligible: p.copy.all, Owned: p.copy.owned, Lost: p.lost,
	}
	if !p.alive {
		out.VIPs = p.left
	}
	switch {
	case !p.alive && p.waiting.epoch != 0 && now.Sub(p.waiting.at) < p.timeout:
		out.State, out.Reason = OneWay, fmt.Sprintf("heartbeats from %s arrive, and its answers to ours do not: check the firewalls on UDP", p.waiting.from)
	case !p.alive:
		out.State, out.Reason = Dead, fmt.Sprintf("no heartbeat within %s", p.timeout)
	case h.OneWay:
		out.State, out.Reason = OneWay, "it does not receive heartbeats of this host: check the firewalls on UDP"
	}
	if out.Differs = p.alive && p.last.config != e.o.Config; out.Differs {
		out.Problems = append(out.Problems, "its [announce] settings, pools or version differ from those of this host")
	}
	if p.alive && (p.last.interval != e.o.Interval || int(p.last.missed) != e.o.Missed) {
		out.Problems = append(out.Problems, fmt.Sprintf("it uses heartbeat %s x %d, this host %s x %d", p.last.interval, p.last.missed, e.o.Interval, e.o.Missed))
	}
	if d.learned {
		out.Problems = append(out.Problems, fmt.Sprintf("%s is not one of this host's peers", d.addr.Addr()))
	}
	if !p.rivalAt.IsZero() && now.Sub(p.rivalAt) < rivalShown {
		out.Problems = append(out.Problems, fmt.Sprintf("another host uses its name: %s", p.rival.Addr()))
	}
	if len(out.Problems) > 0 && out.Reason == "" {
		out.Reason = strings.Join(out.Problems, "; ")
	}
	return out
}

const rivalShown = 10 * time.Second
