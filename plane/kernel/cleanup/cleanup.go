// Package cleanup ends connections with removed backends, by their connection tracking entries.
//
// A change adds what it makes outdated, which costs no message to the kernel. Clean searches the
// kernel's table once for everything that was added, and compares each entry that it finds with the
// frontends of that time: a connection with a backend that has come back stays. The set is in memory only: at the start,
// Suspect lets a dataplane search for what an agent that was killed has left.
package cleanup

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Table is connection tracking, see conntrack.Table.
type Table interface {
	Sweep(ctx context.Context, family vip.Family, match conntrack.Flow, end func(*conntrack.Entry) bool) error
}

// maxFlows bounds the backends that are remembered one by one, in about 2 MB. With more, Clean examines all entries of
// their frontends.
const maxFlows = 10_000

// Outdated are the connections to end. All methods must be called by the goroutine of Apply.
type Outdated struct {
	Table Table
	// Protocols are those with connections that stay with their backend for as long as their entries exist.
	Protocols []vip.Protocol
	// Translated is set if nftables translates the destinations; IPVS does it without connection tracking.
	Translated bool
	Owns       func(netip.Addr) bool // reports whether the address of a removed frontend is ours
	// Made reports whether this dataplane has translated a connection to an address that is ours and has no frontend. Another
	// program can translate there, too. Nil: only this dataplane makes such entries.
	Made     func(context.Context, *conntrack.Entry) (bool, error)
	Findings *host.Findings
	Log      *slog.Logger

	flows  conntrack.Flows
	coarse bool // flows has whole frontends only
	all    bool // of any frontend
}

// Add adds the connections of a frontend with a removed backend. A zero backend stands for all that the frontend has: those
// of its clients without a backend, who came too early, and those with backends that it lacks.
func (o *Outdated) Add(k vip.FrontendKey, b netip.AddrPort) {
	if slices.Contains(o.Protocols, k.Protocol) {
		o.add(k, b)
	}
}

// AddUnmasqueraded adds the clients that came to a frontend while another program had removed the rules that masquerade
// them. Connection tracking keeps to that as long as a client of UDP sends, and as long as another one tries to open its
// connection. Without their entries, the rules decide again. IPVS still knows the backend. Connections of TCP that were
// opened are left alone.
func (o *Outdated) AddUnmasqueraded(k vip.FrontendKey) { o.add(k, netip.AddrPort{}) }

func (o *Outdated) add(k vip.FrontendKey, b netip.AddrPort) {
	if len(o.flows) == maxFlows && !o.coarse {
		o.coarse = true
		fine := o.flows
		o.flows = nil
		for x := range fine {
			o.add(x.Frontend, netip.AddrPort{})
		}
	}
	if o.coarse {
		b = netip.AddrPort{}
	}
	if o.flows == nil {
		o.flows = conntrack.Flows{}
	}
	o.flows.Add(k, b)
}

// Suspect adds everything with a backend that its frontend lacks, and everything at an address that is ours without a
// frontend: an earlier process may have left it.
func (o *Outdated) Suspect() { o.all = true }

// Unclean reports whether Clean has something to do.
func (o *Outdated) Unclean() bool { return o.all || len(o.flows) > 0 }

// Clean ends the connections, as far as the frontends still lack their backends. It costs one dump for each family and
// protocol, which the kernel filters by what the connections have in common, or one dump of the whole table after Suspect,
// and one message for each entry. After an error, all of them are kept. A kernel that can't list entries is reported, and is
// no error: a retry doesn't help.
func (o *Outdated) Clean(ctx context.Context, has *usage.Records) error {
	maps.DeleteFunc(o.flows, func(x conntrack.Flow, _ struct{}) bool { return back(has, x) })
	ix, swept := o.flows.Index(), false
	sweep := func(family vip.Family, match conntrack.Flow) error {
		var failed error
		err := o.Table.Sweep(ctx, family, match, func(e *conntrack.Entry) bool {
			ends, err := o.ends(ctx, ix, has, e)
			failed = cmp.Or(failed, err)
			return ends
		})
		if err = cmp.Or(err, failed); conntrack.IsMissing(err) {
			o.Findings.Report(o.Log, conntrack.NoNetlink)
			return nil
		}
		swept = swept || err == nil
		return err
	}
	if o.all {
		if err := sweep(0, conntrack.Flow{}); err != nil {
			return err
		}
		clear(o.flows)
	}
	for _, family := range []vip.Family{vip.IPv4, vip.IPv6} {
		for _, protocol := range conntrack.Protocols {
			if match, any := o.flows.Common(family, protocol); any {
				if err := sweep(family, match); err != nil {
					return err
				}
			}
		}
	}
	if swept {
		o.Findings.Repaired(conntrack.NoNetlink.Name)
	}
	o.flows, o.coarse, o.all = nil, false, false
	return nil
}

// ends reports whether a connection is outdated.
func (o *Outdated) ends(ctx context.Context, ix conntrack.FlowIndex, has *usage.Records, e *conntrack.Entry) (bool, error) {
	backend, whole := ix.Has(e.Flow)
	here, lacks := place(has, e)
	switch {
	case backend: // a frontend with other ports or another audience may have it now; clients of UDP begin anew without harm
		return e.Frontend.Protocol == vip.UDP || lacks || !here, nil
	case whole && o.unmasqueraded(e):
		return true, nil
	case whole && slices.Contains(o.Protocols, e.Frontend.Protocol) && (e.Frontend.Protocol == vip.UDP || e.Forwarded()): // other connections are those of a process on this host
		return lacks || !here, nil
	case o.all && slices.Contains(o.Protocols, e.Frontend.Protocol) && e.Forwarded() && e.Translated == o.Translated:
		if lacks || here || !o.Owns(e.Frontend.Addr) || o.Made == nil {
			return lacks || !here && o.Owns(e.Frontend.Addr), nil
		}
		return o.Made(ctx, e)
	}
	return false, nil
}

// unmasqueraded reports whether an entry of IPVS is one that AddUnmasqueraded looks for.
func (o *Outdated) unmasqueraded(e *conntrack.Entry) bool {
	return !o.Translated && !e.Masqueraded && e.Forwarded() && (e.Frontend.Protocol == vip.UDP || e.Opening())
}

// back reports whether a frontend has a backend again. Entries don't show the audience, so connections of TCP stay while the
// frontend of the other audience has it. Connections of UDP begin anew without harm.
func back(has *usage.Records, x conntrack.Flow) bool {
	if !x.Backend.IsValid() {
		return false
	}
	k := x.Frontend
	if usage.HasBackend(has.Frontends[k], x.Backend) {
		return true
	}
	k.Audience = vip.InternalClients - k.Audience
	return k.Protocol != vip.UDP && usage.HasBackend(has.Frontends[k], x.Backend)
}

// place reports whether there is a frontend at the place of an entry, and whether all that are there lack its backend.
func place(has *usage.Records, e *conntrack.Entry) (here, lacks bool) {
	for _, audience := range []vip.Audience{vip.Everyone, vip.InternalClients} {
		k := e.Frontend
		k.Audience = audience
		f := has.At(k)
		if f == nil {
			continue
		}
		if usage.HasBackend(f, e.Backend) || usage.HasBackend(f, netip.AddrPortFrom(e.Backend.Addr(), 0)) {
			return true, false
		}
		here = true
	}
	return here, here
}
