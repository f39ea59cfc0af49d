package health

import "github.com/ironvip/ironvip/health/share"

// Config is [health] in ironvip.toml.
type Config struct {
	Default string `toml:"default" values:"tcp|none"` // the check of services without one
	Exec    bool   `toml:"exec"`                      // exec checks are allowed
	// Probers is how many hosts of a fleet probe a backend.
	Probers share.Probers `toml:"probers"`
}

// DefaultTCP is the value of Config.Default with which services without a check have one of type tcp.
const DefaultTCP = "tcp"

// NewConfig returns the settings of an empty [health].
func NewConfig() Config {
	return Config{Default: DefaultTCP, Probers: share.ProbersAuto}
}
