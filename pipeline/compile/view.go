package compile

import (
	"cmp"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// View is a service with the override and the health of each of its backends.
type View struct {
	Service *vip.Service
	// Override returns the operator's override of a backend's state, which has priority over the
	// source's state. It is nil when no backend has an override.
	Override func(vip.BackendKey) (vip.State, bool)
	// Regroup returns the operator's override of a group's weight. It is nil when there is no override.
	Regroup func(vip.OverrideKey) (weight uint32, ok bool)
	// Health returns the results of a backend's health checks, or nil without a check. It is nil
	// when no backend has a check.
	Health func(vip.BackendKey) *vip.BackendHealth
	// Passive returns what connections of clients showed of an address, or nil without evidence. It
	// is nil in the compile stage: the dataplane that ejects a backend skips it itself.
	Passive func(vip.PassiveKey) *vip.PassiveHealth
}

// StateOf returns the state in effect for a backend: the override if there is one, else the
// source's state. A backend without a state is ready.
func (v *View) StateOf(b *vip.Backend) vip.State {
	if v.Override != nil {
		if state, ok := v.Override(b.Key(v.Service.Key)); ok {
			return state
		}
	}
	return cmp.Or(b.State, vip.Ready)
}

// Unhealthy reports whether the backend's source, or a health check that decides for the service
// port, found it unhealthy. An empty port stands for all ports.
func (v *View) Unhealthy(b *vip.Backend, port string) bool {
	if b.Health == vip.Unhealthy {
		return true
	}
	if v.Health == nil {
		return false
	}
	h := v.Health(b.Key(v.Service.Key))
	return h != nil && h.Unhealthy(port)
}

// Usable reports whether a backend takes new connections at all of its ports if clients may reach
// it: it has a weight, is ready, and is not unhealthy.
func (v *View) Usable(b *vip.Backend) bool { return v.UsableAt(b, "") }

// UsableAt is Usable for one service port: checks of other ports have no effect.
func (v *View) UsableAt(b *vip.Backend, port string) bool {
	return !v.Weightless(b) && v.StateOf(b) == vip.Ready && !v.Unhealthy(b, port)
}

// passed reports whether every check of a backend has passed, if its service has one.
func (v *View) passed(b *vip.Backend) bool {
	if v.Service.Check == nil || v.Service.Check.Type == vip.CheckNone {
		return true
	}
	h := (*vip.BackendHealth)(nil)
	if v.Health != nil {
		h = v.Health(b.Key(v.Service.Key))
	}
	return h != nil && !slices.ContainsFunc(h.Checks, func(c vip.CheckResult) bool { return c.Health != vip.Healthy })
}

// PassiveOf returns what connections of clients showed of a backend: an ejection at one of its
// ports, else evidence that it works, else nil.
func (v *View) PassiveOf(b *vip.Backend) (out *vip.PassiveHealth) {
	var few [2]vip.PassiveKey
	for _, key := range v.AppendAddresses(few[:0], b) {
		if row := v.Passive(key); row != nil && (out == nil || row.Health == vip.Ejected && out.Health != vip.Ejected) {
			out = row
		}
	}
	return out
}

// AppendAddresses appends the keys of a backend in the passive table to out: one for each port of the
// service that it serves, sorted, each once. It appends none without the table. Out must be empty.
func (v *View) AppendAddresses(out []vip.PassiveKey, b *vip.Backend) []vip.PassiveKey {
	if v.Passive == nil {
		return out
	}
	for i := range v.Service.Ports {
		p := &v.Service.Ports[i]
		key := vip.PassiveKey{Service: v.Service.Key, Protocol: p.Protocol, Addr: b.Endpoint(p.TargetPort)}
		if b.Serves(p.Name) {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b vip.PassiveKey) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Addr.Compare(b.Addr))
	})
	return slices.Compact(out)
}

// Ejected reports whether the dataplane skips a backend at one of its ports at least.
func (v *View) Ejected(b *vip.Backend) bool {
	row := v.PassiveOf(b)
	return row != nil && row.Health == vip.Ejected
}

