package sources

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Config is the settings of one source: the keys of its [[source]] block other than type and
// name, by their toml tags. It makes the source.
type Config interface {
	// Check reports what is wrong, makes paths absolute and fills in what the block leaves out.
	Check(*Block)
	// NewSource makes the source of a checked Config.
	NewSource(Deps) (Source, error)
}

// Loader is a Config whose source reads files. `ironvip config validate` and `ironvip config plan`
// read the services of the files with it, without running the source.
type Loader interface {
	// Load returns the valid services of the source with this name, each name once, and everything
	// that is wrong.
	Load(source string, pools []spec.Pool) ([]vip.Service, []vip.Problem)
}

// FileNamer is a Config that names files. They are checked by `ironvip config validate`, and not
// when the configuration is loaded.
type FileNamer interface{ Files() []tomlfile.NamedFile }

// Reloader is a Source that a reload of the agent makes read everything again.
type Reloader interface {
	// Reload returns everything that is wrong, once the result is published.
	Reload(context.Context) []vip.Problem
}

// Deps are what the agent gives to a source.
type Deps struct {
	Name    string // of the source, unique
	Node    string // this host's name
	Version string // of this binary
	DB      *store.DB
	// Pools returns the pools to check services against.
	Pools func() []spec.Pool
	// SetPodCIDRs replaces the ranges of the source that no pool may give out.
	SetPodCIDRs func([]netip.Prefix)
	Services    table.Reader[vip.ServiceKey, vip.Service] // of all sources
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	// Withdrawn waits until this host serves nothing for a service that the source has removed.
	Withdrawn func(ctx context.Context, key vip.ServiceKey) error
	// Cache wraps a source that follows a server: it keeps the last services on disk, for a start
	// while the server is down.
	Cache func(Source) Source
	// Background runs a part of the source for as long as the agent; what names it in errors.
	Background func(what string, run func(context.Context) error)
	Events     *event.Log
	Log        *slog.Logger
}

// Block is the [[source]] block of a Config that is being checked.
type Block struct {
	*tomlfile.Checker
	Pools  []string            // the names of the [[pool]] blocks
	Consul consulclient.Config // [consul], for a source that names no server of its own
}

// MaxShrinkGuard is the longest shrink_guard.
const MaxShrinkGuard = 24 * time.Hour

// Follower checks the keys of every source that follows a server: pool and shrink_guard.
func (b *Block) Follower(pool string, guard spec.Duration) {
	if pool != "" && !slices.Contains(b.Pools, pool) {
		b.Bad("pool", "name one of the [[pool]] blocks, or leave it out", "there is no pool %s", strict.Quote(pool))
	}
	b.Between("shrink_guard", guard, 0, MaxShrinkGuard, `use "0s" (not at all) to "24h"`)
}
