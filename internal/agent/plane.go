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
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/ipvs/probepath"
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
	about      api.Dataplane       // without Findings, see now
	findings   func() []v1.Finding // those that are not OK
	metrics    []metric.Collector
	checks     func() []v1.Check              // additional lines of the status; nil: none
	open       func() func() []takeover.Count // counts connections that end with the process
	end        func(takeover.Backend)         // ends connections
	relay      func(takeover.Count)           // counts connections of a predecessor
	relayEnded func()                         // ends those counts

	lastTurn func() time.Time // of the loop that waits for clients, zero before the first; nil: the kernel forwards

	paths *probepath.Target // of probes; nil: none

	drain  func(context.Context)       // accepts no more clients, and waits for the end of the open connections
	remove func(context.Context) error // removes all of ours from the kernel; nil: nothing outlives the process
}

// now returns the present description of the plane, because findings appear and disappear.
func (p *plane) now() api.Dataplane {
	about := p.about
	about.Findings = p.findings()
	return about
}

// choosePlane creates the dataplane that the configuration requests. Own reports whether an address
// is one of the host's own.
func choosePlane(live *liveConfig, allocator *ipam.Allocator, begin inheritance, own func(netip.Addr) bool, out outlierReports, log *slog.Logger) (*plane, error) {
	cfg := live.get()
	if cfg.Dataplane.Mode == configs.ModeProxy {
		return newProxy(cfg, allocator, begin, own, out, "the configuration asks for it", log), nil
	}
	findings := ipvs.Check(cfg.Dataplane.Role == configs.RoleRealServer)
	useIPVS, why, err := chooseMode(cfg.Dataplane.Mode, cfg.Dataplane.Role, findings)
	switch {
	case err != nil:
		return nil, err
	case useIPVS:
		return newIPVS(live, allocator, why, log)
	}
	for _, f := range findings {
		if f.Required && !f.OK {
			log.Warn("the ipvs dataplane can't run here", "missing", f.Name, "detail", f.Detail, "fix", f.Remedy)
		}
	}
	return newProxy(cfg, allocator, begin, own, out, why, log), nil
}

// chooseMode selects IPVS or the userspace proxy from the findings of ipvs.Check, and returns the
// reason. If the configuration requires IPVS and something is missing, it returns an error that
// names it and the fix.
func chooseMode(mode, role string, findings []ipvs.Finding) (useIPVS bool, why string, err error) {
	missing := ipvs.Err(findings)
	switch {
	case missing == nil && mode == configs.ModeIPVS:
		return true, "the configuration asks for it", nil
	case missing == nil:
		return true, "the kernel and this process's rights allow it", nil
	case mode == configs.ModeIPVS:
		return false, "", fmt.Errorf("dataplane.mode = %q can't work here\n%w\nhint: fix this, or set dataplane.mode to \"auto\" or \"proxy\"; `ironvip doctor` shows everything", configs.ModeIPVS, withHints(missing))
	case role == configs.RoleRealServer:
		return false, "", fmt.Errorf("dataplane.role = %q needs the ipvs dataplane, which can't work here\n%w\nhint: fix this; `ironvip doctor` shows everything", configs.RoleRealServer, withHints(missing))
	}
	return false, firstLine(missing), nil
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
	return &plane{Plane: target, Closer: closers{target, paths}, paths: paths,
		about: api.Dataplane{Mode: "ipvs", Reason: why}, findings: func() []v1.Finding { return notOK(target.Findings()) },
		metrics: []metric.Collector{collectIPVS(target)}, drain: func(context.Context) {},
		remove: func(ctx context.Context) error { return errors.Join(paths.Remove(ctx), target.Remove(ctx)) },
		open:   func() func() []takeover.Count { return func() []takeover.Count { return nil } }, end: func(takeover.Backend) {}, // the kernel has all connections
		relay: func(takeover.Count) {}, relayEnded: func() {}}, nil
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

func newProxy(cfg *configs.Config, allocator *ipam.Allocator, begin inheritance, own func(netip.Addr) bool, out outlierReports, why string, log *slog.Logger) *plane {
	o := proxy.Options{Device: cfg.Dataplane.Device, Owns: allocator.Owns, Own: own, Sockets: begin.sockets, Passive: out.rows, Events: out.events, Log: log}
	if p := begin.predecessor; p != nil {
		o.EndRelayed = func(frontend vip.FrontendKey, addr netip.AddrPort) {
			p.end(takeover.Backend{Frontend: frontend, Addr: addr})
		}
	}
	target := proxy.New(o)
	return &plane{Plane: target, Closer: target,
		about: api.Dataplane{Mode: "proxy", Reason: why}, findings: func() []v1.Finding { return []v1.Finding{} },
		checks: func() []v1.Check { return proxyChecks(target) }, drain: target.Drain, lastTurn: target.LastTurn,
		open:       func() func() []takeover.Count { return openConnections(target) },
		end:        func(b takeover.Backend) { target.Abort(b.Frontend, b.Addr) },
		relay:      func(c takeover.Count) { target.Relayed(c.Frontend, c.Addr, int(c.N)) },
		relayEnded: target.RelayedEnded}
}

// openConnections returns a function that counts the connections of the proxy. A call costs
// O(frontends), and after the drain has begun, O(frontends that still have connections).
func openConnections(target *proxy.Target) func() []takeover.Count {
	var busy []vip.FrontendKey
	final := false
	return func() (out []takeover.Count) {
		if !final {
			busy, final = target.Busy()
		}
		busy = slices.DeleteFunc(busy, func(key vip.FrontendKey) bool {
			all, _ := target.Connections(context.Background(), key) // never fails
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

// ipvsMetrics are the dataplane's requests to the kernel.
var ipvsMetrics = metric.NewGroup("IPVS", "ipvs_")

var (
	familyServiceWrites  = ipvsMetrics.Counter("service_writes_total", "IPVS messages sent that change something.")
	familyDumps          = ipvsMetrics.Counter("dumps_total", "IPVS queries sent.")
	familyNFTWrites      = ipvsMetrics.Counter("nftables_writes_total", "nftables messages sent.")
	familyAddressWrites  = ipvsMetrics.Counter("address_writes_total", "Virtual addresses added or deleted.")
	familyConntrackFlows = ipvsMetrics.Counter("conntrack_deletions_total", "Connection tracking entries deleted.")
)

// collectIPVS returns the collector of the dataplane's requests to the kernel.
func collectIPVS(t *ipvs.Target) metric.Collector {
	return func(w *metric.Writer) {
		s := t.Stats()
		w.Add(familyServiceWrites, float64(s.WritesSent))
		w.Add(familyDumps, float64(s.DumpsSent))
		w.Add(familyNFTWrites, float64(s.NFTMessages))
		w.Add(familyAddressWrites, float64(s.AddressWrites))
		w.Add(familyConntrackFlows, float64(s.ConntrackFlows))
	}
}
