package ipvs

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/ipvs/internal/conntrack"
	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// Defaults of Options.
const (
	DefaultDevice = "ironvip0"
	DefaultTable  = "ironvip"
	// DefaultMark is a bit that neither kube-proxy (0x4000, 0x8000), CNI's
	// port mapping (0x2000), AWS' CNI (0x80), Cilium (0xf00 and the upper half)
	// nor Tailscale (0xff0000) uses.
	DefaultMark = 0x1000
)

// Options are what a Target needs. Owns must be given.
type Options struct {
	Device string // the dummy device for virtual addresses
	Table  string // our nftables table, of family inet; by default the device's name, DefaultTable for DefaultDevice
	// Mark is the one bit of the packet mark that the table uses, from a
	// packet's arrival to its departure.
	Mark uint32
	// Owns reports whether an address is ours: in a pool, or leased. Every IPVS
	// service on one is ours to change and remove.
	Owns func(netip.Addr) bool
	// PodCIDRs returns the ranges whose clients keep their address under
	// masquerade "auto"; may be nil. It is asked at every Apply and must not block.
	PodCIDRs func() []netip.Prefix
	// RealServer says that this host balances nothing, so that it needs none of a
	// director's sysctls: it forwards no packets.
	RealServer bool
	Log        *slog.Logger
}

// Stats count what a Target sent to the kernel since it was made.
type Stats struct {
	WritesSent     uint64 // IPVS messages that change something
	SendsDone      uint64 // system calls that carried them and queries
	DumpsSent      uint64 // IPVS queries
	AnswersLost    uint64 // IPVS messages whose outcome had to be read back
	NFTMessages    uint64 // nftables messages
	AddressWrites  uint64 // addresses added or deleted
	ConntrackFlows uint64 // connection tracking entries deleted
	ConntrackDumps uint64 // connection tracking queries
	TablesRead     uint64 // readings of the kernel's table of all connections
}

// Writes is the number of changes asked of the kernel, of all kinds.
func (s Stats) Writes() uint64 { return s.WritesSent + s.NFTMessages + s.AddressWrites }

// Target is the IPVS dataplane: a reconcile.Plane, reconcile.Connections and
// reconcile.Statistics.
// It works in the network namespace of the thread that calls it; a caller that
// changes namespaces must keep to one. Make it with New.
type Target struct {
	access
	opt   Options
	stats *counters
	marks marks

	// What the kernel is believed to hold, apart from the details of services,
	// which Apply's caller knows.
	held        *holdings
	pods        []netip.Prefix // held.pods, as PodCIDRs gave it
	stalePods   bool           // the table's pod ranges are not PodCIDRs
	loaded      bool           // held has been read from the kernel
	broken      bool           // the table must be rebuilt
	unbuildable bool           // the last rebuild failed; a module may be missing
	bare        bool           // the device may lack any address
	wide        []netip.Prefix // addresses on the device that aren't single, when it was read
	suspect     map[vip.FrontendKey]struct{}
	room        room
	stale       conntrack.Flows         // connection tracking entries that are still to go
	loose       map[netip.Addr]struct{} // backends whose hairpin elements a failed Apply may have left

	keeping bool  // connections of deleted backends don't expire, see expireAgain
	needs   needs // of sysctls, for what was applied so far

	idle  *idleWatch
	meter *meter

	findings host.Findings // the sysctls and modules, as last checked
}

// room is memory for a batch, used again by the next.
type room struct {
	items       []item
	ops         []op
	dests       []kernel.Dest
	had, needed []filter.Element
}

var (
	_ reconcile.Plane       = (*Target)(nil)
	_ reconcile.Connections = (*Target)(nil)
	_ reconcile.Statistics  = (*Target)(nil)
)

// New connects to the kernel, makes the device and sets the sysctls. A sysctl
// that can't be set is no error: see Findings.
func New(o Options) (*Target, error) {
	if o.Device == "" {
		o.Device = DefaultDevice
	}
	if o.Table == "" {
		o.Table = tableFor(o.Device)
	}
	if o.Mark == 0 {
		o.Mark = DefaultMark
	}
	if bits.OnesCount32(o.Mark) != 1 {
		return nil, fmt.Errorf("mark %#x for masquerading: it must be one bit", o.Mark)
	}
	stats := &counters{}
	h, err := openAccess(context.Background(), o, stats)
	if err != nil {
		return nil, err
	}
	return newTarget(o, h, stats)
}

