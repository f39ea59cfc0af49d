package api

import (
	"context"
	"iter"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Registrar performs the writes: *rest.Source.
type Registrar interface {
	PutService(context.Context, rest.Put) (rest.Result, error)
	PutServices(ctx context.Context, puts []rest.Put, atomic bool) ([]rest.Result, error)
	Propose(context.Context, []rest.Put) ([]rest.Result, error)
	DeleteService(context.Context, vip.ServiceKey, rest.Check) (rev uint64, err error)
	PutBackend(ctx context.Context, key vip.ServiceKey, b spec.Backend, ttl time.Duration, check rest.Check) (rev uint64, created bool, err error)
	DeleteBackend(context.Context, vip.BackendKey, rest.Check) (rev uint64, err error)
	Heartbeat(context.Context, vip.BackendKey) error
	HeartbeatStatuses(vip.ServiceKey) map[string]rest.HeartbeatStatus
}

// Difference is one frontend that differs between the desired state and the dataplane.
type Difference = reconcile.Difference[vip.FrontendKey, vip.Frontend]

// Deps contains everything that the handlers read and call. Nothing may be nil unless it says so.
type Deps struct {
	Node    string
	Version string
	Started time.Time
	// MaxConnections bounds the connections of each listener; see server.Options. 0: no bound.
	MaxConnections int
	// ClientRate returns the bound of one client's requests in a second; see server.Options. Nil: no bound.
	ClientRate func() int
	Hosts      []string // additional names of this host that callers may use over TCP

	// Policy returns who may do what.
	Policy func() *access.Policy
	Tokens *tokens.Tokens // of callers

	Registrar Registrar
	SetState  func(context.Context, overrides.Request) (overrides.Result, error) // overrides a backend's state
	// LocalOverrides returns the changes of overrides that are stored on this host only.
	LocalOverrides func() []vip.BackendState
	Clock          *table.Clock // of the tables
	Services       table.Reader[vip.ServiceKey, vip.Service]
	Sources        table.Reader[string, sources.Status]
	Refused        table.Reader[sources.RefusedKey, sources.Refused]
	Conflicts      table.Reader[pipeline.ConflictKey, pipeline.Conflict]
	Overrides      table.Reader[vip.BackendKey, vip.BackendState]
	Health         table.Reader[vip.BackendKey, vip.BackendHealth]
	Passive        table.Reader[vip.PassiveKey, vip.PassiveHealth]
	Leases         table.Reader[ipam.Resource, *ipam.Lease]
	Allocations    table.Reader[vip.ServiceKey, vip.Allocation]
	Compiled       table.Reader[vip.ServiceKey, pipeline.Compiled]
	Frontends      table.Reader[vip.FrontendKey, vip.Frontend]
	Applied        table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
	Naming         Naming // the DNS names of services
	// Begun is closed once the stored state is in the tables. Before that, only requests that don't
	// need this state are answered. The others are refused; the message contains the result of
	// Awaits.
	Begun  <-chan struct{}
	Awaits func() string
	Ready  <-chan struct{} // closed after the first full reconcile
	// Overridden waits until the overrides up to a revision are compiled.
	Overridden func(ctx context.Context, rev uint64) error
	// DrainsKept waits until the current drains would survive a kill.
	DrainsKept func(context.Context) error

	Events       *event.Log
	Pools        func() []ipam.PoolStatus
	Reservations Reservations
	// Resync makes a source read everything again. With an error that is fleet.ErrUnavailable, the
	// caller may retry.
	Resync    func(ctx context.Context, source string) error
	Stats     func() reconcile.Stats
	Dataplane func() Dataplane
	// Left returns why programs of this host are not balanced at connect() to a frontend; nil: none are.
	Left func(*vip.Frontend) string
	// Switch moves the host to another dataplane, or returns what that does.
	Switch func(ctx context.Context, mode string, force, dryRun bool) (v1.SwitchPlan, error)
	// Probes returns the counters of the health probes; nil: this host runs none.
	Probes func() probe.Stats
	// LastFailure returns when a probe of a backend last failed, and why; nil: this host runs none.
	LastFailure func(*vip.Service, *vip.Backend) (at vip.Instant, why string)
	// BackendMetrics returns the patterns, as of path.Match, of the services (NAMESPACE/NAME) whose single backends
	// have time series.
	BackendMetrics func() []string
	Statistics     reconcile.Statistics // the dataplane's counters
	// Proxy has the clients that the userspace proxy refused, and the failed connections of backends. Its result is empty while
	// another dataplane serves, which does not see them.
	Proxy            func() *balance.Report
	Connections      reconcile.Connections                       // counts the connections of backends
	ConnectionLister reconcile.ConnectionLister                  // lists single connections
	Diff             func(context.Context) ([]Difference, error) // reads the dataplane
	Repair           func(context.Context) ([]Difference, error) // the same, and repairs the differences
	// Preview returns what the allocator would grant, and grants nothing.
	Preview func([]vip.Service) []vip.Allocation
	Config  Config
	// Nodes lists the fleet. With an error that is fleet.ErrUnavailable, the caller may retry.
	Nodes func(context.Context) (v1.NodeList, error)
	// ForgetNode removes a lost node from the list. Its errors are those of roster.Forget.
	ForgetNode func(ctx context.Context, node string) error
	// CompareChecks returns what the nodes of the fleet find of the backends of services, one service
	// after the other. A row is made when it is asked for. Its errors are those of Nodes.
	CompareChecks func(context.Context, []*vip.Service) (iter.Seq[v1.CheckComparison], error)
	Announcing    *Announcing // the announcements of VIPs
	// Snapshot returns the whole store as one document.
	Snapshot func(context.Context) (snapshot.Document, error)
	// Tables are the tables that the debug endpoints show.
	Tables []status.DebugTable
	// Checks returns additional lines of `ironvip status`.
	Checks func() []v1.Check

	Metrics []metric.Collector // metrics of other packages
	Log     *slog.Logger
}

// Reservations keeps addresses for services. Its errors are those of allocator.Allocator.
type Reservations interface {
	Reserve(context.Context, ipam.Reserving) (ipam.Lease, error)
	Unreserve(context.Context, netip.Addr) (ipam.Lease, error)
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

// Dataplane is the running dataplane and the reason for its choice.
type Dataplane struct {
	Mode     string // "ipvs", "nft", "proxy"
	Reason   string
	Findings []v1.Finding          // what the host lacks for a dataplane
	Leaving  []v1.LeavingDataplane // those that it has replaced

	Switching string // the one to which the host is being moved; "": none
}
