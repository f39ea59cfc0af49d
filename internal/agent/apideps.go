package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/ironvip/ironvip/api"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// apiDeps is what the API reads and calls.
func (a *agent) apiDeps() api.Deps {
	statistics, _ := a.plane.Plane.(reconcile.Statistics)
	return api.Deps{
		Node: a.config.get().Node.Name, Version: a.version, Started: a.started,
		Registrar: a.rest, SetState: a.overrides.Set,
		Services: a.tables.Services, Sources: a.statuses, Conflicts: a.pipeline.Resolve.Conflicts(), Overrides: a.tables.Overrides, Leases: a.allocator.Leases(),
		Allocations: a.tables.Allocations, Compiled: a.tables.Compiled, Frontends: a.tables.Frontends, Applied: a.tables.Applied,
		Begun: a.began, Awaits: a.awaits, Ready: a.pipeline.Reconciler.Synced(), Overridden: a.pipeline.Compile.WaitOverridden, DrainsKept: a.pipeline.Compile.WaitKept,
		Events:    a.events,
		Pools:     a.allocator.Pools,
		Resync:    a.resync,
		Stats:     a.pipeline.Reconciler.Stats,
		Dataplane: a.plane.now,
		Diff:      a.pipeline.Reconciler.Diff,
		Repair:    a.pipeline.Reconciler.Repair,
		Preview:   a.allocator.Preview,
		Config: api.Config{
			Check: a.configCheck, Validate: a.validate, Plan: a.plan, Reload: a.reload,
			Loaded: func() (bool, time.Time) {
				problems, at, _, remembered := a.config.last()
				return len(problems) == 0 && !remembered, at
			},
		},
		Nodes:      a.nodes,
		Snapshot:   a.snapshot,
		Tables:     a.debugTables(),
		Checks:     a.checks,
		Metrics:    a.plane.metrics,
		Statistics: statistics,
		Log:        a.log,
	}
}

// greet prints how to use a running demo.
func (d *demo) greet(ctx context.Context, a *agent, out io.Writer) {
	fmt.Fprintf(out, "ironvip %s demo: three backends, two services, everything on this host's loopback\n", a.version)
	fmt.Fprintf(out, "dataplane  %s (%s)\n", a.plane.about.Mode, a.plane.about.Reason)
	fmt.Fprintf(out, "API        http://%s/v1/services\n", a.config.get().API.Listen)
	fmt.Fprintf(out, "files      %s\n\n", d.dir)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	var urls []string
	for _, f := range a.sortedFrontends() {
		host := f.Key.AddrPort().String()
		if f.Key.Port == 80 {
			host = f.Key.Addr.String()
		}
		urls = append(urls, "http://"+host+"/")
		fmt.Fprintf(w, "%s\t%s\t%s\t%d backends\n", f.Service, f.Key, f.Scheduler, len(f.Backends))
	}
	w.Flush()
	if len(urls) > 0 {
		fmt.Fprintf(out, "\nPaste this: every backend answers in turn.\n\n    for i in 1 2 3; do curl -s %s; done\n", urls[0])
	}
	self, err := os.Executable()
	if err != nil {
		self = "ironvip"
	}
	fmt.Fprintf(out, "\nAnd this, to look inside; then change %s/services.d/demo.toml and watch.\n\n    export IRONVIP_ADDR=http://%s\n    %s status\n    %s service list\n\nCtrl-C ends it and leaves nothing behind.\n",
		d.dir, a.config.get().API.Listen, self, self)
}

func (a *agent) sortedFrontends() []vip.Frontend {
	var all []vip.Frontend
	for _, f := range a.tables.Frontends.All() {
		all = append(all, f)
	}
	slices.SortFunc(all, func(x, y vip.Frontend) int {
		if x.Service.Name != y.Service.Name {
			return len(x.Service.Name) - len(y.Service.Name)
		}
		return vip.CompareFrontendKeys(x.Key, y.Key)
	})
	return all
}
