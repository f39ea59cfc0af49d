package spec

import (
	"slices"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// combinations reports values that are valid separately but not together. It ignores a pair if one
// of its values is invalid. The ports and backends of out have the order of those of s.
func (b *builder) combinations(s *Service, out *vip.Service) {
	if out.OnePacket {
		b.onePacket(strict.Index("scheduler_flags", slices.Index(s.SchedulerFlags, flagOnePacket)), s, out)
	}
	if out.Forward == vip.ForwardDirect || out.Forward == vip.ForwardTunnel {
		b.untranslated(out)
	}
	if out.SlowStart > 0 {
		b.weightless(out)
	}
	if len(out.Groups) > 0 {
		b.groupless(out)
	}
	relay := out.Relay.Get()
	if relay.ProxyProtocol != 0 {
		b.unproxied("proxy_protocol", out)
	}
	if len(relay.AcceptProxyFrom) > 0 {
		b.unproxied("accept_proxy_from", out)
	}
	if !out.HealthPort.Wanted() {
		return
	}
	const field = "health_check_node_port"
	if out.ExternalTraffic == vip.Cluster {
		b.bad(field, "use external_traffic local, or remove it",
			"with external_traffic cluster every node takes traffic, and there is nothing to check")
	}
	for i := range out.Ports {
		if p := &out.Ports[i]; p.Protocol == vip.TCP && out.HealthPort.Number != 0 && p.NodePort.Number == out.HealthPort.Number {
			b.bad(field, "change one of the two", "%d/tcp is the node port of %s, too", out.HealthPort.Number, strict.Index("ports", i))
			break
		}
	}
}

const onlyGreatest = "uses only the backend with the greatest weight"

// weightless reports schedulers with which a slow start has no effect, or a bad one. rr and lc have
// no weights. fo sends all clients to the greatest weight. The hashes would move clients to another
// backend with each step, and directors with different steps would choose different backends.
func (b *builder) weightless(out *vip.Service) {
	var why string
	switch out.Scheduler {
	case vip.RoundRobin, vip.LeastConnection:
		why = "has no weights"
	case vip.WeightedFailover:
		why = onlyGreatest
	case vip.SourceHash, vip.MaglevHash, vip.DestinationHash:
		why = "would move clients with each step"
	default:
		return
	}
	b.bad("slow_start", "use scheduler wrr, wlc, sed or nq, or remove it", "scheduler %s %s", out.Scheduler, why)
}

// unproxied reports where the PROXY protocol does not work. Its header begins a connection that
// ends in a proxy. (Version 2 could describe datagrams, but no common server reads that.)
func (b *builder) unproxied(field string, out *vip.Service) {
	if !slices.ContainsFunc(out.Ports, func(p vip.Port) bool { return p.Protocol == vip.TCP || p.Protocol == 0 }) && len(out.Ports) > 0 {
		b.bad(field, "remove it", "the PROXY protocol is for tcp, and the service has no tcp port")
	}
	if out.Forward == vip.ForwardDirect || out.Forward == vip.ForwardTunnel {
		b.bad(field, "remove it, or use forward nat",
			"with forward %s, connections end at the backends, which see the client's address without the PROXY protocol", out.Forward)
	}
}

// onePacket reports what one-packet scheduling does not support.
func (b *builder) onePacket(field string, s *Service, out *vip.Service) {
	if out.Forward == vip.ForwardNAT {
		b.bad(field, "use forward dr or tunnel, or remove the flag",
			"one-packet does not work with forward nat, which needs a connection to bring replies back")
	}
	for i := range out.Ports {
		if p := &out.Ports[i]; p.Protocol != vip.UDP && p.Protocol != 0 && p.Port != 0 {
			b.bad(field, "give the udp ports a service of their own, or remove the flag",
				"one-packet is for udp, and %s is %s", strict.Index("ports", i), p.Key())
			break
		}
	}
	if s.Affinity != nil {
		b.bad(field, "remove the flag or affinity", "one-packet selects a backend for every datagram, affinity keeps a client on its backend")
	}
}

// untranslated reports settings that need changes to packets. Direct routing and tunnels deliver
// packets as the client sent them.
func (b *builder) untranslated(out *vip.Service) {
	for i := range out.Ports {
		p, field := &out.Ports[i], strict.Index("ports", i)
		if p.Port == 0 {
			continue
		}
		if p.TargetPort != 0 && p.TargetPort != p.Port {
			b.bad(field+".target_port", "remove it and let the backends listen on the VIP's port, or use forward nat",
				"forward %s does not change the port: %d is not that of %s", out.Forward, p.TargetPort, p.Key())
		} else if p.LastPort != 0 && p.TargetPort != 0 {
			b.bad(field+".target_port", "remove it, or use forward nat",
				"forward %s does not change the port: %d is not all of %s", out.Forward, p.TargetPort, p.Key())
		}
		if p.NodePort.Wanted() && p.LastPort == 0 {
			b.bad(field+".node_port", "remove it, or use forward nat",
				"forward %s does not change the address, and a backend does not listen on this host's", out.Forward)
		}
	}
	if out.Masquerade == vip.MasqueradeAlways {
		b.bad("masquerade", "remove it, or use forward nat", "forward %s does not change the client's address", out.Forward)
	}
	for i := range out.Backends {
		be := &out.Backends[i]
		for j := range out.Ports {
			p := &out.Ports[j]
			if p.Port == 0 || be.Port == 0 || !be.Serves(p.Name) || be.Port == p.Port && p.LastPort == 0 {
				continue
			}
			b.bad(b.spec.pathOf(i)+".port", "remove it, or use forward nat",
				"forward %s does not change the port: %d is not that of %s, %s", out.Forward, be.Port, strict.Index("ports", j), p.Key())
			break
		}
	}
}
