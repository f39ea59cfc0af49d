package sources

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Config holds the settings of one source: the keys of its [[source]] block except type and name,
// by their toml tags. It constructs the source.
type Config interface {
	// Check reports errors in the settings, makes paths absolute and fills in defaults.
	Check(*Block)
	// NewSource returns the source of a checked Config.
	NewSource(Deps) (Source, error)
}

// Loader is a Config of a source that reads files. `ironvip config validate` and `ironvip config
// plan` use it to read the services of the files without running the source.
type Loader interface {
	// Load returns the valid services of the source with this name, without duplicates, and all
	// problems.
	Load(source string, pools []spec.Pool) ([]vip.Service, []vip.Problem)
}

// FileNamer is a Config that names files. `ironvip config validate` checks the files. Loading the
// configuration does not.
type FileNamer interface{ Files() []tomlfile.NamedFile }

// Reloader is a Source that reads everything again when the agent reloads.
type Reloader interface {
	// Reload returns all problems after the result is published.
	Reload(context.Context) []vip.Problem
}

// Deps are the dependencies that the agent passes to a source.
type Deps struct {
	Name    string // name of the source, unique
	Node    string // this host's name
	Version string // of this binary
	// Pools returns the pools to check services against.
	Pools func() []spec.Pool
	// SetPodCIDRs replaces the source's pod ranges. No address in them is allocated from a pool.
	SetPodCIDRs func([]netip.Prefix)
	Services    table.Reader[vip.ServiceKey, vip.Service] // of all sources
	Allocations table.Reader[vip.ServiceKey, vip.Allocation]
	// Withdrawn waits until this host serves nothing for a service that the source has removed.
	Withdrawn func(ctx context.Context, key vip.ServiceKey) error
	// Cache wraps a source. The wrapper keeps the source's last services on disk, for a start while the
	// source can't be read.
	Cache func(Source) Source
	// Prior returns the services that the Cache kept in the last run of the agent. Call it before the source publishes
	// its full list.
	Prior func() []vip.Service
	// Background runs a part of the source until the agent stops, and again after a failure. The log
	// names it by what.
	Background func(what string, run func(context.Context) error)
	Events     *event.Log
	Log        *slog.Logger
}

// Block is the [[source]] block of a Config during its check.
type Block struct {
	*tomlfile.Checker
	Pools  []string            // the names of the [[pool]] blocks
	Consul consulclient.Config // [consul], for a source without its own server
}

// CheckPool checks the pool of services that name none.
func (b *Block) CheckPool(pool string) {
	if pool != "" && !slices.Contains(b.Pools, pool) {
		b.Bad("pool", "name one of the [[pool]] blocks, or leave it out", "there is no pool %s", strict.Quote(pool))
	}
}

// Duplicate returns the problem of a service at place with the same name as the service at winner.
func Duplicate(key vip.ServiceKey, place, winner string) vip.Problem {
	return vip.Problem{Code: vip.CodeNameTaken, Place: place, Service: key.String(), Field: "name",
		Message: fmt.Sprintf("%q is the name of the service at %s, too", key, winner), Hint: "rename or remove one of the two"}
}
