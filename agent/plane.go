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
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// dataplane is an open dataplane and the reason for its selection.
type dataplane struct {
	plane.Opened                   // its Plane is vips
	vips         *vips.Plane       // around the dataplane
	about        api.Dataplane     // without Findings, see now
	checks       func() []v1.Check // additional lines of the status; nil: none
	proxy        *remote.Client    // nil: it is not the proxy

	run  func(context.Context) error // keeps the connection to the process of the dataplane; nil: there is none
	halt context.CancelFunc          // ends run and pathLoop

	lastTurn func() time.Time // of the dataplane's loop that is furthest behind, zero before the first; nil: the kernel forwards

	pathLoop *reconcile.Reconciler[vip.ProbePath, vip.ProbePath] // nil: without Paths
}

func (p *dataplane) kind() *plane.Kind { return configs.DataplaneOf(p.about.Mode) }

// now returns the present description of the plane, because findings appear and disappear.
func (p *dataplane) now() api.Dataplane {
	about := p.about
	about.Findings = []v1.Finding{}
	if p.Findings != nil {
		about.Findings = notOK(p.Findings())
	}
	if p.proxy != nil {
		if how := p.proxy.Entrance(); how != "" {
			about.Reason += "; " + how
		}
	}
	return about
}

// remove removes all of ours from the kernel, at the end of a demo. Nothing else of the proxy outlives the process.
func (p *dataplane) remove(ctx context.Context) error {
	err := p.vips.Remove()
	if p.Leaver != nil {
		err = errors.Join(err, p.Leaver.Remove(ctx))
	}
	return err
}

// Close closes what the plane has opened. The kernel goes on.
func (p *dataplane) Close() error {
	err := p.vips.Close()
	if p.Leaver != nil {
		err = errors.Join(err, p.Leaver.Close())
	}
	return err
}

// choosePlane creates the dataplane that the configuration requests. Before is the one that this host ran last, or "".
func (a *agent) choosePlane(before string) (*dataplane, error) {
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
func (a *agent) openPlane(mode, why string) (*dataplane, error) {
	p := &dataplane{about: api.Dataplane{Mode: mode, Reason: why}}
	if p.kind().Open == nil {
		return a.openProxy(p)
	}
	h := a.planeHost()
	h.Owns = a.allocator.Owns
	var err error
	if p.Opened, err = p.kind().Open(h); err != nil {
		return nil, fmt.Errorf("start the %s dataplane: %w", mode, err)
	}
	if p.Paths != nil {
		p.pathLoop = reconcile.New(reconcile.Options[vip.ProbePath, vip.ProbePath]{
			Desired: a.tables.ProbePaths, Target: p.Paths, Applied: a.tables.AppliedPaths, Resync: time.Duration(a.config.get().Dataplane.ResyncInterval),
			Events: a.events, Log: a.log,
		})
		p.Metrics = append(p.Metrics, collectPaths(p.pathLoop.Stats))
	}
	return a.addVIPs(p, vips.Options{})
}

// planeHost returns what a dataplane gets of this agent, without the addresses that may be ours.
func (a *agent) planeHost() plane.Host {
	cfg := a.config.startedWith()
	return plane.Host{Device: cfg.Dataplane.Device, PodCIDRs: a.podCIDRs, RealServer: cfg.Dataplane.Role == configs.RoleRealServer, Log: a.log}
}

// addVIPs makes the plane one with the addresses of its frontends. After an error, the plane is closed.
func (a *agent) addVIPs(p *dataplane, o vips.Options) (*dataplane, error) {
	o.Plane, o.Device, o.Log = p.Plane, a.config.startedWith().Dataplane.Device, a.log
	with, err := vips.New(o)
	if err != nil {
		err = fmt.Errorf("start the %s dataplane: %w", p.about.Mode, err)
		if p.Leaver != nil {
			err = errors.Join(err, p.Leaver.Close())
		}
		return nil, err
	}
	p.Plane, p.vips = with, with
	p.Metrics = append(p.Metrics, func(w *metric.Writer) { w.Add(familyAddressWrites, float64(with.Writes())) })
	return p, nil
}

func (a *agent) podCIDRs() []netip.Prefix { return a.config.get().IPAM.PodCIDRs }

// openProxy opens the userspace dataplane. Without dataplane.proxy_socket, it runs in this process.
func (a *agent) openProxy(p *dataplane) (*dataplane, error) {
	client := a.proxyClient(a.tables.Passive)
	p.Plane, p.proxy, p.run = client, client, client.Run
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
func notOK(findings []host.Finding) []v1.Finding {
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

var (
	vipMetrics          = metric.NewGroup("Virtual addresses", "dataplane_")
	familyAddressWrites = vipMetrics.Counter("address_writes_total", "Virtual addresses added or deleted.")
)
