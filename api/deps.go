package api

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/api/addresses"
	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/api/nodes"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/services"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// Deps contains everything that the handlers read and call. Nothing may be nil unless it says so.
type Deps struct {
	server.Options // without ClientConnections, Pages and Gate
	Started        time.Time
	Tokens         *tokens.Tokens // of callers

	Tables    status.Tables // without Revisions
	Sources   table.Reader[string, sources.Status]
	Conflicts table.Reader[pipeline.ConflictKey, pipeline.Conflict]
	// Begun is closed once the stored state is in the tables. Before that, only requests that don't
	// need this state are answered. The others are refused; the message contains the result of
	// Awaits.
	Begun  <-chan struct{}
	Awaits func() string
	Ready  <-chan struct{} // closed after the first full reconcile
	Events *event.Log
	// Resync makes a source read everything again. With an error that is fleet.ErrUnavailable, the
	// caller may retry.
	Resync func(ctx context.Context, source string) error
	// Probes returns the counters of the health probes; nil: this host runs none.
	Probes func() probe.Stats
	// BackendMetrics returns the patterns, as of path.Match, of the services (NAMESPACE/NAME) whose single backends
	// have time series.
	BackendMetrics func() []string
	Config         Config
	Nodes          nodes.Deps
	Services       services.Deps
	Addresses      addresses.Deps
	Forwarding     forwarding.Deps
	// Snapshot returns the whole store as one document.
	Snapshot func(context.Context) (snapshot.Document, error)
	// DebugTables are the tables that the debug endpoints show.
	DebugTables []status.DebugTable
	// Checks returns additional lines of `ironvip status`.
	Checks func() []v1.Check

	Metrics []metric.Collector // metrics of other packages
}

// Config is the agent's configuration as the API sees it.
type Config struct {
	Check    func() v1.Check                                          // the config line of `ironvip status`
	Validate func(context.Context) (problems, warnings []vip.Problem) // of the files on disk
	// Plan returns what would change if the files on disk were loaded.
	Plan   func(context.Context) (v1.Plan, []vip.Problem)
	Reload func(context.Context) (v1.ReloadResult, []vip.Problem) // with problems, nothing has changed
	Loaded func() (ok bool, at time.Time)                         // result and time of the last reload
}
