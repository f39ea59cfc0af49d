package planes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/api/forwarding"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/vips"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// dataplane is an open dataplane and the reason for its selection.
type dataplane struct {
	plane.Opened                      // its Plane is vips
	vips         *vips.Plane          // around the dataplane
	about        forwarding.Dataplane // without Findings, see now
	proxy        *remote.Client       // nil: it is not the proxy

	halt     context.CancelFunc                                  // ends its connection to the proxy, and pathLoop
	pathLoop *reconcile.Reconciler[vip.ProbePath, vip.ProbePath] // nil: without Paths
}

func (d *dataplane) kind() *plane.Kind { return configs.DataplaneOf(d.about.Mode) }

// now returns the present description of the dataplane, because findings appear and disappear.
func (d *dataplane) now() forwarding.Dataplane {
	about := d.about
	about.Findings = []v1.Finding{}
	if d.Findings != nil {
		about.Findings = notOK(d.Findings())
	}
	if d.proxy != nil {
		if how := d.proxy.Entrance(); how != "" {
			about.Reason += "; " + how
		}
	}
	return about
}

// Close closes what the dataplane has opened. The kernel goes on.
func (d *dataplane) Close() error {
	err := d.vips.Close()
	if d.Leaver != nil {
		err = errors.Join(err, d.Leaver.Close())
	}
	return err
}

// open opens a dataplane. Why is the reason for it. The userspace one has no Open: without
// dataplane.proxy_socket, it runs in this process.
func (p *Planes) open(mode, why string) (*dataplane, error) {
	cfg := p.o.Started
	d := &dataplane{about: forwarding.Dataplane{Mode: mode, Reason: why}}
	o := vips.Options{Device: cfg.Dataplane.Device, Log: p.o.Log}
	if d.kind().Open == nil {
		d.proxy = p.proxyClient(p.o.Tables.Passive)
		d.Plane, o.Sockets, o.Moved = d.proxy, true, p.o.Watcher.Changed()
	} else {
		h := p.host()
		h.Owns = p.o.Owns
		var err error
		if d.Opened, err = d.kind().Open(h); err != nil {
			return nil, fmt.Errorf("start the %s dataplane: %w", mode, err)
		}
	}
	if d.Paths != nil {
		d.pathLoop = reconcile.New(reconcile.Options[vip.ProbePath, vip.ProbePath]{
			Desired: p.o.Tables.ProbePaths, Target: d.Paths, Applied: p.o.Tables.AppliedPaths, Resync: time.Duration(cfg.Dataplane.ResyncInterval),
			Events: p.o.Events, Log: p.o.Log,
		})
		d.Metrics = append(d.Metrics, collectPaths(d.pathLoop.Stats))
	}
	o.Plane = d.Plane
	with, err := vips.New(o)
	if err != nil {
		err = fmt.Errorf("start the %s dataplane: %w", mode, err)
		if d.Leaver != nil {
			err = errors.Join(err, d.Leaver.Close())
		}
		return nil, err
	}
	d.Plane, d.vips = with, with
	d.Metrics = append(d.Metrics, func(w *metric.Writer) { w.Add(familyAddressWrites, float64(with.Writes())) })
	return d, nil
}

// host returns what a dataplane gets of this agent, without the addresses that may be ours.
func (p *Planes) host() plane.Host {
	cfg := p.o.Started
	return plane.Host{Device: cfg.Dataplane.Device, PodCIDRs: func() []netip.Prefix { return p.o.Config().IPAM.PodCIDRs }, RealServer: cfg.Dataplane.Role == configs.RoleRealServer, Log: p.o.Log}
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

// The metrics of addresses.
var (
	vipMetrics          = metric.NewGroup("Virtual addresses", "dataplane_")
	familyAddressWrites = vipMetrics.Counter("address_writes_total", "Added or deleted virtual addresses.")
)
