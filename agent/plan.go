package agent

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/agent/stores"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/vip"
)

// plan returns what a reload would change. It compares the services of the files on disk with those
// of the same sources in effect, and returns the keys of ironvip.toml that differ.
func (a *agent) plan(ctx context.Context) (v1.Plan, []vip.Problem) {
	cfg, problems := configs.Load(a.path)
	if cfg == nil {
		return v1.Plan{}, problems // a reload would change nothing
	}
	proposed, more := cfg.Services()
	problems = append(problems, more...)
	named := make(map[vip.ServiceKey]bool, len(proposed))
	for i := range proposed {
		named[proposed[i].Key] = true
	}
	proposal := status.Proposal{Config: cfg, Mode: a.planes.Mode(), Leases: a.leases()}
	for key, s := range a.tables.Services.All() {
		allocation, _, _ := a.tables.Allocations.Get(key)
		now := status.Planned{Service: s, Allocation: allocation}
		if !a.config.startedWith().HasFiles(s.Source) {
			proposal.Others = append(proposal.Others, now)
			continue
		}
		proposal.Present = append(proposal.Present, now)
		if !named[key] && keepsLastGood(&s, problems) {
			proposed = append(proposed, s)
		}
	}
	if host, _, known := a.tables.Host.Get(struct{}{}); known {
		proposal.Host = &host
	}
	proposal.Services = proposed
	plan, err := proposal.Plan(ctx)
	if err != nil {
		return v1.Plan{}, append(problems, vip.Problem{Code: vip.CodeInvalid, Place: cfg.Path, Message: err.Error()})
	}
	cfg.Node.StateDir = a.config.get().Node.StateDir // a flag may have set it
	for _, c := range a.config.changes(cfg, a.planes.Mode()) {
		status.Append(&plan, c)
	}
	return plan, problems
}

// leases yields the present leases.
func (a *agent) leases() iter.Seq[*ipam.Lease] {
	return func(yield func(*ipam.Lease) bool) {
		for _, lease := range a.allocator.Leases().All() {
			if !yield(lease) {
				return
			}
		}
	}
}

// changes returns the pools and keys of ironvip.toml that differ from those in effect. A reload applies the pools and
// the keys that diff reports as live. The others are those of the start, also after reloads.
func (l *liveConfig) changes(new *configs.Config, running string) []v1.PlanChange {
	out := poolChanges(l.get().Pools, new.Pools)
	live, restart := l.diff(new, running)
	for _, key := range live {
		if key != "pool" {
			out = append(out, keyChange(key, ""))
		} else if len(out) == 0 {
			out = append(out, keyChange(key, "the pools are used in another order"))
		}
	}
	for _, key := range restart {
		impact := "takes effect when the agent is restarted"
		switch {
		case isMove(l.started, new, key):
			impact += ", which it refuses until the leases are moved: ironvip snapshot save, restore"
		case key == modeKey:
			impact += ", or with ironvip dataplane switch " + new.Dataplane.Mode
		}
		out = append(out, keyChange(key, impact))
	}
	return out
}

// isMove reports whether a changed key selects another store.
func isMove(old, new *configs.Config, key string) bool {
	return stores.PlaceOf(old) != stores.PlaceOf(new) && slices.Contains([]string{"ipam.store", "consul.prefix", "consul.datacenter", "etcd.prefix"}, key)
}

func keyChange(key, impact string) v1.PlanChange {
	return v1.PlanChange{Action: v1.ActionChange, Kind: v1.KindConfig, Name: key, Detail: "differs from the value in effect", Impact: impact}
}

// poolChanges compares pools by name, in the order of new.
func poolChanges(old, new []configs.Pool) []v1.PlanChange {
	var out []v1.PlanChange
	change := func(action string, name, detail, impact string) {
		out = append(out, v1.PlanChange{Action: action, Kind: v1.KindPool, Name: name, Detail: detail, Impact: impact})
	}
	named := func(name string) func(configs.Pool) bool { return func(p configs.Pool) bool { return p.Name == name } }
	for _, p := range new {
		i := slices.IndexFunc(old, named(p.Name))
		if i < 0 {
			change(v1.ActionAdd, p.Name, prefixes(p.CIDRs), "")
			continue
		}
		var detail []string
		differ := func(field, before, after string) {
			if before != after {
				detail = append(detail, fmt.Sprintf("%s %s -> %s", field, before, after))
			}
		}
		differ("cidrs", prefixes(old[i].CIDRs), prefixes(p.CIDRs))
		differ("exclude", prefixes(old[i].Exclude), prefixes(p.Exclude))
		differ("auto_assign", strconv.FormatBool(old[i].AutoAssign), strconv.FormatBool(p.AutoAssign))
		differ("namespaces", strings.Join(old[i].Namespaces, ","), strings.Join(p.Namespaces, ","))
		if len(detail) > 0 {
			change(v1.ActionChange, p.Name, strings.Join(detail, ", "), keepsAddresses)
		}
	}
	for _, p := range old {
		if !slices.ContainsFunc(new, named(p.Name)) {
			change(v1.ActionRemove, p.Name, prefixes(p.CIDRs), keepsAddresses)
		}
	}
	return out
}

const keepsAddresses = "services keep the addresses they hold"

func prefixes(list []netip.Prefix) string {
	if len(list) == 0 {
		return "none"
	}
	return text.Join(list, " ", netip.Prefix.String)
}

// keepsLastGood reports whether a service that is missing from the files remains in effect, because
// its file, directory or block is invalid.
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
