package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/api"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/nft"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// plane is a dataplane and the reason for its selection.
type plane struct {
	reconcile.Plane                     // vips
	vips            *vips.Plane         // around the dataplane
	about           api.Dataplane       // without Findings, see now
	findings        func() []v1.Finding // those that are not OK
	metrics         []metric.Collector
	checks          func() []v1.Check // additional lines of the status; nil: none
	proxy           *remote.Client    // nil: the kernel has the connections
	leaver          leaver            // its end, when another one serves; nil: of the proxy, see leaverOf

	run  func(context.Context) error // keeps the connection to the process of the dataplane; nil: there is none
	halt context.CancelFunc          // ends run and pathLoop

	lastTurn func() time.Time // of the dataplane's loop that is furthest behind, zero before the first; nil: the kernel forwards

	paths    *probepath.Target // of probes; nil: none
	pathLoop *reconcile.Reconciler[vip.ProbePath, vip.ProbePath]
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

// remove removes all of ours from the kernel, at the end of a demo. Nothing else of the proxy outlives the process.
func (p *plane) remove(ctx context.Context) error {
	err := p.vips.Remove()
	if p.leaver != nil {
		err = errors.Join(err, p.leaver.Remove(ctx))
	}
	return err
}

// Close closes what the plane has opened. The kernel goes on.
func (p *plane) Close() error {
	err := p.vips.Close()
	if p.leaver != nil {
		err = errors.Join(err, p.leaver.Close())
	}
	return err
}

// choosePlane creates the dataplane that the configuration requests. Before is the one that this host ran last, or "".
func (a *agent) choosePlane(before string) (*plane, error) {
	cfg := a.config.get()
	chosen, err := chooseMode(cfg.Dataplane.Mode, cfg.Dataplane.Role, before, func(mode string) []host.Finding { return checkMode(mode, cfg.Dataplane.Role) })
	if err != nil {
		return nil, err
	}
	for _, f := range chosen.Lacks {
		a.log.Warn("a preferred dataplane can't run here", "missing", f.Name, "detail", f.Detail, "fix", f.Remedy)
	}
	return a.openPlane(chosen.Mode, chosen.Why)
}

// openPlane creates a dataplane. Why is the reason for it.
func (a *agent) openPlane(mode, why string) (*plane, error) {
	switch mode {
	case configs.ModeIPVS:
		return a.newIPVS(why)
	case configs.ModeNFT:
		return a.newNFT(why)
	}
	return a.newProxy(why)
}

// addVIPs makes the plane one with the addresses of its frontends. After an error, the plane is closed.
func (a *agent) addVIPs(p *plane, o vips.Options) (*plane, error) {
	o.Plane, o.Device, o.Log = p.Plane, a.config.startedWith().Dataplane.Device, a.log
	with, err := vips.New(o)
	if err != nil {
		err = fmt.Errorf("start the %s dataplane: %w", p.about.Mode, err)
		if p.leaver != nil {
			err = errors.Join(err, p.leaver.Close())
		}
		return nil, err
	}
	p.Plane, p.vips = with, with
	p.metrics = append(p.metrics, func(w *metric.Writer) { w.Add(familyAddressWrites, float64(with.Writes())) })
	return p, nil
}

func (a *agent) newIPVS(why string) (*plane, error) {
	device := a.config.startedWith().Dataplane.Device
	target, err := ipvs.New(ipvs.Options{
		Device: device, Owns: a.allocator.Owns, PodCIDRs: a.podCIDRs,
		RealServer: a.config.get().Dataplane.Role == configs.RoleRealServer, Log: a.log,
	})
	if err != nil {
		return nil, fmt.Errorf("start the ipvs dataplane: %w", err)
	}
	paths, err := probepath.New(probePaths(device))
	if err != nil {
		target.Close()
		return nil, fmt.Errorf("start the ipvs dataplane: paths of health probes: %w", err)
	}
	p := kernelPlane(target, ipvsLeaver{target, paths}, api.Dataplane{Mode: configs.ModeIPVS, Reason: why}, target.Findings, collectCounts(ipvsCounts, target.Stats))
	p.paths, p.pathLoop = paths, reconcile.New(reconcile.Options[vip.ProbePath, vip.ProbePath]{
		Desired: a.tables.ProbePaths, Target: paths, Applied: a.tables.AppliedPaths, Resync: time.Duration(a.config.get().Dataplane.ResyncInterval),
		Events: a.events, Log: a.log,
	})
	p.metrics = append(p.metrics, collectPaths(p.pathLoop.Stats, paths.Stats))
	return a.addVIPs(p, vips.Options{})
}

// probePaths are the options of the paths of probes beside a dataplane with a device.
func probePaths(device string) probepath.Options {
	return probepath.Options{Table: probepath.TableOf(ipvs.TableOf(device))}
}

func (a *agent) newNFT(why string) (*plane, error) {
	target, err := nft.New(nft.Options{
		Device: a.config.startedWith().Dataplane.Device, Owns: a.allocator.Owns, PodCIDRs: a.podCIDRs, Log: a.log,
	})
	if err != nil {
		return nil, fmt.Errorf("start the nft dataplane: %w", err)
	}
	p := kernelPlane(target, target, api.Dataplane{Mode: configs.ModeNFT, Reason: why}, target.Findings, collectCounts(nftCounts, target.Stats))
	return a.addVIPs(p, vips.Options{})
}

func (a *agent) podCIDRs() []netip.Prefix { return a.config.get().IPAM.PodCIDRs }

// kernelPlane returns the plane of a dataplane that has all connections in the kernel: they outlive this process.
func kernelPlane(target reconcile.Plane, l leaver, about api.Dataplane, findings func() []ipvs.Finding, metrics metric.Collector) *plane {
	return &plane{Plane: target, leaver: l, about: about, findings: func() []v1.Finding { return notOK(findings()) },
		metrics: []metric.Collector{metrics}}
}

// newProxy returns the userspace dataplane. Without dataplane.proxy_socket, it runs in this process.
func (a *agent) newProxy(why string) (*plane, error) {
	client := a.proxyClient(a.tables.Passive)
	p := &plane{Plane: client, proxy: client, run: client.Run,
		about: api.Dataplane{Mode: configs.ModeProxy, Reason: why}, findings: func() []v1.Finding { return []v1.Finding{} }}
	p.checks = func() []v1.Check { return proxyChecks(client) }
	if a.proxy != nil {
		p.lastTurn = a.proxy.LastTurn
	}
	return a.addVIPs(p, vips.Options{Sockets: true, Moved: a.watcher.Changed()})
}

// proxyClient returns a client of the proxy: of the process at dataplane.proxy_socket, or of the one in this process. Passive
// gets what it finds of backends; nil: it isn't needed.
func (a *agent) proxyClient(passive *table.Table[vip.PassiveKey, vip.PassiveHealth]) *remote.Client {
	cfg := a.config.startedWith()
	o := remote.ClientOptions{Socket: cfg.Dataplane.ProxySocket, Name: cfg.Node.StateDir, Settings: process.Settings{SkLookup: cfg.Dataplane.SkLookup == configs.SkLookupAuto},
		Host: a.tables.Host, Passive: passive, Events: a.events, Log: a.log}
	if o.Socket == "" {
		if a.proxy == nil {
			a.proxy = process.New(process.Options{Version: a.version, Log: a.log})
		}
		o.Dial = a.proxy.Dial
	}
	return remote.NewClient(o)
}

// drain lets the open connections of a proxy in this process go on for a moment.
func (a *agent) drain(ctx context.Context) {
	if a.proxy != nil {
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
	vipMetrics          = metric.NewGroup("Virtual addresses", "dataplane_")
	familyAddressWrites = vipMetrics.Counter("address_writes_total", "Virtual addresses added or deleted.")

	ipvsMetrics = metric.NewGroup("IPVS", "ipvs_")
	ipvsCounts  = []kernelCount[ipvs.Stats]{
		{ipvsMetrics.Counter("service_writes_total", "IPVS messages sent that change something."), func(s ipvs.Stats) uint64 { return s.WritesSent }},
		{ipvsMetrics.Counter("dumps_total", "IPVS queries sent."), func(s ipvs.Stats) uint64 { return s.DumpsSent }},
		{ipvsMetrics.Counter("nftables_writes_total", "nftables messages sent."), func(s ipvs.Stats) uint64 { return s.NFTMessages }},
		{ipvsMetrics.Counter("conntrack_deletions_total", "Connection tracking entries deleted."), func(s ipvs.Stats) uint64 { return s.ConntrackFlows }},
	}

	nftMetrics = metric.NewGroup("The nft dataplane", "nft_")
	nftCounts  = []kernelCount[nft.Stats]{
		{nftMetrics.Counter("table_writes_total", "nftables messages sent that change something."), func(s nft.Stats) uint64 { return s.NFTMessages }},
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
