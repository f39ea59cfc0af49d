package planes

import (
	"fmt"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// accelerator balances programs of this host at connect(), beside the dataplane. It has a loop of its own, so that neither
// waits for the other.
type accelerator struct {
	*connect.Plane // nil: it isn't used
	loop           *reconcile.Reconciler[vip.FrontendKey, vip.Frontend]
	served         func() map[bool]int // the number of frontends that are balanced here, and of those left to the dataplane
	why            string              // it isn't used although the configuration asks for it; "" if it is off
}

// accelerate balances at connect() if the configuration asks for it. It goes on with what an earlier agent has left with
// systemd, or makes systemd forget that.
func (p *Planes) accelerate() error {
	cfg := p.o.Started
	inherited := p.o.Sockets.InheritedBPF()
	if len(inherited) > 0 {
		p.o.ForgetBPF()
	}
	x := &p.connect
	cgroup, err := connect.Cgroup()
	switch {
	case cfg.Dataplane.Connect == configs.ConnectOff || cfg.Dataplane.Role == configs.RoleRealServer || p.o.Demo:
		for _, f := range inherited {
			f.Close()
		}
		return nil
	case err == nil:
		x.Plane, err = connect.Open(connect.Options{Cgroup: cgroup, Files: inherited, Host: cfg.Node.Name,
			AllNamespaces: cfg.Dataplane.ConnectNamespaces == configs.ConnectAll})
	}
	if err != nil {
		x.why = err.Error()
		if hint := bpf.Hint(err); hint != "" {
			x.why += " (" + hint + ")"
		}
		if cfg.Dataplane.Connect == configs.ConnectOn {
			return fmt.Errorf("dataplane.connect = %q can't work here: %s\nhint: fix this, or set dataplane.connect to %q", configs.ConnectOn, x.why, configs.ConnectAuto)
		}
		p.o.Log.Warn("programs of this host are not balanced at connect()", "reason", x.why)
		return nil
	}
	files, err := x.Files()
	if err != nil {
		return err
	}
	p.o.Sockets.AddBPF(files)
	x.served = table.Counts(p.o.Tables.Frontends, func(f *vip.Frontend) bool { return connect.Left(f) == "" })
	x.loop = reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{
		Desired: p.o.Tables.Frontends, Target: x.Plane, Applied: table.New(p.o.Tables.Clock, reconcile.KeyOfApplied, nil), Resync: time.Duration(cfg.Dataplane.ResyncInterval),
		Service: func(f *vip.Frontend) string { return f.Service.String() }, Events: p.o.Events, Log: p.o.Log,
	})
	return nil
}

// String describes it for `ironvip dataplane show`; "" if it is off.
func (x *accelerator) String() string {
	if x.Plane == nil && x.why == "" {
		return ""
	} else if x.Plane == nil {
		return "not at connect(): " + x.why
	}
	s := x.loop.Stats()
	out := fmt.Sprintf("at connect(): %d of %s for programs of this host", x.served()[true], text.Plural(s.Wanted, "frontend"))
	for _, failed := range []string{s.TargetError, s.CleanError} {
		if failed != "" {
			out += ", " + failed
		}
	}
	return out
}

// left returns what says why a frontend isn't balanced; nil if none is.
func (x *accelerator) left() func(*vip.Frontend) string {
	if x.Plane == nil {
		return nil
	}
	return connect.Left
}

var (
	connectMetrics        = metric.NewGroup("Balancing at connect()", "connect_")
	familyConnectServed   = connectMetrics.Gauge("frontends", "Frontends balanced at connect() for programs of this host.")
	familyConnectFailing  = connectMetrics.Gauge("frontends_failing", "Frontends that can't be programmed; the dataplane serves them.")
	familyConnectWrites   = connectMetrics.Counter("writes_total", "Updates of frontends.")
	familyConnectRepaired = connectMetrics.Counter("repairs_total", "Repairs of frontends that another program changed.")
)

func (x *accelerator) collect(w *metric.Writer) {
	s := x.loop.Stats()
	w.Add(familyConnectServed, float64(x.served()[true]))
	w.Add(familyConnectFailing, float64(s.Failing))
	w.Add(familyConnectWrites, float64(s.Writes))
	w.Add(familyConnectRepaired, float64(s.DriftRepairs))
}
