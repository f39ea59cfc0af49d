package overrides

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
)

// LastBackendError means that a change would leave ports of a service without a usable backend for
// clients of a family.
type LastBackendError struct {
	Key   vip.OverrideKey
	Ports []string // the names of the ports; nil if all
}

func (e *LastBackendError) Error() string {
	where := ""
	if e.Ports != nil {
		where = " at port " + strings.Join(e.Ports, ", ")
	}
	what := e.Key.ID() + " is the last usable backend"
	if e.Key.Group != "" {
		what = "group " + e.Key.Group + " has the last usable backends"
	}
	return fmt.Sprintf("%s of service %q%s", what, e.Key.Service, where)
}

// lastOf returns an error if a backend, or the backends of a group, are the last usable ones at one of the service's ports, in
// their family. Otherwise it returns the condition that the backends which remain stay usable: one for
// each port is enough. A backend is usable if it and its group have a weight, it is neither unhealthy nor ejected, and is
// ready, or terminating, because it then serves while none is ready. It costs O(ports x backends). The caller
// holds the service's lock.
func (o *Overrides) lastOf(key vip.OverrideKey) (*LastBackendError, []registry.Condition) {
	svc, _, _ := o.Services.Get(key.Service)
	var alone []string
	var remain []registry.Condition
	for i := range svc.Ports {
		port := &svc.Ports[i]
		for _, family := range []vip.Family{vip.IPv4, vip.IPv6} {
			if !o.serves(&svc, key, family, port) {
				continue
			}
			conditions, found := o.another(&svc, key, family, port)
			if !found && !slices.Contains(alone, port.Name) {
				alone = append(alone, port.Name)
			}
			for _, c := range conditions {
				if !slices.Contains(remain, c) {
					remain = append(remain, c)
				}
			}
		}
	}
	if len(alone) == 0 {
		return nil, remain
	}
	if len(alone) == len(svc.Ports) {
		alone = nil
	}
	return &LastBackendError{Key: key, Ports: alone}, nil
}

// isOf reports whether an override is of a backend, or of its group.
func isOf(key vip.OverrideKey, b *vip.Backend) bool {
	if key.Group != "" {
		return b.Group == key.Group
	}
	return b.Key(key.Service) == key.BackendKey
}

// serves reports whether one of the backends that an override is of is usable at a port, for clients of a family.
func (o *Overrides) serves(svc *vip.Service, key vip.OverrideKey, family vip.Family, port *vip.Port) bool {
	return slices.ContainsFunc(svc.Backends, func(b vip.Backend) bool {
		return isOf(key, &b) && vip.FamilyOf(b.Address) == family && b.Serves(port.Name) && o.usable(&b, svc, port)
	})
}

// another finds a usable backend of a port beside those that an override is of. It returns the versions of
// its overrides, which another host may just have changed.
func (o *Overrides) another(svc *vip.Service, key vip.OverrideKey, family vip.Family, port *vip.Port) ([]registry.Condition, bool) {
	for i := range svc.Backends {
		b := &svc.Backends[i]
		if isOf(key, b) || vip.FamilyOf(b.Address) != family || !b.Serves(port.Name) || !o.usable(b, svc, port) {
			continue
		}
		keys := []vip.OverrideKey{{BackendKey: b.Key(svc.Key)}}
		if b.Group != "" && b.Group != key.Group {
			keys = append(keys, groupKey(svc.Key, b.Group))
		}
		var conditions []registry.Condition
		for _, k := range keys {
			at := storeKey(k)
			if o.Store.Unreadable(at) {
				break
			}
			conditions = append(conditions, registry.Condition{Key: at, Version: o.refresh(at).Version}) // it may be newer than the table
		}
		if len(conditions) == len(keys) && o.usable(b, svc, port) {
			return conditions, true
		}
	}
	return nil, false
}

func groupKey(service vip.ServiceKey, group string) vip.OverrideKey {
	return vip.OverrideKey{BackendKey: vip.BackendKey{Service: service}, Group: group}
}

// usable reports whether a backend takes new connections at a service port, if only while no other
// is ready.
func (o *Overrides) usable(b *vip.Backend, svc *vip.Service, port *vip.Port) bool {
	if b.Health == vip.Unhealthy {
		return false
	}
	if row := o.Health.Row(b.Key(svc.Key)); row != nil && row.Value.Unhealthy(port.Name) {
		return false
	}
	if o.Passive != nil {
		at := vip.PassiveKey{Service: svc.Key, Protocol: port.Protocol, Addr: b.Endpoint(port.TargetPort)}
		if row := o.Passive.Row(at); row != nil && row.Value.Health == vip.Ejected {
			return false
		}
	}
	state := cmp.Or(b.State, vip.Ready)
	if row, _, set := o.Table.Get(vip.OverrideKey{BackendKey: b.Key(svc.Key)}); set {
		state = row.State
	}
	weight := b.Weight
	if g := svc.GroupOf(b); g != nil {
		share := g.Weight
		if row, _, set := o.Table.Get(groupKey(svc.Key, g.Name)); set {
			share = row.Weight
		}
		weight = min(weight, share)
	}
	return (state == vip.Ready || state == vip.Terminating) && weight > 0
}
