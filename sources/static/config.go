package static

import (
	"errors"
	"io/fs"
	"os"

	"github.com/ironvip/ironvip/internal/store"
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

// Load implements sources.Loader. An optional directory that is missing has no services.
func (c *Config) Load(source string, pools []spec.Pool) ([]vip.Service, []vip.Problem) {
	if c.Path == "" {
		return nil, nil // Check has reported it
	}
	if _, err := os.Lstat(c.Path); c.Optional && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return LoadServices(c.Path, source, pools)
}

// NewSource implements sources.Config.
func (c *Config) NewSource(d sources.Deps) (sources.Source, error) {
	return New(Options{Config: *c, Name: d.Name, Pools: d.Pools, Store: store.NewBucket[LastGood](d.DB, "static"), Events: d.Events, Log: d.Log}), nil
}
