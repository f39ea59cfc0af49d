package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/api"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/vip"
)

// outlierReports is where the userspace proxy reports the backends that it ejects.
type outlierReports struct {
	rows   *table.Table[vip.PassiveKey, vip.PassiveHealth]
	events *event.Log
}

// plane is the selected dataplane and the reason for its selection.
type plane struct {
	reconcile.Plane
	io.Closer
	about    api.Dataplane       // without Findings, see now
	findings func() []v1.Finding // those that are not OK
	metrics  []metric.Collector
	checks   func() []v1.Check // additional lines of the status; nil: none
	relays   *relays           // nil: the kernel has the connections

	uses   <-chan struct{} // closed once it uses the device
	settle func()          // called once everything has been applied and no predecessor accepts clients

	lastTurn func() time.Time // of the dataplane's loop that is furthest behind, zero before the first; nil: the kernel forwards

	paths *probepath.Target // of probes; nil: none

	drain  func(context.Context)       // accepts no more clients, and waits for the end of the open connections
	remove func(context.Context) error // removes all of ours from the kernel; nil: nothing outlives the process
}

// relays are the connections of a dataplane that end with its process.
type relays struct {
	takeover.Connections
	add   func(takeover.Count) // counts connections that other processes relay
	ended func()               // they have none any more
}

// now returns the present description of the plane, because findings appear and disappear.
func (p *plane) now() api.Dataplane {
	about := p.about
	about.Findings = p.findings()
	return about
}

