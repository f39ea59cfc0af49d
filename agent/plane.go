package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/api"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// plane is the selected dataplane and the reason for its selection.
type plane struct {
	reconcile.Plane
	io.Closer
	about    api.Dataplane       // without Findings, see now
	findings func() []v1.Finding // those that are not OK
	metrics  []metric.Collector
	checks   func() []v1.Check // additional lines of the status; nil: none
	proxy    *remote.Client    // nil: the kernel has the connections

	uses <-chan struct{}             // closed once it uses the device
	run  func(context.Context) error // keeps the connection to the process of the dataplane; nil: there is none

	lastTurn func() time.Time // of the dataplane's loop that is furthest behind, zero before the first; nil: the kernel forwards

	paths *probepath.Target // of probes; nil: none

	remove func(context.Context) error // removes all of ours from the kernel; nil: nothing outlives the process
}

// now returns the present description of the plane, because findings appear and disappear.
func (p *plane) now() api.Dataplane {
	about := p.about
	about.Findings = p.findings()
	if p.proxy != nil {
		if how := p.proxy.Entrance(); how != "" {
			about.Reason += "; " + how
		}
	}
	return about
}

// choosePlane creates the dataplane that the configuration requests. Before is the one that this host ran last, or "".
func (a *agent) choosePlane(before string) (*plane, error) {
	cfg := a.config.get()
	check := func(mode string) []host.Finding { return checkMode(mode, cfg.Dataplane.Role) }
	chosen, err := chooseMode(cfg.Dataplane.Mode, cfg.Dataplane.Role, before, check)
	if a.moved != nil {
		configured := cfg.Dataplane.Mode
		if a.moved.back {
			configured = configs.ModeAuto // whatever the next start runs
		}
		chosen, err = chooseAsked(a.moved.to, configured, check)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range chosen.Lacks {
		a.log.Warn("a preferred dataplane can't run here", "missing", f.Name, "detail", f.Detail, "fix", f.Remedy)
	}
	switch chosen.Mode {
	case configs.ModeIPVS:
		return newIPVS(a.config, a.allocator, chosen.Why, a.log)
	case configs.ModeNFT:
		return newNFT(a.config, a.allocator, chosen.Why, a.log)
	}
	return a.newProxy(chosen.Why), nil
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
		metrics: []metric.Collector{metrics}, remove: target.Remove, uses: closedChannel}
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

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// newProxy returns the userspace dataplane. Without dataplane.proxy_socket, it runs in this process.
func (a *agent) newProxy(why string) *plane {
	cfg := a.config.get()
	client := a.proxyClient(a.tables.Passive)
	target := remote.New(remote.Options{Listeners: client, Restarted: client.Restarted(), Device: cfg.Dataplane.Device, Moved: a.watcher.Changed(), Owns: a.allocator.Owns, Log: a.log})
	p := &plane{Plane: target, Closer: target, proxy: client, uses: target.UsesDevice(), run: client.Run,
		about: api.Dataplane{Mode: configs.ModeProxy, Reason: why}, findings: func() []v1.Finding { return []v1.Finding{} }}
	p.checks = func() []v1.Check { return proxyChecks(client) }
	if a.proxy.Server != nil {
		p.lastTurn = a.proxy.LastTurn
	}
	return p
}

// proxyClient returns a client of the proxy: of the process at dataplane.proxy_socket, or of the one in this process. Passive
// gets what it finds of backends; nil: it isn't needed.
func (a *agent) proxyClient(passive *table.Table[vip.PassiveKey, vip.PassiveHealth]) *remote.Client {
	cfg := a.config.startedWith()
	o := remote.ClientOptions{Socket: cfg.Dataplane.ProxySocket, Name: cfg.Node.StateDir, Settings: process.Settings{SkLookup: cfg.Dataplane.SkLookup == configs.SkLookupAuto},
		Host: a.tables.Host, Passive: passive, Events: a.events, Log: a.log}
	if o.Socket == "" {
		if a.proxy.Server == nil {
			a.proxy.Server = process.New(process.Options{Version: a.version, Log: a.log})
		}
		o.Dial = a.proxy.Dial
	}
	return remote.NewClient(o)
}

// drain lets the open connections of a proxy in this process go on for a moment.
func (a *agent) drain(ctx context.Context) {
	if a.proxy.Server != nil {
		ctx, cancel := context.WithTimeout(ctx, stopGrace)
		defer cancel()
		a.proxy.Drain(ctx)
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
