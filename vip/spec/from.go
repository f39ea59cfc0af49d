package spec

import (
	"maps"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// FromService returns the spec of a service with every default stated. Build of the result gives s
// again, except for Assigned, which the spec does not have. Code that stores services must store
// Assigned beside the spec, and the Health of backends, which is not part of its text.
func FromService(s vip.Service) Service {
	out := Service{
		Name: s.Key.Name, Namespace: s.Key.Namespace, Labels: maps.Clone(s.Labels),
		Pool: s.Pool, ShareKey: s.ShareKey, Hostnames: slices.Clone(s.Hostnames.List()),
		VIPs: texts(s.VIPs), Families: texts(s.Families.List()), SourceRanges: texts(s.SourceRanges),
		Scheduler: s.Scheduler.String(), Forward: s.Forward.String(), Masquerade: s.Masquerade.String(),
		InternalTraffic: s.InternalTraffic.String(), ExternalTraffic: s.ExternalTraffic.String(),
		Distribution: s.Distribution.String(), HealthPort: writeNodePort(s.HealthPort),
	}
	if s.Check != nil {
		out.Health = fromCheck(s.Check)
	}
	if s.ResetUnhealthy {
		out.OnUnhealthy = resetUnhealthy
	}
	out.PanicThreshold = int(s.PanicThreshold)
	if s.SlowStart > 0 {
		out.SlowStart = writeDuration(s.SlowStart.Duration())
	}
	out.DrainTimeout = writeDuration(s.DrainTimeout)
	relay := s.Relay.Get()
	out.ConnectTimeout = writeDuration(relay.ConnectTimeout)
	out.IdleTimeout = writeDuration(relay.IdleTimeout)
	out.HalfCloseTimeout = writeDuration(relay.HalfCloseTimeout)
	out.MaxConnections, out.MaxQueue = int(relay.MaxConnections), int(relay.MaxQueue)
	out.QueueTimeout = writeDuration(relay.QueueTimeout)
	out.ProxyProtocol, out.AcceptProxyFrom = relay.ProxyProtocol.String(), texts(relay.AcceptProxyFrom)
	if s.Affinity > 0 {
		out.Affinity = &Affinity{Timeout: writeDuration(s.Affinity)}
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
	for _, b := range s.Backends {
		out.Backends = append(out.Backends, FromBackend(b))
	}
	return out
}

// FromBackend is like FromService for a single backend.
func FromBackend(b vip.Backend) Backend {
	weight := int(b.Weight)
	return Backend{Address: b.Address.String(), Port: PortNumber(b.Port), Weight: &weight, State: b.State.String(), Health: b.Health, Reason: b.Reason, Backup: b.Backup, Node: b.Node, Zone: b.Zone,
		MaxConnections: int(b.MaxConnections),
		Ports:          b.Ports.List(), ForZones: b.ForZones.List(), ForNodes: b.ForNodes.List()}
}

func writeDuration(d time.Duration) *Duration {
	out := Duration(d)
	return &out
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
