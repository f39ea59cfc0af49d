package announcer

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/announce"
)

// publishEvery is how often counters and peers are published. Changes of a peer's state are published
// at once.
const publishEvery = time.Second

// problems is what does not work, by its name.
type problems map[string]string

func (p problems) set(name string, err error) {
	if delete(p, name); err != nil {
		p[name] = err.Error()
	}
}

func (p problems) String() string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		out = append(out, name+": "+p[name])
	}
	return strings.Join(out, "; ")
}

// publish writes the counters and the peers to their tables.
func (a *Announcer) publish(now time.Time) {
	a.published = now
	a.stats.Unsent = a.outbox.busy
	if o, ok := a.outputs[announce.L2].(*l2Output); ok {
		a.stats.Unsent += o.busy()
	}
	a.problems.set("send", a.full.look(a.stats.Unsent, now))
	a.stats.Problem = a.problems.String()
	var peers []announce.Peer
	if o, ok := a.outputs[announce.BGP].(*bgpOutput); ok {
		peers = o.rows()
	}
	if a.core != nil && a.core.exchange != nil {
		c := a.core.exchange.Counters()
		a.stats.Sent, a.stats.Received = c.Sent, c.Received
		a.stats.Forged, a.stats.Replayed, a.stats.Malformed, a.stats.Duplicates = c.Forged, c.Replayed, c.Malformed, c.Duplicates
		if at, yield, ok := a.core.exchange.Duplicate(now); ok {
			a.stats.Problem = strings.TrimPrefix(a.stats.Problem+"; "+duplicateProblem(at.Addr().String(), a.settings.Node, yield), "; ")
		}
		peers = append(peers, a.core.exchange.Peers(now)...)
	}
	named := map[announce.PeerKey]bool{}
	for _, p := range peers {
		named[p.PeerKey] = true
		a.tables.Peers.Set(p)
	}
	for key := range a.tables.Peers.All() {
		if !named[key] {
			a.tables.Peers.Delete(key)
		}
	}
	a.tables.Stats.Set(a.stats)
}

func duplicateProblem(at, name string, yield bool) string {
	if yield {
		return "the host at " + at + " has the name " + name + ", too, and runs longer: this host announces nothing at layer 2"
	}
	return "the host at " + at + " has the name " + name + ", too"
}