// Observed returns what is known of the health of a backend at all of its ports: Unhealthy if its
// source or a check says so, Ejected if connections of clients failed, Unknown if a check has no
// result yet, Healthy with evidence, and Unchecked without. The check is the one that decided; it
// is nil if another observer did, such as the connections of clients (PassiveOf).
func (v *View) Observed(b *vip.Backend) (vip.Health, *vip.CheckResult) {
	var checks []vip.CheckResult
	if v.Health != nil {
		if h := v.Health(b.Key(v.Service.Key)); h != nil {
			checks = h.Checks
		}
	}
	passive := v.PassiveOf(b)
	for _, worse := range [...]vip.Health{vip.Unhealthy, vip.Ejected, vip.Unknown} {
		if b.Health == worse || worse == vip.Ejected && passive != nil && passive.Health == worse {
			return worse, nil
		}
		if i := slices.IndexFunc(checks, func(c vip.CheckResult) bool { return c.Health == worse }); i >= 0 {
			return worse, &checks[i]
		}
	}
	switch {
	case len(checks) > 0:
		return vip.Healthy, &checks[0]
	case b.Health != 0:
		return b.Health, nil
	case passive != nil:
		return passive.Health, nil
	}
	return vip.Unchecked, nil
}

// HeldCheck returns a check that the backend fails while its traffic is held, or nil.
func (v *View) HeldCheck(b *vip.Backend) *vip.CheckResult {
	if v.Health == nil {
		return nil
	}
	if h := v.Health(b.Key(v.Service.Key)); h != nil {
		if i := slices.IndexFunc(h.Checks, func(c vip.CheckResult) bool { return c.Held() }); i >= 0 {
			return &h.Checks[i]
		}
	}
	return nil
}

// byPort reports whether the ports of the service can have different backends, so that each port
// needs its own choice.
func (v *View) byPort() bool {
	return slices.ContainsFunc(v.Service.Backends, func(b vip.Backend) bool {
		if b.Ports != "" {
			return true
		}
		if v.Health == nil {
			return false
		}
		h := v.Health(b.Key(v.Service.Key))
		return h != nil && h.ByPort()
	})
}

// rank orders backends by their right to new connections. All backends of the best rank within
// reach take them.
type rank uint8

const (
	unusable rank = iota // in another state, without a weight, or unhealthy
	backupTerminating
	backupReady
	terminating // and still serving
	ready
)

// rank returns the rank of a backend for a service port. With panic, health has no effect.
func (v *View) rank(b *vip.Backend, port string, panics bool) rank {
	if v.Weightless(b) {
		return unusable
	}
	var r rank
	switch v.StateOf(b) {
	case vip.Ready:
		r = ready
	case vip.Terminating:
		r = terminating
	default:
		return unusable
	}
	if !panics && v.Unhealthy(b, port) {
		return unusable
	}
	if b.Backup {
		r -= terminating - backupTerminating
	}
	return r
}

// panics reports whether so many of the listed backends are unhealthy that health has no effect:
// fewer than the panic threshold of those that are ready and no backup.
func (v *View) panics(port string, within func(*vip.Backend) bool) bool {
	if v.Service.PanicThreshold == 0 {
		return false
	}
	all, healthy := 0, 0
	for i := range v.Service.Backends {
		b := &v.Service.Backends[i]
		if b.Backup || !within(b) || v.rank(b, port, true) != ready {
			continue
		}
		if all++; !v.Unhealthy(b, port) {
			healthy++
		}
	}
	return healthy*100 < int(v.Service.PanicThreshold)*all
}

// weightScale returns the factor of all weights of the service. With slow start, a tenth of each
// weight must be a weight, too. The factor is constant during a slow start, so that each step
// changes the starting backend only. Weights that leave no room for the factor need none.
func (v *View) weightScale() uint32 {
	if v.Service.SlowStart == 0 || len(v.Service.Groups) > 0 { // Share has its own
		return 1
	}
	for i := range v.Service.Backends {
		if v.Service.Backends[i].Weight > vip.MaxWeight/vip.SlowStartSteps {
			return 1
		}
	}
	return vip.SlowStartSteps
}

// Panics reports whether new connections to a frontend's port go to all ready backends because too
// few of them are healthy; see vip.Service.PanicThreshold. It considers the backends on all nodes.
func (v *View) Panics(family vip.Family, port string) bool {
	c := choice{family: family, port: port}
	return v.panics(port, c.serves)
}
