package spec

import (
	"maps"

	"github.com/ironvip/ironvip/vip"
)

// FromService writes a service back the way a person would, with every default
// stated: Build of the result gives s again.
func FromService(s vip.Service) Service {
	out := Service{
		Name: s.Key.Name, Namespace: s.Key.Namespace, Labels: maps.Clone(s.Labels),
		Pool: s.Pool, ShareKey: s.ShareKey,
		VIPs: texts(s.VIPs), Families: texts(s.Families), SourceRanges: texts(s.SourceRanges),
		Scheduler: string(s.Scheduler), Forward: string(s.Forward), Masquerade: string(s.Masquerade),
		InternalTraffic: string(s.InternalTraffic), ExternalTraffic: string(s.ExternalTraffic),
	}
	drain := Duration(s.DrainTimeout)
	out.DrainTimeout = &drain
	if s.Affinity > 0 {
		timeout := Duration(s.Affinity)
		out.Affinity = &Affinity{Timeout: &timeout}
	}
	if s.SchedulerFallback {
		out.SchedulerFlags = append(out.SchedulerFlags, "fallback")
	}
	if s.SchedulerPort {
		out.SchedulerFlags = append(out.SchedulerFlags, "port")
	}
	for _, p := range s.Ports {
		w := Port{Name: p.Name, Protocol: p.Protocol.String(), Port: PortNumber(p.Port), TargetPort: PortNumber(p.TargetPort),
			NodePort: NodePort{Auto: p.NodePort.Auto, Number: int(p.NodePort.Number)}}
		if p.Name == (vip.PortKey{Port: p.Port, Protocol: p.Protocol}).String() { // the name of a port without one
			w.Name = ""
		}
		out.Ports = append(out.Ports, w)
	}
	for _, b := range s.Backends {
		out.Backends = append(out.Backends, FromBackend(b))
	}
	return out
}

// FromBackend is FromService for a single backend.
func FromBackend(b vip.Backend) Backend {
	weight := int(b.Weight)
	return Backend{Address: b.Address.String(), Port: PortNumber(b.Port), Weight: &weight, State: string(b.State), Node: b.Node, Zone: b.Zone}
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
