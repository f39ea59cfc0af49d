package health

import (
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/tomlfile"
)

// Config is [health] in ironvip.toml.
type Config struct {
	Default string `toml:"default"` // the check of services without one: DefaultTCP or DefaultNone
	Exec    bool   `toml:"exec"`    // exec checks are allowed
	// Probers is how many hosts of a fleet probe a backend.
	Probers share.Probers `toml:"probers"`
}

// The values of Config.Default.
const (
	DefaultTCP  = "tcp"
	DefaultNone = "none"
)

// NewConfig returns the settings of an empty [health].
func NewConfig() Config {
	return Config{Default: DefaultTCP, Probers: share.ProbersAuto}
}

// Check validates the settings.
func (c *Config) Check(t *tomlfile.Checker) {
	t.Choice("default", c.Default, DefaultTCP, DefaultNone)
	c.Probers.Check(t, "probers")
}
