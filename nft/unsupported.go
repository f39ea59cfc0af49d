package nft

import (
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/slots"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Schedulers are those that this dataplane has. The others need the number of each backend's open
// connections, which rules of nftables can't compare.
func Schedulers() []vip.Scheduler {
	return []vip.Scheduler{vip.RoundRobin, vip.WeightedRoundRobin, vip.SourceHash, vip.MaglevHash, vip.WeightedFailover, vip.DestinationHash}
}

// Unsupported returns what the nft dataplane can't do of f on any host: a vip.Problem of code
// unsupported, or nil. Apply rejects the same.
func Unsupported(f *vip.Frontend) error {
	r := usage.Refusals{Dataplane: "the nft dataplane"}
	if f.Kind != vip.OnRealServer && !slices.Contains(Schedulers(), f.Scheduler) {
		r.Add("scheduler", "scheduler %q", f.Scheduler)
		hint := `use "wrr", or dataplane.mode "ipvs"`
		if f.Scheduler == vip.LeastConnection || f.Scheduler == vip.WeightedLeastConnection {
			hint += ` or "proxy"`
		}
		r.Hint(hint)
	}
	if !slices.Contains([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}, f.Key.Protocol) {
		r.Add("protocol", "protocol %s", f.Key.Protocol)
	}
	if f.Kind == vip.OnRealServer {
		r.Add("forward", "a real server")
	}
	if method := usage.Forward(f); method != vip.ForwardNAT {
		r.Add("forward", "forward %q", method)
		r.Hint(`use forward "nat", or dataplane.mode "ipvs"`)
	}
	if f.OnePacket {
		r.Add("scheduler_flags", "one-packet")
		r.Hint(`remove the flag, or use forward "dr" with dataplane.mode "ipvs"`)
	}
	r.ProxyProtocol(f)
	for _, b := range f.Backends {
		if family := vip.FamilyOf(f.Key.Addr); vip.FamilyOf(b.Addr.Addr()) != family {
			r.Add("backends", "backend %s behind an %s address", b.Addr, family)
		}
	}
	if slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return b.MaxConnections > 0 }) {
		r.Add("max_connections", "max_connections of a backend")
		r.Hint(`remove it, or use dataplane.mode "ipvs" or "proxy"`)
	}
	if f.SynProxy && f.Key.Ranged() {
		r.Add(vip.SynProxy, "%s of a range of ports", vip.SynProxy)
	}
	if f.SynProxy && len(f.SourceRanges) > 0 {
		r.Add(vip.SynProxy, "%s with source_ranges", vip.SynProxy)
	}
	if n := maxBackends(f); len(f.Backends) > n {
		r.Add("backends", "more than %d backends with scheduler %q", n, f.Scheduler)
	}
	if slices.ContainsFunc(f.Backends, func(b vip.Endpoint) bool { return (b.Addr.Port() == 0) != (f.Backends[0].Addr.Port() == 0) }) {
		r.Add("target_port", "backends with and without a port")
	}
	return r.Err()
}

// maxBackends is as many as there are slots.
func maxBackends(f *vip.Frontend) int {
	if choiceOf(f).hashes() {
		return slots.Hashed
	}
	return maxSlots
}

// Ignored implements reconcile.Plane.
func (*Target) Ignored(s *vip.Service) []vip.Problem { return Ignored(s) }

// Ignored returns the settings of s that have no effect with the nft dataplane.
func Ignored(s *vip.Service) []vip.Problem {
	return usage.Ignored("the nft dataplane", "it doesn't limit connections", s)
}
