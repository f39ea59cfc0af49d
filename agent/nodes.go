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
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources/rest"
)

// node returns what this host publishes about itself to the fleet and `ironvip node list`. The fleet
// calls it every few seconds. It costs O(problems), whatever the number of services.
func (a *agent) node() membership.Node {
	stats := a.pipeline.Loop.Stats()
	out := membership.Node{
		Name: a.config.get().Node.Name, Version: a.version, Dataplane: a.plane().about.Mode,
		Services: a.tables.Services.Len(), Frontends: stats.Wanted, Revision: stats.AppliedRev, Lag: a.lag.of(stats, time.Now()).Milliseconds(),
		Problems: stats.Failing + a.troubled(), Since: a.started.UnixMilli(),
	}
	if a.stores.tree != nil {
		_, all := a.stores.tree.FirstProblems(0)
		out.Problems += all
	}
	if a.share != nil {
		out.Checks = a.share.View()
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
	if a.stores.tree == nil {
		own := nodeView(a.node())
		own.Self, own.Elected = true, true
		out = append(out, own)
		for _, p := range a.announcing.Present() {
			out = append(out, v1.Node{Name: p})
		}
		return out, nil
	}
	nodes, err := a.stores.tree.Nodes(ctx)
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
	if a.stores.roster != nil {
		return a.stores.roster.Forget(ctx, node)
	}
	if list, _ := a.nodes(ctx); slices.ContainsFunc(list.Items, func(n v1.Node) bool { return n.Name == node }) {
		return server.Refuse(http.StatusConflict, v1.CodeConflict, "node "+node+" is in the configuration: this host has no fleet", "remove it from announce.peers, then: ironvip reload")
	}
	return fmt.Errorf("node %s is %w", node, roster.ErrUnknown)
}

// maxStoreProblems bounds the number of store problems in `ironvip status`.
const maxStoreProblems = 20

// storeCheck returns the line of `ironvip status` for a store that hosts share.
func (a *agent) storeCheck() v1.Check {
	tree := a.stores.tree
	at := "consul at " + a.config.startedWith().Consul.Address
	c := v1.Check{Name: "store", Level: v1.LevelOK, Message: at}
	problems, all := tree.FirstProblems(maxStoreProblems)
	for _, p := range problems {
		c.Problems = append(c.Problems, v1.Problem{Code: p.Code, Place: p.Place, Field: p.Field, Message: p.Message, Hint: p.Hint})
	}
	c.More = all - len(problems)
	why, advice, since := tree.StaleSince()
	switch {
	case tree.Duplicate() != nil: // among the problems
		c.Level = v1.LevelFail
		c.Message += " not writable: another host has this host's id or name"
		c.Hint = "traffic goes on; new addresses and registrations wait"
	case !a.hasBegun() && time.Since(since) < waitingEvery: // as at any start
		c.Level, c.Message, c.Hint = v1.LevelWarn, a.awaits(), advice
	case !a.hasBegun():
		c.Level = v1.LevelFail
		c.Message = fmt.Sprintf("waiting for %s for %s: %s", at, time.Since(since).Round(time.Second), why)
		c.Hint = "this host has never read the store, and begins when it answers (consul members) and accepts the token (consul.token_file)"
		if advice != "" {
			c.Hint = "this host has never read the store, and begins when it can; " + advice
		}
	case why != "":
		c.Level = v1.LevelWarn
		c.Message += fmt.Sprintf(" away for %s: %s", time.Since(since).Round(time.Second), why)
		c.Hint = "traffic goes on; new addresses and registrations wait until it answers (consul members) and accepts the token (consul.token_file)"
		if advice != "" {
			c.Hint = "traffic goes on; new addresses and registrations wait; " + advice
		}
	case all > 0:
		c.Level = v1.LevelWarn
		c.Message += " in touch, " + text.Plural(all, "problem")
	default:
		c.Message += " in touch, " + cmp.Or(tree.Elected(), "nobody") + " is elected"
	}
	return c
}

// rereadPatience is how long a caller waits for a requested read of the store. It is less than the
// timeout of API clients.
const rereadPatience = 8 * time.Second

// resync makes a source read everything again. For services that were registered through the API of
// a fleet, it reads the whole shared store.
func (a *agent) resync(ctx context.Context, source string) error {
	if tree := a.stores.tree; tree != nil && source == rest.Type {
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
