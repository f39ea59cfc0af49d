package spec

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// flat returns all backends of a service: its own and those of its groups, with the name of their group.
func (s *Service) flat() []Backend {
	if len(s.Groups) == 0 {
		return s.Backends
	}
	out := slices.Clone(s.Backends)
	for i := range s.Groups {
		for _, w := range s.Groups[i].Backends {
			w.Group = s.Groups[i].Name
			out = append(out, w)
		}
	}
	return out
}

// All returns pointers to the backends of a service and of its groups.
func (s *Service) All() (out []*Backend) {
	for i := range s.Backends {
		out = append(out, &s.Backends[i])
	}
	for _, g := range s.Groups {
		for i := range g.Backends {
			out = append(out, &g.Backends[i])
		}
	}
	return out
}

// pathOf returns the field of a backend by its index in flat.
func (s *Service) pathOf(i int) string {
	if i < len(s.Backends) {
		return strict.Index("backends", i)
	}
	i -= len(s.Backends)
	g := 0
	for ; i >= len(s.Groups[g].Backends); g++ {
		i -= len(s.Groups[g].Backends)
	}
	return strict.Index(strict.Index("groups", g)+".backends", i)
}

// groups reads the groups of a service, and reports backends that are in none of them.
func (b *builder) groups(s *Service) []vip.Group {
	if len(s.Groups) > vip.MaxGroups {
		b.bad("groups", "split the service", "%d groups are more than %d", len(s.Groups), vip.MaxGroups)
		return nil
	}
	var out []vip.Group
	has := func(name string) bool {
		return slices.ContainsFunc(out, func(g vip.Group) bool { return g.Name == name })
	}
	for i := range s.Groups {
		w, field := &s.Groups[i], strict.Index("groups", i)
		g := vip.Group{Name: w.Name, Weight: vip.DefaultWeight}
		if b.label(field+".name", w.Name) && has(w.Name) {
			b.bad(field+".name", "give each group its own name", "%s comes twice", strict.Quote(w.Name))
		}
		if w.Weight != nil {
			g.Weight = uint32(b.number(field+".weight", *w.Weight, 0, vip.MaxWeight, weights))
		}
		out = append(out, g)
	}
	for i := range s.Backends {
		switch w := &s.Backends[i]; {
		case w.Group == "" && len(out) > 0:
			b.bad("backends", "move them into a group", "a service has either backends or groups, and this one has both")
			return out
		case w.Group != "" && !has(w.Group):
			b.bad(strict.Index("backends", i)+".group", "", "the service has no group %s", strict.Quote(w.Group))
		}
	}
	return out
}

// groupless reports schedulers with which a group has not the share of its weight.
func (b *builder) groupless(out *vip.Service) {
	var why string
	switch out.Scheduler {
	case vip.RoundRobin, vip.LeastConnection, vip.DestinationHash:
		why = "has no weights"
	case vip.WeightedFailover:
		why = onlyGreatest
	case vip.NeverQueue:
		why = "prefers an idle backend to any weight"
	default:
		return
	}
	b.bad("groups", "use scheduler wrr, wlc, sed, sh or mh", "scheduler %s %s", out.Scheduler, why)
}
