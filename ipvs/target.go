package ipvs

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/cleanup"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Defaults of Options.
const (
	DefaultDevice = vips.DefaultDevice
	DefaultTable  = "ironvip"
)

// Options configure a Target. Owns is required.
type Options struct {
	Device string // the device for virtual addresses, after which table and tunnel devices are named
	// Owns reports whether an address is ours: in a pool, or leased. The Target changes
	// and removes every IPVS service on it.
	Owns func(netip.Addr) bool
	// PodCIDRs returns the ranges of clients that keep their address under masquerade
	// "auto". It may be nil. Every Apply calls it, so it must not block.
	PodCIDRs func() []netip.Prefix
	// RealServer means that this host forwards no packets, so it needs none of a
	// director's sysctls.
	RealServer bool
	Log        *slog.Logger
}

// Stats count what a Target has sent to the kernel.
type Stats struct {
	WritesSent     uint64 // IPVS messages that change something
	SendsDone      uint64 // system calls that carried them and queries
	DumpsSent      uint64 // IPVS queries
	AnswersLost    uint64 // IPVS messages whose outcome had to be read back
	NFTMessages    uint64 // nftables messages
	ConntrackFlows uint64 // connection tracking entries deleted
	ConntrackDumps uint64 // connection tracking queries
	TablesRead     uint64 // readings of the kernel's table of all connections
}

// Target is the IPVS dataplane: a reconcile.Plane. It works in the network namespace of the calling thread, so
// all calls must come from threads of one namespace.
type Target struct {
	access
	opt   Options
	stats *counters
	marks marks

	// The recorded state of the kernel, without the details of services, which the
	// caller of Apply knows.
	records       *usage.Records
	pods          []netip.Prefix // the last result of PodCIDRs
	stalePods     bool           // the table has other pod ranges
	adopted       bool           // records have been read from the kernel
	broken        bool           // the table must be rebuilt
	unbuildable   bool           // the last rebuild failed; a module may be missing
	suspect       map[vip.FrontendKey]struct{}
	left          *kernelState // of an earlier process, see Left
	buffers       buffers
	outdated      cleanup.Outdated        // clients of UDP; the other protocols follow the services
	looseHairpins map[netip.Addr]struct{} // backends whose hairpin elements may have to be removed

	expiryOff bool             // connections of deleted backends don't expire; see expireAgain
	optional  optionalSettings // sysctls that applied frontends need

	idleTracker *idleTracker
	statsReader *statsReader
	listing     chan struct{} // has an element while the list of connections is read

	findings host.Findings // the sysctls and modules, as last checked
}

// buffers is memory that each batch reuses.
type buffers struct {
	items       []item
	ops         []op
	dests       []kernel.Dest
	had, needed []filter.Element
	before      [3]*vip.Frontend
}

var _ reconcile.Plane = (*Target)(nil)

// New connects to the kernel and sets the sysctls. A sysctl that can't be set is a
// finding, not an error.
func New(o Options) (*Target, error) {
	o = o.withDefaults()
	stats := &counters{}
	h, err := openAccess(context.Background(), o, stats)
	if err != nil {
		return nil, err
	}
	return newTarget(o, h, stats), nil
}

