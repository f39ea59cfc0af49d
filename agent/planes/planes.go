// Package planes has the dataplanes of this host: the one that serves, and those that leave because another
// one serves.
//
// Its inputs are the configuration, the tables of the pipeline and requests for a switch. It chooses a
// dataplane at the start, and opens it. A switch opens another one, which takes the frontends over through
// the pipeline; the one before takes no new connections, and is removed with its last one or after
// hard_stop_after. So does, at the start, what an earlier run left here. Its outputs are counts of the connections
// of clients wherever they are, lines of `ironvip status`, metrics, and the records of the state file that
// a later start needs. It programs nothing itself: package plane says what a dataplane is, and plane/steer which one
// gets the frontends.
//
// Files:
//
//	planes.go    the parts, and what others ask
//	choose.go    the dataplane at the start, and the records in the state file
//	dataplane.go opening a dataplane
//	proxy.go     the userspace proxy, as a dataplane that serves or leaves
//	connect.go   balancing at connect(), beside the dataplane
//	counts.go    connections and counters of all
//	switch.go    what runs, and the switch to another dataplane
//	leave.go     the end of a dataplane that another one has replaced
//	status.go    lines of `ironvip status`
package planes

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/vip"
)

// Options are what the package needs. All are required.
type Options struct {
	Config    func() *configs.Config // in effect
	Started   *configs.Config        // at the start of the agent
	DB        *store.DB              // the state file
	Tables    pipeline.Tables
	Owns      func(netip.Addr) bool // whether an address may be ours
	Watcher   *hostnet.Watcher
	Sockets   *sockets.Set
	ForgetBPF func()          // removes the BPF objects from the service manager's store
	Settled   <-chan struct{} // closed when this agent serves all clients
	Version   string          // of this binary
	Demo      bool            // nothing may be left in the kernel
	Events    *event.Log
	Log       *slog.Logger
}

// Planes are the dataplanes of this host. Create them with New, start Run, and end them with Close.
type Planes struct {
	o       Options
	serving atomic.Pointer[dataplane]
	connect accelerator
	proxy   *process.Server // the proxy of this process; nil before it is needed

	requested atomic.Pointer[string] // the dataplane to switch to; nil: none
	requests  chan string            // the same; has room for one
	failed    atomic.Pointer[failedSwitch]

	looked  chan struct{} // closed when it is known which dataplanes have left something here
	mu      sync.RWMutex  // held for writing to close one of leaving
	leaving map[string]*leaving
}

