package spec

import (
	"reflect"

	"github.com/ironvip/ironvip/vip"
)

// FromService returns the spec of a service with every default stated. Build of the result gives s
// again, except for Assigned and Preferred, which the spec does not have. Code that stores services must store
// them beside the spec, and the Health of backends, which is not part of its text.
func FromService(s vip.Service) Service {
	out := Flat(s)
	if len(out.Groups) == 0 {
		return out
	}
	for i := range out.Groups {
		g := &out.Groups[i]
		for _, w := range out.Backends {
			if w.Group == g.Name {
				w.Group = ""
				g.Backends = append(g.Backends, w)
			}
		}
	}
	out.Backends = nil
	return out
}

// Flat is FromService with all backends in one list, in the order of s. Build reads it; its text has no groups.
func Flat(s vip.Service) Service {
	out := Service{Name: s.Key.Name, Namespace: s.Key.Namespace}
	s.Relay = new(s.Relay.Get())
	from, to := reflect.ValueOf(&s).Elem(), reflect.ValueOf(&out).Elem()
	for i := range Fields {
		Fields[i].write(from, to)
	}
	for _, flag := range []struct {
		word string
		set  bool
	}{{flagFallback, s.SchedulerFallback}, {flagPort, s.SchedulerPort}, {flagOnePacket, s.OnePacket}} {
		if flag.set {
			out.SchedulerFlags = append(out.SchedulerFlags, flag.word)
		}
	}
	for i := range s.Ports {
		out.Ports = append(out.Ports, writePort(&s.Ports[i]))
	}
	for _, g := range s.Groups {
		out.Groups = append(out.Groups, Group{Name: g.Name, Weight: new(int(g.Weight))})
	}
	if s.Forward == vip.ForwardHost || len(s.Backends) == 0 {
		return out // the host itself, or none
	}
	out.Backends = make([]Backend, len(s.Backends))
	for i, b := range s.Backends {
		out.Backends[i] = FromBackend(b)
	}
	return out
}

// FromBackend is like FromService for a single backend.
func FromBackend(b vip.Backend) Backend {
	weight := int(b.Weight)
	return Backend{Address: b.Address.String(), Port: PortNumber(b.Port), Weight: &weight, Group: b.Group, State: b.State.String(), Health: b.Health, Reason: b.Reason, Backup: b.Backup, Node: b.Node, Zone: b.Zone,
		MaxConnections: int(b.MaxConnections),
		Ports:          b.Ports.List(), ForZones: b.ForZones.List(), ForNodes: b.ForNodes.List()}
}

func texts[T interface{ String() string }](in []T) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, 0, len(in))
	for _, v := range in {
		out = append(out, v.String())
	}
	return out
}
