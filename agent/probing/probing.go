// Package probing is the agent's part of health checks: it connects the engine that probes backends, the
// sharing of probes with the hosts of a fleet, and the stage that decides which backends take connections.
//
// Its inputs are the configuration, the tables of the pipeline and the stores. Its outputs are the health
// table and lines of `ironvip status`. It decides nothing about
// health: packages health and health/share do. A real server has none, because its directors decide.
package probing

import (
	"context"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/agent/stores"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/health"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/openfiles"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// Options are what the package needs. All are required.
type Options struct {
	Stores *stores.Stores // with the configuration
	Tables pipeline.Tables
	// Mark returns the packet mark of a path of probes, or why it has none.
	Mark   func(vip.ProbePath) (uint32, error)
	Events *event.Log
	Log    *slog.Logger
}

// Probing connects the parts. Create it with New and start Run. A nil *Probing is that of a host without
// health checks: it has only the methods that say so.
type Probing struct {
	o       Options
	stage   *health.Stage
	engine  *probe.Engine
	share   *share.Share                             // nil without a fleet
	results *table.Table[probe.Target, probe.Result] // of the engine
}

// Bounds of the probes that run at once, with enough descriptors.
const (
	maxCommands = 16  // exec
	maxRequests = 512 // http, https and grpc, with up to three goroutines each

	descriptorsOfCommand = 4
)

// New creates the parts, or nil on a real server. They do nothing until Run.
func New(o Options) *Probing {
	cfg, tables, shared := o.Stores.Config, &o.Tables, o.Stores
	if cfg.Dataplane.Role == configs.RoleRealServer {
		return nil
	}
	p := &Probing{o: o, results: probe.NewResults(tables.Clock)}
	engine := probe.Options{Results: p.results, Paths: tables.ProbePaths, Mark: o.Mark, Log: o.Log}
	free := openfiles.Divide(openfiles.Limit()).Probes
	if cfg.Health.Exec {
		engine.Commands = min(maxCommands, max(free/(4*descriptorsOfCommand), 1))
		free -= engine.Commands * descriptorsOfCommand
	}
	engine.Requests = min(maxRequests, max(free/4, 1))
	engine.Sockets = max(free-engine.Requests, 1)
	p.engine = probe.New(engine)
	stage := health.Options{
		Rules:    health.Rules{Default: cfg.Health.Default == health.DefaultTCP, Allocations: tables.Allocations},
		Services: tables.Services, Health: tables.Health, Results: p.results, Prober: p.engine, Node: cfg.Node.Name, Complete: tables.ProbePaths.Initializer(),
		Store: store.NewBucket[health.Row](shared.DB, "health"),
		Hold:  sources.DefaultShrinkGuard, Events: o.Events, Log: o.Log,
	}
	if shared.Tree != nil {
		stage.Results = probe.NewResults(tables.Clock) // the share's, beside those of the engine
		p.share = share.New(share.Options{
			Node: cfg.Node.Name, Probers: cfg.Health.Probers, Engine: p.engine, Own: p.results, Results: stage.Results,
			Members: shared.Roster.Rows(), WasThere: shared.Roster.WasThere, Verdicts: shared.Verdicts, Tree: shared.Tree, Log: o.Log,
		})
		stage.Prober = p.share
	}
	p.stage = health.New(stage)
	return p
}

// Run probes until the context ends, and returns its error.
func (p *Probing) Run(ctx context.Context) error { return p.stage.Run(ctx) }

// Stats returns the counters of the probes.
func (p *Probing) Stats() probe.Stats { return p.engine.Stats() }

// LastFailure returns when a probe of a backend last failed, and why.
func (p *Probing) LastFailure(s *vip.Service, b *vip.Backend) (vip.Instant, string) {
	return p.stage.LastFailure(s, b, p.engine.LastFailure)
}

// Checks returns the lines of `ironvip status` about probes that prove nothing, and results that other hosts contradict.
func (p *Probing) Checks() []v1.Check {
	if p == nil {
		return nil
	}
	checks := probeChecks(p.Stats(), openfiles.Limit(), time.Now())
	if p.share != nil {
		checks = append(checks, disputeChecks(p.share.Disputes())...)
	}
	return checks
}
