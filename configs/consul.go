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

// DefaultConsulPrefix is the default of Consul.Prefix.
const DefaultConsulPrefix = "ironvip"

const maxConsulPrefix = 128

var prefixes = regexp.MustCompile(`^[a-zA-Z0-9._-]+(/[a-zA-Z0-9._-]+)*$`)

func (c *Config) checkConsul(doc *tomlfile.Checker) {
	s, i, key := &c.Consul, &c.IPAM, "consul.address"
	switch {
	case i.ConsulAddress == "":
	case s.Address != "" && s.Address != i.ConsulAddress:
		doc.Bad("ipam.consul_address", "keep consul.address alone", "is short for consul.address, which is %s at %s", strict.Quote(s.Address), doc.Place("consul.address"))
	case i.Store != StoreConsul:
		doc.Bad("ipam.consul_address", `set ipam.store to "consul", or write consul.address`, "is for the consul store, and ipam.store is %q", i.Store)
	default:
		key, s.Address, i.ConsulAddress = "ipam.consul_address", i.ConsulAddress, ""
	}
	s.Address = cmp.Or(s.Address, consulclient.DefaultAddress)
	consulclient.CheckAddress(doc, key, s.Address)
	s.Check(doc.In("consul"))
	if !prefixes.MatchString(s.Prefix) || len(s.Prefix) > maxConsulPrefix {
		doc.Bad("consul.prefix", fmt.Sprintf("use %q", DefaultConsulPrefix), `%s is not a prefix: up to %d of a-z A-Z 0-9 . _ -, in parts with a single "/" between`, strict.Quote(s.Prefix), maxConsulPrefix)
	}
}
