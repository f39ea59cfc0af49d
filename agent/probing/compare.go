package probing

import (
	"context"
	"iter"
	"slices"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/vip"
)

// Compare returns what the nodes of the fleet or, without a fleet, this host find of the
// backends of services. It reads the rows of all nodes.
func (p *Probing) Compare(ctx context.Context, services []*vip.Service) (iter.Seq[v1.CheckComparison], error) {
	compare := func(*vip.Service, *vip.Backend) []v1.CheckComparison { return nil } // a real server has no checks
	switch {
	case p == nil:
	case p.share != nil:
		nodes, err := p.o.Stores.Tree.Nodes(ctx)
		if err != nil {
			return nil, err
		}
		own := slices.IndexFunc(nodes, func(n membership.Node) bool { return n.Name == p.node() })
		if own >= 0 { // the published row may be some seconds old
			nodes[own].Checks, nodes[own].Updated = p.share.View(), time.Now().UnixMilli()
		}
		c := comparison{nodes: nodes, rules: p.stage.Rules, sharing: p.share.Sharing}
		compare = c.backend
	default:
		compare = p.ownChecks
	}
	return func(yield func(v1.CheckComparison) bool) {
		for _, s := range services {
			for i := range s.Backends {
				for _, row := range compare(s, &s.Backends[i]) {
					if !yield(row) {
						return
					}
				}
			}
		}
	}, nil
}

// ownChecks returns what this host finds of a backend, without a fleet.
func (p *Probing) ownChecks(s *vip.Service, b *vip.Backend) (out []v1.CheckComparison) {
	row, _, _ := p.o.Tables.Health.Get(b.Key(s.Key))
	for _, c := range row.Checks {
		health := c.Health
		if c.Held() {
			health = vip.Unhealthy
		}
		node := p.node()
		out = append(out, v1.CheckComparison{Service: s.Key.String(), Backend: b.ID(), Check: c.Type.String(), Port: c.Port,
			Nodes: []v1.CheckFinding{{Node: node, Local: b.Node == node, Health: health.String(), Since: timeOf(c.Since.Time().UnixMilli()), Reason: c.Reason}}})
	}
	return out
}

func (p *Probing) node() string { return p.o.Stores.Config.Node.Name }

// comparison compares what nodes find. It is pure.
type comparison struct {
	nodes   []membership.Node // by name
	rules   health.Rules
	sharing func(key string) share.Sharing
}

// backend returns what the nodes find with each check of a backend.
func (c *comparison) backend(s *vip.Service, b *vip.Backend) (out []v1.CheckComparison) {
	for _, target := range c.rules.Targets(s, b) {
		key := share.Key(target)
		one := v1.CheckComparison{Service: s.Key.String(), Backend: b.ID(), Check: target.Check().Type.String(), Port: target.Addr.Port(), Nodes: []v1.CheckFinding{}}
		how := c.sharing(key)
		if v := how.Verdict; v != nil {
			one.Verdict = &v1.CheckFinding{Node: v.By, Health: v.Health.String(), Since: timeOf(v.Since), Reason: v.Reason}
		}
		for i := range c.nodes {
			n := &c.nodes[i]
			local := b.Node == n.Name
			if n.Checks == nil || !how.All && !n.Checks.All && !n.Checks.Alone && !local && !slices.Contains(how.Probers, n.Name) {
				continue
			}
			one.Nodes = append(one.Nodes, finding(n, key, local))
		}
		out = append(out, one)
	}
	return out
}

// finding returns what a node finds of a target that it probes.
func finding(n *membership.Node, key string, local bool) v1.CheckFinding {
	f := v1.CheckFinding{Node: n.Name, Local: local, Reported: timeOf(n.Updated)}
	i := slices.IndexFunc(n.Checks.Bad, func(s membership.Seen) bool { return s.Key == key })
	switch {
	case i >= 0:
		seen := &n.Checks.Bad[i]
		f.Health, f.Since, f.Reason = seen.Health.String(), timeOf(seen.Since), seen.Reason
	case n.Checks.More == 0:
		f.Health = vip.Healthy.String()
	}
	return f
}

// timeOf returns the time of Unix milliseconds, or nil for 0.
func timeOf(ms int64) *time.Time {
	if ms <= 0 {
		return nil
	}
	at := time.UnixMilli(ms).UTC()
	return &at
}
