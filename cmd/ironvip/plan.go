package main

import (
	"context"
	"strings"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/control"
)

// plan returns what a reload would change: the services of the files on the
// disk compared with those of the same sources in force.
func (a *agent) plan(context.Context) (control.Plan, []vip.Problem) {
	cfg, problems := configs.Load(a.path)
	if cfg == nil {
		return control.Plan{}, problems // a reload would change nothing
	}
	proposed, more := cfg.Services()
	problems = append(problems, more...)
	named := make(map[vip.ServiceKey]bool, len(proposed))
	for i := range proposed {
		named[proposed[i].Key] = true
	}
	var present []control.Planned
	for key, s := range a.services.All() {
		if a.static[s.Source] == nil {
			continue
		}
		allocation, _, _ := a.allocations.Get(key)
		present = append(present, control.Planned{Service: s, Allocation: allocation})
		if !named[key] && keepsLastGood(&s, problems) {
			proposed = append(proposed, s)
		}
	}
	granted := a.allocator.Preview(proposed)
	after := make([]control.Planned, len(proposed))
	for i := range proposed {
		after[i] = control.Planned{Service: proposed[i], Allocation: granted[i]}
	}
	return control.NewPlan(present, after), problems
}

// keepsLastGood reports whether a service that the files no longer give stays
// in force all the same, because what is wrong is its file, directory or block.
func keepsLastGood(s *vip.Service, problems []vip.Problem) bool {
	for _, p := range problems {
		its := p.Service == "" || p.Service == s.Key.String()
		file, _, _ := strings.Cut(p.Place, ".toml:")
		if its && p.Place != "" && strings.HasPrefix(s.Origin, file) {
			return true
		}
	}
	return false
}