// tableFor names the table of a dataplane with that device: one beside another,
// such as a demo's, has a table of its own, too.
func tableFor(device string) string {
	if device == DefaultDevice {
		return DefaultTable
	}
	return device
}

// newTarget makes a Target of a host, which it closes if that fails.
func newTarget(o Options, h access, stats *counters) (*Target, error) {
	t := idleTarget(o, h, stats)
	if err := t.ensureDevice(); err != nil {
		t.Close()
		return nil, err
	}
	t.tune()
	t.report(t.flows.Supported(context.Background()))
	return t, nil
}

// idleTarget makes a Target that has touched nothing yet.
func idleTarget(o Options, h access, stats *counters) *Target {
	if o.PodCIDRs == nil {
		o.PodCIDRs = func() []netip.Prefix { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Target{
		access: h, opt: o, stats: stats,
		idle: newIdleWatch(h.watch), meter: &meter{stats: stats, kernel: h.count, conns: h.conns},
		held: newHoldings(podSet(nil)), suspect: map[vip.FrontendKey]struct{}{}, stale: conntrack.Flows{}, loose: map[netip.Addr]struct{}{},
	}
}

// Close gives back the sockets. The kernel goes on forwarding as it is.
func (t *Target) Close() error {
	t.kernel.Close()
	t.idle.close()
	t.meter.close()
	t.device.Close()
	return nil
}

// Stats returns the present counts. It may be called at any time.
func (t *Target) Stats() Stats {
	c := t.stats
	return Stats{
		WritesSent: c.Writes.Load(), SendsDone: c.Sends.Load(), DumpsSent: c.Dumps.Load(), AnswersLost: c.Lost.Load(),
		NFTMessages: c.nftMessages.Load(), AddressWrites: c.addresses.Load(), ConntrackFlows: c.conntrack.Load(),
		ConntrackDumps: c.conntrackDumps.Load(), TablesRead: c.tables.Load(),
	}
}

// Findings returns the sysctls that the Target sets and the optional modules that
// it uses, as last checked: Actual notices that somebody has repaired one. It may be
// called at any time.
func (t *Target) Findings() []host.Finding { return t.findings.List() }

func (t *Target) wantedSettings() []host.Setting {
	if t.opt.RealServer {
		return t.needs.settings()
	}
	return append(settings(host.ParseVersion(host.KernelRelease())), t.needs.settings()...)
}

// tune sets the sysctls, and warns of those that newly can't be.
func (t *Target) tune() {
	for _, w := range t.wantedSettings() {
		t.report(t.sysctl.Set(w))
	}
}

// report records a finding, and logs it if it is new and not OK.
func (t *Target) report(f host.Finding) {
	if t.findings.Set(f) && !f.OK {
		t.opt.Log.Warn(f.Name+" is not as ipvs needs it", "detail", f.Detail, "fix", f.Remedy)
	}
}

// Same implements reconcile.Target. What unsupported refuses counts, so that
// asking for it comes to Apply and is refused there.
func (t *Target) Same(a, b *vip.Frontend) bool {
	if a.Kind == vip.OnRealServer && b.Kind == vip.OnRealServer {
		return unsupported(a) == nil && unsupported(b) == nil && slices.Equal(tunnelsHere(a), tunnelsHere(b))
	}
	// Destinations have the way of forwarding: without any it can't be told.
	empty := len(a.Backends)+len(b.Backends) == 0 && unsupported(a) == nil && unsupported(b) == nil
	return a.Kind == b.Kind && (empty || forward(a) == forward(b)) && sameSources(a, b) &&
		masquerade(a) == masquerade(b) && desiredService(a, 0) == desiredService(b, 0) && slices.EqualFunc(a.Backends, b.Backends, sameDest)
}

// sameDest reports whether two endpoints of one way of forwarding are the same
// destination.
func sameDest(a, b vip.Endpoint) bool { return a.Addr == b.Addr && a.Weight == b.Weight }
