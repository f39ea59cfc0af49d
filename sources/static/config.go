package static

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Type is the type of a static source in configuration and status.
const Type = "static"

// Config is a [[source]] of type static.
type Config struct {
	Path string `toml:"path"` // absolute path of the directory
	// Optional means that no [[source]] block names this directory. It is services.d beside
	// ironvip.toml, and may be missing.
	Optional bool `toml:"-"`
}

// Check implements sources.Config.
func (c *Config) Check(b *sources.Block) {
	if c.Path == "" {
		b.Bad("path", `add path = "/etc/ironvip/services.d"`, "a static source needs the directory of its files")
		return
	}
	c.Path = b.AbsolutePath(c.Path)
	b.Absolute("path", c.Path)
	if by, taken := b.Claim("static " + c.Path); taken {
		b.Bad("path", "remove one of the two sources", "%s is read by the source at %s, too", c.Path, by)
	}
}

// Load implements sources.Loader. An optional directory that is missing has no services. If two
// services have one name, the first file's wins.
func (c *Config) Load(source string, pools []spec.Pool) ([]vip.Service, []vip.Problem) {
	if c.Path == "" {
		return nil, nil // Check has reported it
	}
	if _, err := os.Lstat(c.Path); c.Optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	f := newFiles(Options{Config: *c, Name: source, Pools: func() []spec.Pool { return pools }})
	if _, err := f.read(context.Background(), readAll, nil); err != nil {
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Place: c.Path, Message: err.Error(), Hint: "make the directory, or correct the source's path"}}
	}
	services := f.services(f.all())
	slices.SortFunc(services, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
	return services, f.problems()
}

// NewSource implements sources.Config.
func (c *Config) NewSource(d sources.Deps) (sources.Source, error) {
	return d.Cache(New(Options{Config: *c, Name: d.Name, Pools: d.Pools, Prior: d.Prior, Events: d.Events, Log: d.Log})), nil
}
