package nft

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/cleanup"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/slots"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Defaults of Options.
const (
	DefaultDevice = vips.DefaultDevice
	DefaultTable  = "ironvip_nft" // beside that of package ipvs, so that one can replace the other without a gap
)

// Options configure a Target. Owns is required.
type Options struct {
	Device string // the device for virtual addresses, after which the table is named
	// Owns reports whether an address is ours: in a pool, or leased.
	Owns func(netip.Addr) bool
	// PodCIDRs returns the ranges of clients that keep their address under masquerade
	// "auto". It may be nil. Every Apply calls it, so it must not block.
	PodCIDRs func() []netip.Prefix
	Log      *slog.Logger
}

// Stats count what a Target has sent to the kernel.
type Stats struct {
	NFTMessages    uint64 // nftables messages
	ConntrackFlows uint64 // connection tracking entries deleted
	ConntrackDumps uint64 // connection tracking queries
}

// Target is the nft dataplane: a reconcile.Plane. It works in the network namespace of the calling thread, so all calls must
// come from threads of one namespace.
type Target struct {
	opt    Options
	layout *filter.Layout
	fw     *filter.Table
	sysctl host.Tunables
	flows  conntrack.Table
	free   func(vip.FrontendKey) error // see host.FreePort
	drift  drift.Watch

	nftMessages, deletedFlows, flowDumps atomic.Uint64

	reading sync.RWMutex // guards records.Frontends for readers outside of the goroutine of Apply
	records *usage.Records
	content *content       // of the table
	pods    []netip.Prefix // the last result of PodCIDRs
	adopted bool           // records and content are what the kernel has
	broken  bool           // the table must be rebuilt

	unchanged uint32 // the generation of the tables in which the kernel had what the records and content say; 0: unknown

	has      map[string]bool // modules that some frontends need
	needs    needs
	outdated cleanup.Outdated
	unused   unusedShares
	sweeper  counterReader // for Apply
	stats    counterReader // for readers
	findings host.Findings
	left     []vip.FrontendKey // of an earlier process, see Left
}

var _ reconcile.Plane = (*Target)(nil)

// New connects to the kernel and sets the sysctls. A sysctl that can't be set is a finding, not an error.
func New(o Options) (*Target, error) {
	o = o.withDefaults()
	t := open(o)
	t.fw.TryHold(context.Background(), o.Log)
	conntrack.TryEnterOpened(context.Background(), t.fw, o.Owns, o.Log)
	t.drift = drift.Open(context.Background(), watch.Options{Forwarding: true, Table: o.table()}, t.fw.Open, o.Log)
	t.fw.Muted = t.drift.Muted
	t.findings.Report(t.opt.Log, t.flows.Supported(context.Background())) // it loads connection tracking, which has sysctls
	t.setSysctls()
	return t, nil
}

// open returns a Target that has changed nothing yet.
func open(o Options) *Target {
	t := &Target{opt: o, layout: newLayout(o.table()), sysctl: host.Sysctls{Root: host.ProcSysNet}, free: host.FreePort,
		records: usage.NewRecords(usage.PodSet(nil)), content: newContent(), has: map[string]bool{}, unused: unusedShares{by: map[vip.FrontendKey][]netip.AddrPort{}}}
	t.fw = filter.Of(t.layout, &t.nftMessages)
	t.sweeper, t.stats = newCounterReader(o.table()), newCounterReader(o.table())
	t.flows = conntrack.Table{Dumps: &t.flowDumps, Deleted: &t.deletedFlows}
	t.outdated = cleanup.Outdated{Table: t.flows, Protocols: conntrack.Protocols, Translated: true,
		Owns: o.Owns, Made: t.made, Findings: &t.findings, Log: o.Log}
	return t
}

// withDefaults sets what is missing.
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
	return device + "_nft"
}

// Close closes the sockets. The kernel continues to forward.
func (t *Target) Close() error {
	t.drift.Close()
	t.fw.Close()
	return nil
}

// Stats returns the current counts. It may be called at any time.
func (t *Target) Stats() Stats {
	return Stats{NFTMessages: t.nftMessages.Load(), ConntrackFlows: t.deletedFlows.Load(), ConntrackDumps: t.flowDumps.Load()}
}

// Findings returns the sysctls that the Target sets and the optional modules that it uses, as last
// checked. It may be called at any time.
func (t *Target) Findings() []host.Finding { return t.findings.List() }

// needs is what frontends need of the host, as of the last read of the table and what was applied since.
type needs struct {
	forward6 bool          // IPv6 forwarding
	idle     time.Duration // the longest that an idle connection must be remembered
}

func (n needs) with(f *vip.Frontend) needs {
	return needs{n.forward6 || f.Key.Addr.Is6(), max(n.idle, usage.IdleTimeout(f))}
}

// settings are the sysctls that the dataplane needs.
func (t *Target) settings() []host.Setting {
	all := []host.Setting{
		{Key: "ipv4/ip_forward", Value: "1", Why: "packets to backends on other hosts are forwarded"},
		{Key: "netfilter/nf_conntrack_tcp_be_liberal", Value: "1", Why: "late answers of backends are translated, too, instead of resetting the connection"},
	}
	if t.needs.forward6 {
		all = append(all, host.Setting{Key: "ipv6/conf/all/forwarding", Value: "1", Why: "packets to IPv6 backends on other hosts are forwarded"})
	}
	if t.needs.idle > 0 {
		all = append(all, host.Remembered(t.needs.idle))
	}
	return all
}

func (t *Target) setSysctls() {
	for _, w := range t.settings() {
		t.findings.Report(t.opt.Log, t.sysctl.Set(w))
	}
}

// Same implements reconcile.Target. Frontends that Unsupported rejects differ from all others, so that
// Apply sees and rejects them.
func (t *Target) Same(a, b *vip.Frontend) bool {
	if Unsupported(a) != nil || Unsupported(b) != nil || a.Key != b.Key || a.Kind != b.Kind || a.Scheduler != b.Scheduler ||
		choiceOf(a) != choiceOf(b) || seconds(a) != seconds(b) || usage.Masquerade(a) != usage.Masquerade(b) || a.SourceLimits != b.SourceLimits || a.SynProxy != b.SynProxy ||
		!usage.SameSources(a, b) || usage.IdleTimeout(a) != usage.IdleTimeout(b) || len(a.Backends) != len(b.Backends) {
		return false
	}
	da, db := divisorOf(a), divisorOf(b)
	return slices.EqualFunc(a.Backends, b.Backends, func(x, y vip.Endpoint) bool {
		return x.Addr == y.Addr && normal(a, x.Weight, da) == normal(b, y.Weight, db)
	})
}

// divisorOf returns what all weights of f have in common.
func divisorOf(f *vip.Frontend) (d int) {
	for _, b := range f.Backends {
		d = slots.GCD(int(b.Weight), d)
	}
	return max(d, 1)
}

// normal returns a weight as it takes effect: round robin knows only whether there is one, and
// weighted round robin only how weights relate.
func normal(f *vip.Frontend, w uint16, divisor int) int {
	switch f.Scheduler {
	case vip.RoundRobin:
		return min(int(w), 1)
	case vip.WeightedRoundRobin:
		return int(w) / divisor
	}
	return int(w)
}
