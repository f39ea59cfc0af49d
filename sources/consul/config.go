package consul

import (
	"cmp"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip/spec"
)

// Type is the type of a Consul source in configuration and status.
const Type = "consul"

// DefaultTag is the default tag of our services.
const DefaultTag = "ironvip"

// Config is a [[source]] of type consul.
type Config struct {
	consulclient.Config
	// Tag selects our services: only instances with this tag are backends. "" is DefaultTag. If
	// Services is set, it selects services by their names in Consul, whatever their tags.
	Tag      string   `toml:"tag" values:"name..253"`
	Services []string `toml:"services"`
	// Pool and ServiceNamespace are defaults for services without these keys in their metadata. ""
	// is the first pool with auto_assign, and the service's namespace in Consul or
	// vip.DefaultNamespace.
	Pool             string `toml:"pool"`
	ServiceNamespace string `toml:"service_namespace"`
	// TaggedAddress selects the address of an instance: "lan", "wan", "ipv4", "ipv6", or the name
	// of a tagged address. "" is the instance's own.
	TaggedAddress string `toml:"tagged_address" values:"name..253"`
	// AllowStale lets servers other than the leader answer. Such reads reduce the leader's load and
	// work without a leader. The answers may be out of date.
	AllowStale bool `toml:"allow_stale"`
	// ShrinkGuard is how long a shrink guard holds back a large removal; 0: no guard.
	ShrinkGuard spec.Duration `toml:"shrink_guard" values:"0s..24h"`
}

// NewConfig returns the default settings.
func NewConfig() *Config { return &Config{ShrinkGuard: spec.Duration(sources.DefaultShrinkGuard)} }

// Check implements sources.Config. Without an address the source uses the server and the
// credentials of [consul]. With an address it uses nothing of [consul], so that no token is sent to
// another server.
func (c *Config) Check(b *sources.Block) {
	if c.Address == "" {
		for _, key := range []struct{ name, text string }{{"ca_file", c.CAFile}, {"cert_file", c.CertFile}, {"key_file", c.KeyFile}, {"server_name", c.ServerName}} {
			if key.text != "" {
				b.Bad(key.name, "write it in [consul], or give this source an address", "belongs to an address, and this source uses the address of [consul]")
			}
		}
		b.File("token_file", &c.TokenFile)
		server := b.Consul
		server.Datacenter = cmp.Or(c.Datacenter, server.Datacenter)
		server.Namespace = cmp.Or(c.Namespace, server.Namespace)
		server.Partition = cmp.Or(c.Partition, server.Partition)
		server.TokenFile = cmp.Or(c.TokenFile, server.TokenFile)
		c.Config = server
	} else {
		consulclient.CheckAddress(b.Checker, "address", c.Address)
		c.Config.Check(b.Checker)
	}
	if c.Tag != "" && len(c.Services) > 0 {
		b.Bad("tag", "keep one of the two", "services are listed at %s: those are used whatever their tags", b.Place("services"))
	}
	if c.ServiceNamespace != "" {
		b.Label("service_namespace", c.ServiceNamespace)
	}
	b.CheckPool(c.Pool)
	if c.Tag == "" && len(c.Services) == 0 {
		c.Tag = DefaultTag
	}
	b.List("services", c.Services, func(key, name string) {
		b.Word(key, name)
		if name == "" {
			b.Bad(key, "remove it", "is empty")
		}
	})
}

// NewSource implements sources.Config.
func (c *Config) NewSource(d sources.Deps) (sources.Source, error) {
	resolved, err := c.Config.Resolved()
	if err != nil {
		return nil, err
	}
	o := Options{Config: *c, Name: d.Name, Pools: d.Pools}
	o.Config.Config = resolved
	source, err := New(o)
	if err != nil {
		return nil, err
	}
	return d.Cache(source), nil
}
