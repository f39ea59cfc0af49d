package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources/rest"
)

// node returns what this host publishes about itself to the fleet and `ironvip node list`. The fleet
// calls it every few seconds. It costs O(problems), whatever the number of services.
func (a *agent) node() membership.Node {
	stats := a.pipeline.Loop.Stats()
	out := membership.Node{
		Name: a.config.get().Node.Name, Version: a.version, Dataplane: a.planes.Mode(),
		Services: a.tables.Services.Len(), Frontends: stats.Wanted, Revision: stats.AppliedRev, Lag: a.lag.of(stats, time.Now()).Milliseconds(),
		Problems: stats.Failing + a.troubled(), Since: a.started.UnixMilli(),
	}
	if a.stores.Tree != nil {
		_, all := a.stores.Tree.FirstProblems(0)
		out.Problems += all
	}
	out.Problems += a.pipeline.Resolve.Conflicts().Len() + len(a.overrides.Problems())
	for _, s := range a.statuses.All() {
		out.Problems += len(s.Problems)
		if s.Stale != "" {
			out.Problems++
		}
	}
	return out
}

// nodes lists the nodes of the fleet or, without a fleet, this host and the peers of its announcer,
// by name. Lost nodes are among them.
func (a *agent) nodes(ctx context.Context) (v1.NodeList, error) {
	out := v1.NodeList{Store: a.config.get().IPAM.Store, Items: []v1.Node{}}
	present, err := a.presentNodes(ctx)
	if err != nil {
		return out, err
	}
	for i := range present {
		n := &present[i]
		n.State, n.Draining, n.VIPCount = v1.NodePresent, a.announcing.Nodes.Draining(n.Name), a.announcing.Count(n.Name)
	}
	for _, n := range a.lost.Nodes() {
		if !slices.ContainsFunc(present, func(p v1.Node) bool { return p.Name == n.Name }) { // it may just be back
			since, owned := n.Since.UTC(), n.Owned
			present = append(present, v1.Node{Name: n.Name, State: v1.NodeLost, Since: &since, Draining: a.announcing.Nodes.Draining(n.Name), VIPs: n.VIPs, VIPCount: &owned})
		}
	}
	out.Items = append(out.Items, present...)
	slices.SortFunc(out.Items, func(a, b v1.Node) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// presentNodes lists the nodes that are not lost.
func (a *agent) presentNodes(ctx context.Context) (out []v1.Node, err error) {
	if a.stores.Tree == nil {
		own := nodeView(a.node())
		own.Self, own.Elected = true, true
		out = append(out, own)
		for _, p := range a.announcing.Present() {
			out = append(out, v1.Node{Name: p})
		}
		return out, nil
	}
	nodes, err := a.stores.Tree.Nodes(ctx)
	for _, n := range nodes {
		if n.Name != a.config.get().Node.Name {
			out = append(out, nodeView(n))
			continue
		}
		own := a.node() // the published one may be some seconds old
		own.Index, own.Updated, own.Elected = n.Index, n.Updated, n.Elected
		view := nodeView(own)
		view.Self = true
		out = append(out, view)
	}
	return out, err
}

// forgetNode removes a lost node of a fleet. Without a fleet, the configuration lists the nodes.
func (a *agent) forgetNode(ctx context.Context, node string) error {
	if a.stores.Roster != nil {
		return a.stores.Roster.Forget(ctx, node)
	}
	if list, _ := a.nodes(ctx); slices.ContainsFunc(list.Items, func(n v1.Node) bool { return n.Name == node }) {
		return server.Refuse(http.StatusConflict, v1.CodeConflict, "node "+node+" is in the configuration: this host has no fleet", "remove it from announce.peers, then: ironvip reload")
	}
	return fmt.Errorf("node %s is %w", node, roster.ErrUnknown)
}

// rereadPatience is how long a caller waits for a requested read of the store. It is less than the
// timeout of API clients.
const rereadPatience = 8 * time.Second

// resync makes a source read everything again. For services that were registered through the API of
// a fleet, it reads the whole shared store.
func (a *agent) resync(ctx context.Context, source string) error {
	if tree := a.stores.Tree; tree != nil && source == rest.Type {
		ctx, cancel := context.WithTimeout(ctx, rereadPatience)
		defer cancel()
		if err := tree.Reread(ctx); err != nil {
			return err
		}
	}
	return a.supervisor.Resync(source)
}

func nodeView(n membership.Node) v1.Node {
	out := v1.Node{Name: n.Name, Elected: n.Elected, Version: n.Version, Dataplane: n.Dataplane, Services: n.Services, Frontends: n.Frontends,
		Problems: n.Problems, Revision: n.Revision, Lag: n.Lag, Index: n.Index}
	for _, t := range []struct {
		from int64
		to   **time.Time
	}{{n.Since, &out.Started}, {n.Updated, &out.Seen}} {
		if t.from > 0 {
			at := time.UnixMilli(t.from).UTC()
			*t.to = &at
		}
	}
	return out
}

// lag measures the age of the oldest change that the dataplane has not applied. The
// age counts from the first call after the change.
type lag struct {
	mu     sync.Mutex
	behind uint64    // the revision that the dataplane had not applied
	since  time.Time // when behind was recorded
}

func (l *lag) of(s reconcile.Stats, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.AppliedRev >= s.DesiredRev:
		l.behind = 0
		return 0
	case l.behind == 0 || s.AppliedRev >= l.behind:
		l.behind, l.since = s.DesiredRev, now
	}
	return now.Sub(l.since)
}
