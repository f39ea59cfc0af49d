package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

// Node is one host of the fleet. Each host publishes its own, within five seconds of a change and
// every minute.
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
	publishEvery = time.Minute
	// nodesEvery is roughly how often a host reads the nodes.
	nodesEvery = 15 * time.Second
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
	nodes, _, err := t.rows(ctx)
	return nodes, err
}

// rows is Nodes, with all pairs that were read.
func (t *Tree) rows(ctx context.Context) ([]Node, []Pair, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	pairs, _, err := list(ctx, t.o.KV, t.paths.nodes, Query{})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
	leader, _, err := t.o.KV.Get(ctx, t.paths.leader, Query{})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %v", ErrUnavailable, err)
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
	return nodes, pairs, nil
}

// lastSeen is when each node was seen last, on a clock that runs only while Consul can be read.
type lastSeen struct {
	mu   sync.Mutex
	now  time.Duration
	seen map[string]time.Duration
}

// AwayFor returns for how long the node has been absent while this host could read Consul. It is 0
// for a node that is present.
func (t *Tree) AwayFor(node string) time.Duration {
	t.lastSeen.mu.Lock()
	defer t.lastSeen.mu.Unlock()
	return t.lastSeen.now - t.lastSeen.seen[node]
}

func (c *lastSeen) count(passed time.Duration, there []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += min(passed, 2*nodesEvery)
	if c.seen == nil {
		c.seen = map[string]time.Duration{}
	}
	for name, at := range c.seen {
		if c.now-at > forgetNode {
			delete(c.seen, name) // counts as absent since the start
		}
	}
	for _, name := range there {
		c.seen[name] = c.now
	}
}

func (t *Tree) watchNodes(ctx context.Context) {
	var last time.Time
	wait := newBackoff()
	for ctx.Err() == nil {
		began := time.Now()
		nodes, pairs, err := t.rows(ctx)
		if err != nil {
			last = time.Time{}
			backoff.Sleep(ctx, wait.Next())
			continue
		}
		wait.Reset()
		names := make([]string, len(nodes))
		for i, n := range nodes {
			names[i] = n.Name
		}
		passed := time.Duration(0)
		if !last.IsZero() {
			passed = began.Sub(last)
		}
		t.lastSeen.count(passed, names)
		t.setNodesJunk(pairs)
		last = began
		backoff.Sleep(ctx, nodesEvery*9/10+rand.N(nodesEvery/5))
	}
}

// setNodesJunk reports invalid rows among the nodes.
func (t *Tree) setNodesJunk(rows []Pair) {
	found := map[string]error{}
	for _, p := range rows {
		if err := t.paths.checkNodeRow(p); err != nil {
			found[p.Key] = err
		}
	}
	t.status.setJunk(inNodes, misplaced(found))
}

// publishedRow is this host's row among the nodes as it was written last.
type publishedRow struct {
	node  Node
	at    time.Time
	index uint64 // of both locks; 0: not written yet
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

// publish writes the node's row and the host's, which takes both locks, after the given
// operations. It reports whether it got them.
func (t *Tree) publish(ctx context.Context, session string, node Node, before ...Op) (taken bool, err error) {
	row := node
	row.Updated = time.Now().UnixMilli()
	value, err := json.Marshal(row)
	if err != nil {
		panic("fleet: node: " + err.Error()) // strings and numbers
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := t.o.KV.Txn(call, append(before,
		Op{Verb: Lock, Key: t.paths.host(t.o.Identity.ID), Value: t.hostRow(), Session: session},
		Op{Verb: Lock, Key: t.paths.node(t.o.Node), Value: value, Session: session}))
	if err != nil || len(out.Refused) > 0 {
		return false, err
	}
	t.session.row = publishedRow{node, time.Now(), out.Index}
	return true, nil
}
