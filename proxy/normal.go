package proxy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/proxy/pick"
	"github.com/ironvip/ironvip/vip"
)

// name is the name of this dataplane in messages.
const name = "the userspace proxy"

// Unsupported returns why the proxy can't serve f on any host: a vip.Problem with code unsupported
// that names all unsupported features, or nil. Apply checks it first.
func Unsupported(f *vip.Frontend) error {
	var features []string
	var field string
	nft := true // can do all of them
	refuse := func(where, what string) {
		if field == "" {
			field = where
		}
		features = append(features, what)
		nft = nft && slices.Contains(nftCan, where)
	}
	if p := f.Key.Protocol; p != vip.TCP && p != vip.UDP {
		refuse("ports.protocol", fmt.Sprintf("protocol %s", p))
	}
	if f.Kind == vip.OnRealServer {
		refuse("forward", "the part of a real server")
	}
	if f.Key.Ranged() {
		refuse("ports.port", fmt.Sprintf("port range %d-%d: it listens on single ports", f.Key.Port, f.Key.LastPort))
	}
	if f.Key.Audience != vip.Everyone {
		refuse("internal_traffic", "an internal_traffic other than external_traffic: one listener serves all clients alike")
	}
	if f.OnePacket {
		refuse("scheduler_flags", `scheduler flag "one-packet": the datagrams of a client stay together`)
	}
	if f.Forward != 0 && f.Forward != vip.ForwardNAT {
		refuse("forward", fmt.Sprintf("forward %q: it relays connections, so only %q", f.Forward, vip.ForwardNAT))
	}
	if f.Scheduler != 0 && !slices.Contains(pick.Supported(), f.Scheduler) {
		refuse("scheduler", fmt.Sprintf("scheduler %q", f.Scheduler))
		nft = nft && f.Scheduler != vip.ShortestExpectedDelay && f.Scheduler != vip.NeverQueue // they count connections
	}
	if f.Masquerade == vip.MasqueradeNever && forwardsNAT(f) { // other methods never masquerade
		refuse("masquerade", fmt.Sprintf("masquerade %q: backends always see this host's address", vip.MasqueradeNever))
	}
	if f.MaxRatePerSource > 0 {
		refuse(vip.MaxRatePerSource, vip.MaxRatePerSource)
	}
	if len(f.Backends) > pick.MaxBackends {
		refuse("backends", fmt.Sprintf("%d backends, more than %d", len(f.Backends), pick.MaxBackends))
	}
	for _, b := range f.Backends {
		switch {
		case b.Addr == f.Key.AddrPort():
			refuse("backends", fmt.Sprintf("backend %s, which is the frontend itself", b.Addr))
		case !b.Addr.IsValid() || b.Addr.Port() == 0 && !f.Key.Ranged():
			refuse("backends", fmt.Sprintf("backend %s without address or port", b.Addr))
		}
	}
	if len(features) == 0 {
		return nil
	}
	p := vip.Unsupported(name, field, strings.Join(features, "; nor "))
	if p.Hint = hints[field]; p.Hint != "" && nft {
		p.Hint += ` or "nft"`
	}
	return p
}

// hints are keyed by the field of the service. They suggest the dataplanes of the kernel, for features that only these have.
var hints = map[string]string{
	"forward":          `use forward "nat", or dataplane.mode "ipvs"`,
	"internal_traffic": `make internal_traffic and external_traffic alike, or use dataplane.mode "ipvs"`,
	"masquerade":       `use masquerade "auto", or dataplane.mode "ipvs"`,
	"ports.port":       `write a port of its own for each, or use dataplane.mode "ipvs"`,
	"ports.protocol":   `use tcp or udp, or dataplane.mode "ipvs"`,
	"scheduler":        `use another scheduler, or dataplane.mode "ipvs"`,
	"scheduler_flags":  `remove the flag, or use forward "dr" with dataplane.mode "ipvs"`,
}

// nftCan are the fields with features that the nft dataplane has, too.
var nftCan = []string{"internal_traffic", "masquerade", "ports.port", "ports.protocol", "scheduler"}

// scheduler returns f's scheduler or the default.
func scheduler(f *vip.Frontend) vip.Scheduler { return cmp.Or(f.Scheduler, vip.DefaultScheduler) }

// Same implements reconcile.Target.
func (t *Target) Same(a, b *vip.Frontend) bool { return Same(a, b) }

// Same reports whether two frontends are equal for the proxy. It ignores names, drain times and SchedulerFallback, because the
// proxy always falls back. It also ignores SynProxy, because the kernel does the same for its listeners, and which connections
// are masqueraded, because backends always see this host. It compares what Unsupported refuses, so that the request reaches Apply and
// is refused there.
func Same(a, b *vip.Frontend) bool {
	return a.Key == b.Key &&
		a.Kind == b.Kind &&
		scheduler(a) == scheduler(b) &&
		a.SchedulerPort == b.SchedulerPort &&
		a.OnePacket == b.OnePacket &&
		a.Affinity == b.Affinity &&
		a.SourceLimits == b.SourceLimits &&
		vip.SameProxySettings(a.Relay, b.Relay) &&
		(a.Forward == b.Forward || forwardsNAT(a) && forwardsNAT(b)) &&
		(a.Masquerade == vip.MasqueradeNever) == (b.Masquerade == vip.MasqueradeNever) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		slices.EqualFunc(a.Backends, b.Backends, func(a, b vip.Endpoint) bool {
			return a.Addr == b.Addr && a.Weight == b.Weight && a.MaxConnections == b.MaxConnections
		})
}

func forwardsNAT(f *vip.Frontend) bool { return f.Forward == 0 || f.Forward == vip.ForwardNAT }