// New chooses a dataplane, and opens it and balancing at connect(). It changes nothing in the kernel. The
// error names what is missing here.
func New(o Options) (*Planes, error) {
	p := &Planes{o: o, requests: make(chan string, 1), looked: make(chan struct{}), leaving: map[string]*leaving{}}
	last, err := p.last()
	if err != nil {
		return nil, err
	}
	chosen, err := Choose(o.Started, last)
	if err != nil {
		return nil, err
	}
	for _, f := range chosen.Lacks {
		o.Log.Warn("a preferred dataplane can't run here", "missing", f.Name, "detail", f.Detail, "fix", f.Remedy)
	}
	first, err := p.open(chosen.Mode, chosen.Why)
	if err != nil {
		return nil, errors.Join(err, p.closeProxy())
	}
	p.serving.Store(first)
	if err := p.accelerate(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close closes everything that is open. The kernel goes on.
func (p *Planes) Close() error {
	err := errors.Join(p.plane().Close(), p.closeProxy())
	if p.connect.Plane != nil {
		p.connect.Close()
	}
	return err
}

func (p *Planes) closeProxy() error {
	if p.proxy == nil {
		return nil
	}
	return p.proxy.Close()
}

// stopGrace is the time for the connections of a proxy in this process when the agent stops. New clients are refused
// meanwhile, so it is short.
const stopGrace = 500 * time.Millisecond

// Drain lets the open connections of a proxy in this process go on for a moment.
func (p *Planes) Drain(ctx context.Context) {
	if p.proxy != nil {
		ctx, cancel := context.WithTimeout(ctx, stopGrace)
		defer cancel()
		p.proxy.Drain(ctx)
	}
}

// Remove removes all of ours from the kernel, at the end of a demo. Nothing else of the proxy outlives the process.
func (p *Planes) Remove(ctx context.Context) error {
	d := p.plane()
	err := d.vips.Remove()
	if d.Leaver != nil {
		err = errors.Join(err, d.Leaver.Remove(ctx))
	}
	return err
}

// plane returns the dataplane that serves.
func (p *Planes) plane() *dataplane { return p.serving.Load() }

// Serving returns the dataplane that serves.
func (p *Planes) Serving() reconcile.Plane { return p.plane() }

// Mode returns the dataplane that serves by its name.
func (p *Planes) Mode() string { return p.plane().about.Mode }

// Reason returns why that dataplane serves.
func (p *Planes) Reason() string { return p.plane().about.Reason }

// Dataplane returns the dataplane for the API.
func (p *Planes) Dataplane() forwarding.Dataplane {
	about := p.plane().now()
	about.Switching = p.switching()
	if how := p.connect.String(); how != "" {
		about.Reason += "; " + how
	}
	for _, x := range p.shown() {
		about.Leaving = append(about.Leaving, x.view())
	}
	return about
}

// Together returns the order of the frontends in the first pass of the dataplane that serves at the start, see reconcile.Options.
func (p *Planes) Together() func(a, b vip.FrontendKey) int {
	for _, mode := range otherModes(p.Mode()) {
		if f := together(mode); f != nil && p.ranBefore(mode) {
			return f
		}
	}
	return nil
}

// Left returns the function that says why programs of this host are not balanced at connect() to a frontend; nil: none are.
func (p *Planes) Left() func(*vip.Frontend) string { return p.connect.left() }

// Forwards reports whether the dataplane forwards while this process doesn't run.
func (p *Planes) Forwards() bool {
	return !p.plane().kind().Userspace || p.o.Started.Dataplane.ProxySocket != ""
}

// LastTurn returns when the loop of the proxy of this process that is furthest behind has last made a turn;
// zero before the first, and while another dataplane serves.
func (p *Planes) LastTurn() time.Time {
	if p.plane().proxy == nil || p.proxy == nil {
		return time.Time{}
	}
	return p.proxy.LastTurn()
}

// UsesDevice returns a channel that is closed once the dataplane that serves uses its device.
func (p *Planes) UsesDevice() <-chan struct{} { return p.plane().vips.UsesDevice() }

// Report returns what the proxy reports; an empty report while another dataplane serves.
func (p *Planes) Report() *balance.Report {
	if c := p.plane().proxy; c != nil {
		r := c.Report()
		return &r.Report
	}
	return new(balance.Report)
}

// Mark returns the packet mark of a path of probes, or why it has none.
func (p *Planes) Mark(path vip.ProbePath) (uint32, error) {
	paths := p.plane().Paths
	if paths == nil {
		return 0, probe.ErrNoPaths
	}
	mark, err := paths.Mark(path)
	if applied, _, ok := p.o.Tables.AppliedPaths.Get(path); err != nil && ok && applied.Problem != nil {
		err = *applied.Problem
	}
	return mark, err
}

// Metrics returns the metrics of this package and of the dataplanes.
func Metrics() []*metric.Group {
	groups := []*metric.Group{vipMetrics}
	for _, k := range configs.Dataplanes {
		if k.Metrics != nil {
			groups = append(groups, k.Metrics)
		}
	}
	return append(groups, pathMetrics, connectMetrics)
}

// Collect collects the metrics of the dataplane that serves, and of balancing at connect().
func (p *Planes) Collect(w *metric.Writer) {
	for _, c := range p.plane().Metrics {
		c(w)
	}
	if p.connect.Plane != nil {
		p.connect.collect(w)
	}
}

// otherModes returns the other dataplanes.
func otherModes(mode string) []string {
	return slices.DeleteFunc(configs.Modes(), func(m string) bool { return m == mode })
}
