package membership

import (
	"context"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/wake"
)

const (
	// presenceEvery is roughly how often the leader lists the nodes that are present.
	presenceEvery = 15 * time.Second
	// forgetNode is after how long an absent node is forgotten.
	forgetNode = 7 * 24 * time.Hour
)

// presence is which nodes the leader has seen, and when, on a clock that runs only while it is the
// leader and can read the store. On other hosts it is empty.
type presence struct {
	mu    sync.Mutex
	now   time.Duration
	there int // at the last list; 0 before the second one
	seen  map[string]time.Duration

	lists  [2][]string    // the newest lists, the newest one first; nil before the first one
	listed wake.Broadcast // when there is another list
}

// Present returns the names of the nodes that were present at one of the two newest lists, in no
// order, and whether nodes that are left out are surely absent. It returns nil on every host but the
// leader. Listed is closed when there is another list. The costs are O(nodes).
//
// A node that is missing once counts as present: the agent may just be starting again.
func (m *Member) Present() (names map[string]bool, sure bool, listed <-chan struct{}) {
	p := &m.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range p.lists {
		for _, name := range list {
			if names == nil {
				names = make(map[string]bool, len(list))
			}
			names[name] = true
		}
	}
	return names, p.lists[1] != nil, p.listed.Next()
}

// vanished reports whether a node of the list before the newest one is missing.
func (p *presence) vanished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.lists[1] {
		if p.seen[name] != p.now {
			return true
		}
	}
	return false
}

// AwayFor returns for how long the node has been absent while this host was the leader and could
// read the store. It is 0 for a node that is present, and on every host but the leader.
func (m *Member) AwayFor(node string) time.Duration {
	m.presence.mu.Lock()
	defer m.presence.mu.Unlock()
	return m.presence.now - m.presence.seen[node]
}

// count returns how many nodes were present at the last look; 0 if that isn't known, or this host
// isn't the leader.
func (p *presence) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.there
}

// add adds the time since the last list, and the nodes of this one.
func (p *presence) add(passed time.Duration, there []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now += min(passed, 2*presenceEvery)
	for name, at := range p.seen {
		if p.now-at > forgetNode {
			delete(p.seen, name) // counts as absent since the start
		}
	}
	for _, name := range there {
		p.seen[name] = p.now
	}
	if passed > 0 { // at the first list, others may just be starting
		p.there = len(there)
	}
	p.lists = [2][]string{there, p.lists[0]}
	p.listed.Send()
}

func (p *presence) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.there, p.seen = 0, 0, map[string]time.Duration{}
	p.lists = [2][]string{}
	p.listed.Send()
}

// watchPresence lists the keys of the nodes while this host is the leader. A node's key exists
// while its session lives.
func (m *Member) watchPresence(ctx context.Context) {
	wait := kv.NewBackoff()
	var last time.Time // of the last list; zero if the next one begins a period
	for ctx.Err() == nil {
		changed := m.Changed()
		if !m.Mine() {
			m.presence.reset()
			last = time.Time{}
			backoff.Nap(ctx, time.Hour, changed)
			continue
		}
		began := time.Now()
		names, err := m.present(ctx)
		if err != nil {
			last = time.Time{}
			backoff.Nap(ctx, wait.Next(), changed)
			continue
		}
		wait.Reset()
		next := presenceEvery
		if last.IsZero() { // a new leader knows soon who is absent
			last, next = began, presenceEvery/3
		}
		m.presence.add(began.Sub(last), names)
		last = began
		if m.presence.vanished() { // look again soon whether it is gone
			next = presenceEvery / 3
		}
		backoff.Nap(ctx, next*9/10+rand.N(next/5), changed)
	}
}

// present returns the names of the nodes that are present.
func (m *Member) present(ctx context.Context) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	keys, _, err := m.o.KV.Level(ctx, m.o.Keys.Nodes)
	for _, key := range keys {
		if name, err := url.PathUnescape(strings.TrimPrefix(key, m.o.Keys.Nodes)); err == nil {
			names = append(names, name)
		}
	}
	return names, err
}