// withDefaults sets what is missing. A dataplane with another device, as in a demo, gets
// its own table.
func (o Options) withDefaults() Options {
	o.Device = cmp.Or(o.Device, DefaultDevice)
	if o.PodCIDRs == nil {
		o.PodCIDRs = func() []netip.Prefix { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// table returns the name of our nftables table, of family inet.
func (o Options) table() string { return TableOf(o.Device) }

// TableOf returns the name of the table of a dataplane with this device.
func TableOf(device string) string {
	if device == DefaultDevice {
		return DefaultTable
	}
	return device
}

// newTarget returns a Target for h.
func newTarget(o Options, h access, stats *counters) *Target {
	t := unopenedTarget(o, h, stats)
	t.setSysctls()
	t.findings.Report(t.opt.Log, t.flows.Supported(context.Background()))
	return t
}

// unopenedTarget returns a Target that has changed nothing yet.
func unopenedTarget(o Options, h access, stats *counters) *Target {
	o = o.withDefaults()
	t := &Target{
		access: h, opt: o, stats: stats,
		idleTracker: newIdleTracker(h.watch), statsReader: &statsReader{stats: stats, kernel: h.count, conns: h.conns}, listing: make(chan struct{}, 1),
		records: usage.NewRecords(usage.PodSet(nil)), suspect: map[vip.FrontendKey]struct{}{}, looseHairpins: map[netip.Addr]struct{}{},
	}
	t.outdated = cleanup.Outdated{Table: h.flows, Protocols: []vip.Protocol{vip.UDP}, Owns: o.Owns, Findings: &t.findings, Log: o.Log}
	return t
}

// Close closes the sockets. The kernel continues to forward.
func (t *Target) Close() error {
	if t.Blind() {
		t.access.close()
		return nil
	}
	t.kernel.Close()
	t.idleTracker.close()
	t.statsReader.close()
	t.drift.Close()
	t.fw.Close()
	return nil
}

// Stats returns the current counts. It may be called at any time.
func (t *Target) Stats() Stats {
	c := t.stats
	return Stats{
		WritesSent: c.Writes.Load(), SendsDone: c.Sends.Load(), DumpsSent: c.Dumps.Load(), AnswersLost: c.Lost.Load(),
		NFTMessages: c.nftMessages.Load(), ConntrackFlows: c.conntrack.Load(),
		ConntrackDumps: c.conntrackDumps.Load(), TablesRead: c.tables.Load(),
	}
}

// Findings returns the sysctls that the Target sets and the optional modules that
// it uses, as last checked: Actual notices when one has been repaired. It may be
// called at any time.
func (t *Target) Findings() []host.Finding { return t.findings.List() }

func (t *Target) wantedSettings() []host.Setting {
	if t.opt.RealServer {
		return t.optional.settings()
	}
	return append(settings(linux.ParseVersion(linux.Release())), t.optional.settings()...)
}

// setSysctls sets the sysctls, and reports those that can't be set.
func (t *Target) setSysctls() {
	for _, w := range t.wantedSettings() {
		t.findings.Report(t.opt.Log, t.sysctl.Set(w))
	}
	t.setTimeout()
}

// Same implements reconcile.Target. Frontends that Unsupported rejects differ from all
// others, so that Apply sees and rejects them.
func (t *Target) Same(a, b *vip.Frontend) bool {
	if usage.IdleTimeout(a) != usage.IdleTimeout(b) { // Apply records it, and checks the kernel's timeouts
		return false
	}
	if a.Kind == vip.OnRealServer && b.Kind == vip.OnRealServer {
		return Unsupported(a) == nil && Unsupported(b) == nil && slices.Equal(usage.LocalTunnels(a), usage.LocalTunnels(b))
	}
	// The kernel stores the forwarding method per destination, so it is unknown without
	// any.
	empty := len(a.Backends)+len(b.Backends) == 0 && Unsupported(a) == nil && Unsupported(b) == nil
	limited := a.SourceLimits != vip.SourceLimits{} || b.SourceLimits != vip.SourceLimits{} || a.SynProxy || b.SynProxy
	return a.Kind == b.Kind && !limited && (empty || usage.Forward(a) == usage.Forward(b)) && usage.SameSources(a, b) && !usage.Proxied(a) && !usage.Proxied(b) &&
		usage.Masquerade(a) == usage.Masquerade(b) && desiredService(a, 0) == desiredService(b, 0) && slices.EqualFunc(a.Backends, b.Backends, sameDest)
}

// sameDest reports whether two endpoints of one forwarding method are the same
// destination.
func sameDest(a, b vip.Endpoint) bool {
	return a.Addr == b.Addr && a.Weight == b.Weight && a.MaxConnections == b.MaxConnections
}
