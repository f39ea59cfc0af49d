package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// followSignals reloads at each SIGHUP.
func (a *agent) followSignals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reloads:
			a.reload(ctx)
		}
	}
}

// reload reads ironvip.toml and every services directory again. An invalid ironvip.toml changes
// nothing. In the services directories, everything valid takes effect, and what is invalid keeps
// its last good state. The problems are everything that was rejected.
func (a *agent) reload(ctx context.Context) (v1.ReloadResult, []vip.Problem) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	a.systemd.reloading()
	defer func() {
		select {
		case <-a.pipeline.Loop.Synced():
			a.systemd.ready(a.summary())
		default: // not ready yet: the first full reconcile reports it
		}
	}()

	old := a.config.get()
	cfg, problems := configs.Load(a.path)
	if cfg == nil {
		return a.refuseReload(problems)
	}
	cfg.Node.StateDir = old.Node.StateDir // a flag may have set it; a change waits for a restart anyway
	cfg.Dataplane.ProxySocket = cmp.Or(cfg.Dataplane.ProxySocket, old.Dataplane.ProxySocket)
	live, restart := a.config.diff(cfg, a.planes.Mode())
	if len(live) > 0 {
		if problems := a.allocator.Configure(cfg.IPAMConfig()); len(problems) > 0 {
			return a.refuseReload(problems)
		}
		setLevel(a.level, cfg)
	}
	a.config.set(cfg, nil)
	if slices.ContainsFunc(live, isScope) {
		a.pipeline.Resolve.SetScope(cfg.Dataplane.Serves)
	}
	a.access.reload(cfg)
	a.announcing.Reload()
	a.naming.Reload()
	a.hooks.Reload(cfg.Hooks)
	for _, name := range slices.Sorted(maps.Keys(a.reloaders)) {
		problems = append(problems, a.reloaders[name].Reload(ctx)...)
	}
	if err := cfg.SaveLastGood(); err != nil {
		a.log.Error("save the last good configuration", "err", err)
	}
	a.refused(problems)

	out := v1.ReloadResult{Revision: a.tables.Services.Revision(), Message: "services read again; no changes of ironvip.toml take effect now", Warnings: []v1.Problem{}}
	if len(live) > 0 {
		out.Message = "services read again; took over " + strings.Join(live, ", ")
	}
	for _, key := range restart {
		hint := "run `systemctl restart ironvip`; traffic continues meanwhile"
		switch {
		case isMove(a.config.startedWith(), cfg, key):
			hint = "move what the store keeps, with the agent stopped: ironvip snapshot save, before the change, and ironvip snapshot restore"
		case key == modeKey:
			hint = "run `ironvip dataplane switch " + cfg.Dataplane.Mode + "`, or `systemctl restart ironvip`"
		}
		out.Warnings = append(out.Warnings, v1.Problem{Field: key, Message: "changed; takes effect at the next restart", Hint: hint})
	}
	a.log.Info("reloaded", "live", live, "wait_for_restart", restart, "problems", len(problems))
	a.events.Add(event.Event{Kind: "config_reloaded", Message: out.Message})
	return out, problems
}

// refuseReload keeps the configuration in effect.
func (a *agent) refuseReload(problems []vip.Problem) (v1.ReloadResult, []vip.Problem) {
	a.config.set(nil, problems)
	a.refused(problems)
	return v1.ReloadResult{}, problems
}

// refused reports what a reload rejected.
func (a *agent) refused(problems []vip.Problem) {
	for _, p := range problems {
		a.logProblem("reload", p)
	}
	if len(problems) > 0 {
		a.events.Add(event.Event{Kind: "config_refused", Message: problems[0].Error()})
	}
}

// validate checks the configuration on disk for the dataplane in use.
func (a *agent) validate(ctx context.Context) (problems, warnings []vip.Problem) {
	v := status.Validate(ctx, a.path, a.planes.Mode())
	return v.Problems, v.Warnings
}
