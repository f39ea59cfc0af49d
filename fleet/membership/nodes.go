package membership

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/kv"
)

// Node is one host of the fleet. Each host publishes its own when its version, dataplane or number of
// problems changes, and otherwise every 90 s. The other fields change with every change of the
// fleet, so publishing them at once would cost O(hosts) writes per change.
type Node struct {
	Name      string `json:"name"`
	Version   string `json:"version,omitempty"`   // of ironvip
	Dataplane string `json:"dataplane,omitempty"` // its mode, such as "ipvs"
	Services  int    `json:"services"`
	Frontends int    `json:"frontends"`
	Revision  uint64 `json:"revision"` // of the host's own tables: the newest that its dataplane has
	Lag       int64  `json:"lag"`      // milliseconds that the oldest change not yet in the dataplane has waited; 0 when all is
	Problems  int    `json:"problems"` // of its services, sources and tables
	Since     int64  `json:"since"`    // when the agent started, Unix milliseconds

	// The member sets these.
	Index   uint64 `json:"index"`   // the highest of the store's indexes that the host has reached
	Updated int64  `json:"updated"` // when it published this, Unix milliseconds of its own clock
	Elected bool   `json:"-"`
}

const publishEvery = 90 * time.Second

// SetNode makes the member publish what of returns. It is called every few seconds.
func (m *Member) SetNode(of func() Node) {
	m.session.mu.Lock()
	defer m.session.mu.Unlock()
	m.session.info = of
}

// Nodes reads the fleet's nodes from the store, sorted by name. Invalid rows are left out.
func (m *Member) Nodes(ctx context.Context) ([]Node, error) {
	ctx, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	pairs, _, err := m.o.KV.List(ctx, m.o.Keys.Nodes, kv.Query{})
	if err != nil {
		return nil, err
	}
	leader, _, err := m.o.KV.Get(ctx, m.o.Keys.Leader, kv.Query{})
	if err != nil {
		return nil, err
	}
	nodes := []Node{}
	for _, p := range pairs {
		n, err := m.o.Keys.decodeNode(p)
		if err != nil {
			continue
		}
		n.Elected = leader != nil && leader.Session != "" && leader.Session == p.Session
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// decodeNode decodes a node's row, and verifies that it is the row of its key.
func (k Keys) decodeNode(row kv.Pair) (n Node, err error) {
	if err := json.Unmarshal(row.Value, &n); err != nil {
		return n, fmt.Errorf("node row invalid: %w", err)
	}
	if row.Key != k.node(n.Name) {
		return n, fmt.Errorf("node row invalid: it has the node name %q", n.Name)
	}
	return n, nil
}

// publishedRow is this host's row among the nodes as it was written last.
type publishedRow struct {
	node  Node
	at    time.Time
	index uint64 // 0: not written yet
}

// node is this host's row now.
func (m *Member) node() Node {
	m.session.mu.Lock()
	info := m.session.info
	m.session.mu.Unlock()
	var node Node
	if info != nil {
		node = info()
	}
	node.Name, node.Updated, node.Elected = m.o.Node, 0, false
	node.Index = m.o.Reached()
	return node
}

// state is what of a node is published at once when it changes.
func (n Node) state() Node {
	return Node{Name: n.Name, Version: n.Version, Dataplane: n.Dataplane, Problems: n.Problems, Since: n.Since}
}

// publish writes the node's row, which takes its lock, with other operations. It reports whether
// all of them have succeeded.
func (m *Member) publish(ctx context.Context, session string, node Node, others ...kv.Op) (taken bool, out kv.Outcome, err error) {
	row := node
	row.Updated = time.Now().UnixMilli()
	value, err := json.Marshal(row)
	if err != nil {
		panic("fleet: node: " + err.Error()) // strings and numbers
	}
	call, cancel := context.WithTimeout(ctx, kv.CallTimeout)
	defer cancel()
	out, err = m.o.KV.Txn(call, append(others, kv.Op{Verb: kv.Lock, Key: m.o.Keys.node(m.o.Node), Value: value, Session: session}))
	if err != nil || len(out.Refused) > 0 {
		return false, out, err
	}
	m.session.row = publishedRow{node, time.Now(), out.Index}
	return true, out, nil
}
