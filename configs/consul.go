package configs

import (
	"cmp"
	"fmt"
	"regexp"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Consul is [consul]: the server of the fleet's store, and of sources of type consul without an
// address.
type Consul struct {
	consulclient.Config
	Prefix string `toml:"prefix"` // of the fleet's keys in Consul KV, without "/" at its ends
}

// DefaultPrefix is the default of Consul.Prefix and Etcd.Prefix.
const DefaultPrefix = "ironvip"

const maxPrefix = 128

var prefixes = regexp.MustCompile(`^[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*$`)

func (c *Config) checkConsul(doc *tomlfile.Checker) {
	s := &c.Consul
	s.Address = cmp.Or(s.Address, consulclient.DefaultAddress)
	consulclient.CheckAddress(doc, "consul.address", s.Address)
	s.Check(doc.In("consul"))
	checkFleetPrefix(doc, "consul.prefix", s.Prefix)
}

// checkFleetPrefix checks a prefix of the fleet's keys.
func checkFleetPrefix(doc *tomlfile.Checker, key, prefix string) {
	if !prefixes.MatchString(prefix) || len(prefix) > maxPrefix {
		doc.Bad(key, fmt.Sprintf("use %q", DefaultPrefix), `%s is not a prefix: up to %d of a-z A-Z 0-9 . _ -, in parts with a single "/" between`, strict.Quote(prefix), maxPrefix)
	}
}