// choosePlane creates the dataplane that the configuration requests. Relayed are the connections of other processes. Before is
// the one that this host ran last, or "". Own reports whether an address is one of the host's own.
func choosePlane(live *liveConfig, allocator *ipam.Allocator, begin inheritance, relayed *relayed, before string, own func(netip.Addr) bool, out outlierReports, log *slog.Logger) (*plane, error) {
	cfg := live.get()
	check := func(mode string) []host.Finding { return checkMode(mode, cfg.Dataplane.Role) }
	chosen, err := chooseMode(cfg.Dataplane.Mode, cfg.Dataplane.Role, before, check)
	if begin.mode != "" {
		chosen, err = chooseAsked(begin.mode, cfg.Dataplane.Mode, check)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range chosen.Lacks {
		log.Warn("a preferred dataplane can't run here", "missing", f.Name, "detail", f.Detail, "fix", f.Remedy)
	}
	switch chosen.Mode {
	case configs.ModeIPVS:
		return newIPVS(live, allocator, chosen.Why, log)
	case configs.ModeNFT:
		return newNFT(live, allocator, chosen.Why, log)
	}
	return newProxy(cfg, allocator, begin, relayed, own, out, chosen.Why, log), nil
}

func newIPVS(live *liveConfig, allocator *ipam.Allocator, why string, log *slog.Logger) (*plane, error) {
	target, err := ipvs.New(ipvs.Options{
		Device: live.get().Dataplane.Device, Owns: allocator.Owns,
		PodCIDRs:   func() []netip.Prefix { return live.get().IPAM.PodCIDRs },
		RealServer: live.get().Dataplane.Role == configs.RoleRealServer, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("start the ipvs dataplane: %w", err)
	}
	paths, err := probepath.New(probepath.Options{Table: probepath.TableOf(ipvs.TableOf(live.get().Dataplane.Device))})
	if err != nil {
		target.Close()
		return nil, fmt.Errorf("start the ipvs dataplane: paths of health probes: %w", err)
	}
	p := kernelPlane(target, api.Dataplane{Mode: configs.ModeIPVS, Reason: why}, target.Findings, collectCounts(ipvsCounts, target.Stats))
	p.Closer, p.paths = closers{target, paths}, paths
	p.remove = func(ctx context.Context) error { return errors.Join(paths.Remove(ctx), target.Remove(ctx)) }
	return p, nil
}

func newNFT(live *liveConfig, allocator *ipam.Allocator, why string, log *slog.Logger) (*plane, error) {
	target, err := nft.New(nft.Options{
		Device: live.get().Dataplane.Device, Bridge: nft.NoDummy(), Owns: allocator.Owns,
		PodCIDRs: func() []netip.Prefix { return live.get().IPAM.PodCIDRs }, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("start the nft dataplane: %w", err)
	}
	return kernelPlane(target, api.Dataplane{Mode: configs.ModeNFT, Reason: why}, target.Findings, collectCounts(nftCounts, target.Stats)), nil
}

// kernelTarget is a dataplane in the kernel.
type kernelTarget interface {
	reconcile.Plane
	io.Closer
	Remove(context.Context) error
}

// kernelPlane returns the plane of a dataplane that has all connections in the kernel: they outlive this process.
func kernelPlane(target kernelTarget, about api.Dataplane, findings func() []ipvs.Finding, metrics metric.Collector) *plane {
	return &plane{Plane: target, Closer: target, about: about, findings: func() []v1.Finding { return notOK(findings()) },
		metrics: []metric.Collector{metrics}, drain: func(context.Context) {}, remove: target.Remove, uses: closedChannel, settle: func() {}}
}

// closers are closed in order.
type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for _, one := range c {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

func newProxy(cfg *configs.Config, allocator *ipam.Allocator, begin inheritance, relayed *relayed, own func(netip.Addr) bool, out outlierReports, why string, log *slog.Logger) *plane {
	o := proxy.Options{Device: cfg.Dataplane.Device, Owns: allocator.Owns, Own: own, Sockets: begin.sockets, SkLookup: cfg.Dataplane.SkLookup == configs.SkLookupAuto, Passive: out.rows, Events: out.events, Log: log}
	o.Succeeds = begin.predecessor != nil
	if len(relayed.processes) > 0 {
		o.EndRelayed = func(frontend vip.FrontendKey, addr netip.AddrPort) {
			relayed.endOf(takeover.Backend{Frontend: frontend, Addr: addr})
		}
	}
	target := proxy.New(o)
	if o.SkLookup {
		why += "; " + target.Entrance().String()
	}
	return &plane{Plane: target, Closer: target, uses: target.UsesDevice(), settle: target.Settle,
		about: api.Dataplane{Mode: "proxy", Reason: why}, findings: func() []v1.Finding { return []v1.Finding{} },
		checks: func() []v1.Check { return proxyChecks(target) }, drain: target.Drain, lastTurn: target.LastTurn,
		relays: &relays{
			Connections: takeover.Connections{
				Open: func() func() []takeover.Count { return openConnections(target) },
				End:  func(b takeover.Backend) { target.Abort(b.Frontend, b.Addr) },
			},
			add:   func(c takeover.Count) { target.Relayed(c.Frontend, c.Addr, int(c.N)) },
			ended: target.RelayedEnded,
		}}
}

// openConnections returns a function that counts the proxy's own connections. A call costs
// O(frontends), and after the drain has begun, O(frontends that still have connections).
func openConnections(target *proxy.Target) func() []takeover.Count {
	var busy []vip.FrontendKey
	final := false
	return func() (out []takeover.Count) {
		if !final {
			busy, final = target.Busy()
		}
		busy = slices.DeleteFunc(busy, func(key vip.FrontendKey) bool {
			all := target.Own(key)
			for addr, n := range all {
				out = append(out, takeover.Count{Backend: takeover.Backend{Frontend: key, Addr: addr}, N: int64(n)})
			}
			return len(all) == 0
		})
		return out
	}
}

// notOK returns the findings that an operator should see.
func notOK(findings []ipvs.Finding) []v1.Finding {
	out := []v1.Finding{}
	for _, f := range findings {
		if f.OK {
			continue
		}
		level := v1.LevelWarn
		if f.Required {
			level = v1.LevelFail
		}
		out = append(out, v1.Finding{Level: level, Name: f.Name, Message: f.Detail, Fix: f.Remedy})
	}
	return out
}

// kernelCount is one metric of what a dataplane with counts S sends to the kernel.
type kernelCount[S any] struct {
	family *metric.Family
	of     func(S) uint64
}

var (
	ipvsMetrics = metric.NewGroup("IPVS", "ipvs_")
	ipvsCounts  = []kernelCount[ipvs.Stats]{
		{ipvsMetrics.Counter("service_writes_total", "IPVS messages sent that change something."), func(s ipvs.Stats) uint64 { return s.WritesSent }},
		{ipvsMetrics.Counter("dumps_total", "IPVS queries sent."), func(s ipvs.Stats) uint64 { return s.DumpsSent }},
		{ipvsMetrics.Counter("nftables_writes_total", "nftables messages sent."), func(s ipvs.Stats) uint64 { return s.NFTMessages }},
		{ipvsMetrics.Counter("address_writes_total", "Virtual addresses added or deleted."), func(s ipvs.Stats) uint64 { return s.AddressWrites }},
		{ipvsMetrics.Counter("conntrack_deletions_total", "Connection tracking entries deleted."), func(s ipvs.Stats) uint64 { return s.ConntrackFlows }},
	}

	nftMetrics = metric.NewGroup("The nft dataplane", "nft_")
	nftCounts  = []kernelCount[nft.Stats]{
		{nftMetrics.Counter("table_writes_total", "nftables messages sent that change something."), func(s nft.Stats) uint64 { return s.NFTMessages }},
		{nftMetrics.Counter("address_writes_total", "Virtual addresses added or deleted."), func(s nft.Stats) uint64 { return s.AddressWrites }},
		{nftMetrics.Counter("conntrack_deletions_total", "Connection tracking entries deleted."), func(s nft.Stats) uint64 { return s.ConntrackFlows }},
		{nftMetrics.Counter("conntrack_dumps_total", "Connection tracking queries sent."), func(s nft.Stats) uint64 { return s.ConntrackDumps }},
	}
)

// collectCounts returns the collector of counts.
func collectCounts[S any](counts []kernelCount[S], read func() S) metric.Collector {
	return func(w *metric.Writer) {
		s := read()
		for _, c := range counts {
			w.Add(c.family, float64(c.of(s)))
		}
	}
}
