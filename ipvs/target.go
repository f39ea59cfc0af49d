package ipvs

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/reconcile"
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
	Table  string // our nftables table, of family inet
	// Mark is the one bit of the packet mark that the table uses, from a
	// packet's arrival to its departure.
	Mark uint32
	// Owns reports whether an address is ours: in a pool, or leased. Every IPVS
	// service on one is ours to change and remove.
	Owns func(netip.Addr) bool
	// PodCIDRs returns the ranges whose clients keep their address under
	// masquerade "auto"; may be nil. It is asked at every Apply and must not block.
	PodCIDRs func() []netip.Prefix
	Log      *slog.Logger
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
}

// Writes is the number of changes asked of the kernel, of all kinds.
func (s Stats) Writes() uint64 { return s.WritesSent + s.NFTMessages + s.AddressWrites }

// Target is the IPVS dataplane: a reconcile.Plane and reconcile.Connections.
// It works in the network namespace of the thread that calls it; a caller that
// changes namespaces must keep to one. Make it with New.
type Target struct {
	opt    Options
	stats  counters
	kernel *kernel
	fw     firewall
	device *device
	sysctl sysctls

	// What the kernel is believed to hold, apart from the details of services,
	// which Apply's caller knows.
	held      *holdings
	pods      []netip.Prefix // held.pods, as PodCIDRs gave it
	stalePods bool           // the table's pod ranges are not PodCIDRs
	loaded    bool           // held has been read from the kernel
	broken    bool           // the table must be built anew
	suspect   map[vip.FrontendKey]struct{}

	v6 bool // IPv6 forwarding is needed

	idle *idleWatch

	mu     sync.Mutex
	faults []Finding // the sysctls, as they were when last set
}

var (
	_ reconcile.Plane       = (*Target)(nil)
	_ reconcile.Connections = (*Target)(nil)
)

// New connects to the kernel, makes the device and sets the sysctls. A sysctl
// that can't be set is no error: see Findings.
func New(o Options) (*Target, error) {
	if o.Device == "" {
		o.Device = DefaultDevice
	}
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if o.Mark == 0 {
		o.Mark = DefaultMark
	}
	if bits.OnesCount32(o.Mark) != 1 {
		return nil, fmt.Errorf("mark %#x for masquerading: it must be one bit", o.Mark)
	}
	if o.PodCIDRs == nil {
		o.PodCIDRs = func() []netip.Prefix { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Target{opt: o, sysctl: sysctls{procSysNet}, suspect: map[vip.FrontendKey]struct{}{}}
	t.fw = firewall{layout: newLayout(o.Table, o.Mark), stats: &t.stats}
	t.held = newHoldings(podSet(nil))
	ctx := context.Background()
	var err error
	if t.kernel, err = openKernel(ctx, &t.stats); err != nil {
		return nil, err
	}
	if t.idle, err = newIdleWatch(ctx, &t.stats); err == nil {
		if t.device, err = openDevice(o.Device, &t.stats); err == nil {
			err = t.device.ensure()
		}
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.tune()
	return t, nil
}

// Close gives back the sockets. The kernel goes on forwarding as it is.
func (t *Target) Close() error {
	t.kernel.close()
	if t.idle != nil {
		t.idle.close()
	}
	if t.device != nil {
		t.device.close()
	}
	return nil
}

// Stats returns the present counts. It may be called at any time.
func (t *Target) Stats() Stats {
	c := &t.stats
	return Stats{
		WritesSent: c.writes.Load(), SendsDone: c.sends.Load(), DumpsSent: c.dumps.Load(), AnswersLost: c.lost.Load(),
		NFTMessages: c.nftMessages.Load(), AddressWrites: c.addresses.Load(), ConntrackFlows: c.conntrack.Load(),
		ConntrackDumps: c.conntrackDumps.Load(),
	}
}

// Findings returns how the sysctls fared that the Target set. It may be called
// at any time.
func (t *Target) Findings() []Finding {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.faults)
}

func (t *Target) wantedSettings() []setting {
	want := settings(parseVersion(kernelRelease()))
	if t.v6 {
		want = append(want, forwarding6)
	}
	return want
}

// tune sets the sysctls, and warns of those that newly can't be.
func (t *Target) tune() {
	want := t.wantedSettings()
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []Finding
	for _, w := range want {
		f := t.sysctl.set(w)
		if !f.OK && !slices.Contains(t.faults, f) {
			t.opt.Log.Warn("a sysctl that ipvs needs is not set", "sysctl", f.Name, "detail", f.Detail, "remedy", f.Remedy)
		}
		found = append(found, f)
	}
	t.faults = found
}

// Same implements reconcile.Target. What unsupported refuses counts, so that
// asking for it comes to Apply and is refused there.
func (t *Target) Same(a, b *vip.Frontend) bool {
	x, y := desired(a), desired(b)
	return a.Kind == b.Kind && (a.Forward == b.Forward || forwardsNAT(a) && forwardsNAT(b)) && slices.Equal(a.SourceRanges, b.SourceRanges) &&
		masquerade(a) == masquerade(b) && x.service == y.service && slices.Equal(x.dests, y.dests)
}
