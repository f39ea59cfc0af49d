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
	Backend vip.BackendKey
	Ports   []string // the names of the ports; nil if all
}

func (e *LastBackendError) Error() string {
	where := ""
	if e.Ports != nil {
		where = " at port " + strings.Join(e.Ports, ", ")
	}
	return fmt.Sprintf("%s is the last usable backend of service %q%s", e.Backend.ID(), e.Backend.Service, where)
}

// lastOf returns an error if a backend is the last usable one at one of its service's ports, in its
// family. Otherwise it returns the condition that the backends which remain stay usable: one for
// each port is enough. A backend is usable if it has a weight, is neither unhealthy nor ejected, and is
// ready, or terminating, because it then serves while none is ready. It costs O(ports x backends). The caller
// holds the service's lock.
func (o *Overrides) lastOf(key vip.BackendKey) (*LastBackendError, []registry.Condition) {
	svc, _, ok := o.Services.Get(key.Service)
	own := slices.IndexFunc(svc.Backends, func(b vip.Backend) bool { return b.Key(key.Service) == key })
	if !ok || own < 0 {
		return nil, nil
	}
	var alone []string
	var remain []registry.Condition
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if !svc.Backends[own].Serves(port.Name) || !o.usable(&svc.Backends[own], svc.Key, port) {
			continue
		}
		if c, found := o.another(&svc, own, port); !found {
			alone = append(alone, port.Name)
		} else if !slices.Contains(remain, c) {
			remain = append(remain, c)
		}
	}
	if len(alone) == 0 {
		return nil, remain
	}
	if len(alone) == len(svc.Ports) {
		alone = nil
	}
	return &LastBackendError{Backend: key, Ports: alone}, nil
}

// another finds a usable backend of a port beside the one at index own. It returns the version of
// its override, which another host may just have changed.
func (o *Overrides) another(svc *vip.Service, own int, port *vip.Port) (registry.Condition, bool) {
	family := vip.FamilyOf(svc.Backends[own].Address)
	for i := range svc.Backends {
		b := &svc.Backends[i]
		if i == own || vip.FamilyOf(b.Address) != family || !b.Serves(port.Name) || !o.usable(b, svc.Key, port) {
			continue
		}
		at := storeKey(b.Key(svc.Key))
		version := o.refresh(at).Version // it may be newer than the table
		if o.usable(b, svc.Key, port) && !o.Store.Unreadable(at) {
			return registry.Condition{Key: at, Version: version}, true
		}
	}
	return registry.Condition{}, false
}

// usable reports whether a backend takes new connections at a service port, if only while no other
// is ready.
func (o *Overrides) usable(b *vip.Backend, service vip.ServiceKey, port *vip.Port) bool {
	if b.Health == vip.Unhealthy {
		return false
	}
	if row := o.Health.Row(b.Key(service)); row != nil && row.Value.Unhealthy(port.Name) {
		return false
	}
	if o.Passive != nil {
		at := vip.PassiveKey{Service: service, Protocol: port.Protocol, Addr: b.Endpoint(port.TargetPort)}
		if row := o.Passive.Row(at); row != nil && row.Value.Health == vip.Ejected {
			return false
		}
	}
	state := cmp.Or(b.State, vip.Ready)
	if row, _, set := o.Table.Get(b.Key(service)); set {
		state = row.State
	}
	return (state == vip.Ready || state == vip.Terminating) && b.Weight > 0
}
