package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
)

// Node is one host of the fleet. Each host publishes its own when its version, dataplane or number
// of problems changes, and otherwise every 90 s. The other fields change with every change of the
// fleet, so publishing them at once would cost O(hosts) writes per change.
type Node struct {
	Name      string `json:"name"`
	Version   string `json:"version,omitempty"`   // of ironvip
	Dataplane string `json:"dataplane,omitempty"` // "ipvs", "proxy"
	Services  int    `json:"services"`
	Frontends int    `json:"frontends"`
	Revision  uint64 `json:"revision"` // of the host's own tables: the newest that its dataplane has
	Lag       int64  `json:"lag"`      // milliseconds that the oldest change not yet in the dataplane has waited; 0 when all is
	Problems  int    `json:"problems"` // of its services, sources and tables
	Since     int64  `json:"since"`    // when the agent started, Unix milliseconds

	// The tree sets these.
	Index   uint64 `json:"index"`   // the highest of Consul's indexes that the host has reached
	Updated int64  `json:"updated"` // when it published this, Unix milliseconds of its own clock
	Elected bool   `json:"-"`
}

const (
	publishEvery = 90 * time.Second
	// presenceEvery is roughly how often the leader lists the nodes that are present.
	presenceEvery = 15 * time.Second
	// forgetNode is after how long an absent node is forgotten.
	forgetNode = 7 * 24 * time.Hour
)

// SetNode makes the tree publish what of returns. It is called every few seconds.
func (t *Tree) SetNode(of func() Node) {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	t.session.info = of
}

// Nodes reads the fleet's nodes from Consul, sorted by name. Invalid rows are left out.
func (t *Tree) Nodes(ctx context.Context) ([]Node, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pairs, _, err := consulkv.ListAll(ctx, t.o.KV, t.paths.nodes, consulkv.Query{})
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	leader, _, err := t.o.KV.Get(ctx, t.paths.leader, consulkv.Query{})
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	nodes := []Node{}
	for _, p := range pairs {
		var n Node
		if json.Unmarshal(p.Value, &n) != nil || p.Key != t.paths.node(n.Name) {
			continue
		}
		n.Elected = leader != nil && leader.Session != "" && leader.Session == p.Session
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// presence is which nodes the leader has seen, and when, on a clock that runs only while it is the
// leader and can read Consul. On other hosts it is empty.
type presence struct {
	mu    sync.Mutex
	now   time.Duration
	there int // at the last list
	seen  map[string]time.Duration
}

// AwayFor returns for how long the node has been absent while this host was the leader and could
// read Consul. It is 0 for a node that is present, and on every host but the leader.
func (t *Tree) AwayFor(node string) time.Duration {
	t.presence.mu.Lock()
	defer t.presence.mu.Unlock()
	return t.presence.now - t.presence.seen[node]
}

// count returns how many nodes were present at the last look; 0 if this host isn't the leader.
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
	p.there = len(there)
}

func (p *presence) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.there, p.seen = 0, 0, map[string]time.Duration{}
}

// watchPresence lists the keys of the nodes while this host is the leader. A node's key exists
// while its session lives.
func (t *Tree) watchPresence(ctx context.Context) {
	wait := newBackoff()
	var last time.Time // of the last list; zero if the next one begins a period
	for ctx.Err() == nil {
		changed := t.Changed()
		if !t.Mine() {
			t.presence.reset()
			last = time.Time{}
			backoff.Nap(ctx, time.Hour, changed)
			continue
		}
		began := time.Now()
		names, err := t.present(ctx)
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
		t.presence.add(began.Sub(last), names)
		last = began
		backoff.Nap(ctx, next*9/10+rand.N(next/5), changed)
	}
}

// present returns the names of the nodes that are present.
func (t *Tree) present(ctx context.Context) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	keys, _, err := t.o.KV.Level(ctx, t.paths.nodes)
	for _, key := range keys {
		if name, err := url.PathUnescape(strings.TrimPrefix(key, t.paths.nodes)); err == nil {
			names = append(names, name)
		}
	}
	return names, err
}

// publishedRow is this host's row among the nodes as it was written last.
type publishedRow struct {
	node  Node
	at    time.Time
	index uint64 // 0: not written yet
}

// node is this host's row now.
func (t *Tree) node() Node {
	t.session.mu.Lock()
	info := t.session.info
	t.session.mu.Unlock()
	var node Node
	if info != nil {
		node = info()
	}
	node.Name, node.Updated, node.Elected = t.o.Node, 0, false
	t.mu.Lock()
	node.Index = t.high
	t.mu.Unlock()
	return node
}

// state is what of a node is published at once when it changes.
func (n Node) state() Node {
	return Node{Name: n.Name, Version: n.Version, Dataplane: n.Dataplane, Problems: n.Problems, Since: n.Since}
}

// publish writes the node's row, which takes its lock, with other operations. It reports whether
// all of them have succeeded.
func (t *Tree) publish(ctx context.Context, session string, node Node, others ...consulkv.Op) (taken bool, out consulkv.Outcome, err error) {
	row := node
	row.Updated = time.Now().UnixMilli()
	value, err := json.Marshal(row)
	if err != nil {
		panic("fleet: node: " + err.Error()) // strings and numbers
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err = t.o.KV.Txn(call, append(others, consulkv.Op{Verb: consulkv.Lock, Key: t.paths.node(t.o.Node), Value: value, Session: session}))
	if err != nil || len(out.Refused) > 0 {
		return false, out, err
	}
	t.session.row = publishedRow{node, time.Now(), out.Index}
	return true, out, nil
}
