package dns

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Type is the type of a DNS source in configuration and status.
const Type = "dns"

// DefaultInterval is the default of the shortest time between two queries for a name.
const DefaultInterval = 10 * time.Second

// maxServices is the largest number of services of one source.
const maxServices = 1000

// Config is a [[source]] of type dns.
type Config struct {
	Servers  []string      `toml:"servers"` // addresses, with or without a port; empty: those of resolv.conf
	Interval spec.Duration `toml:"interval" values:"1s..1h"`
	Services []Service     `toml:"service"`
	// ShrinkGuard is how long a shrink guard holds back a large removal; 0: no guard.
	ShrinkGuard spec.Duration `toml:"shrink_guard" values:"0s..24h"`
}

// Service is a service whose backends are the answers to DNS queries. It has one of the two names.
type Service struct {
	spec.Service
	SRV  string `toml:"srv"`  // of SRV records
	Host string `toml:"host"` // of A and AAAA records
}

// NewConfig returns the default settings.
func NewConfig() *Config {
	return &Config{Interval: spec.Duration(DefaultInterval), ShrinkGuard: spec.Duration(sources.DefaultShrinkGuard)}
}

// Check implements sources.Config.
func (c *Config) Check(b *sources.Block) {
	b.List("servers", c.Servers, func(key, server string) {
		if _, ok := serverAt(server); !ok {
			b.Bad(key, `write "10.0.0.53" or "10.0.0.53:5353"`, "%s is not the address of a server", strict.Quote(server))
		}
	})
	switch n := len(c.Services); {
	case n == 0:
		b.Bad("service", "add a [[source.service]] with a name, ports, and srv or host", "a dns source needs services")
	case n > maxServices:
		b.Bad("service", "add another source", "%d services are more than %d", n, maxServices)
		return
	}
	first := map[vip.ServiceKey]string{}
	for i := range c.Services {
		at := &sources.Block{Checker: b.In(strict.Index("service", i)), Pools: b.Pools}
		key := c.Services[i].check(at)
		if by, taken := first[key]; taken {
			at.Bad("name", "rename or remove one of the two", "%q is the name of the service at %s, too", key, by)
		} else if key != (vip.ServiceKey{}) {
			first[key] = at.Place("")
		}
	}
}

// check checks one service, and returns its key if its name is usable.
func (s *Service) check(b *sources.Block) vip.ServiceKey {
	built, problems := s.Build("", "")
	for _, p := range problems {
		b.Add(p.Field, p)
	}
	b.CheckPool(s.Pool)
	for field, n := range map[string]int{"backends": len(s.Backends), "groups": len(s.Groups)} {
		if n > 0 {
			b.Bad(field, "remove them, or make it a service of services.d", "the backends are those of the name")
		}
	}
	if built.Forward == vip.ForwardHost {
		b.Bad("forward", "remove it", "with forward host a service has no backends")
	}
	switch {
	case s.SRV == "" && s.Host == "":
		b.Bad("", `add srv = "_http._tcp.example.com" or host = "db.example.com"`, "a service of a dns source needs the name of its backends")
	case s.SRV != "" && s.Host != "":
		b.Bad("host", "keep one of the two", "srv is set at %s", b.Place("srv"))
	}
	checkName(b, "srv", s.SRV)
	checkName(b, "host", s.Host)
	if s.SRV != "" && (len(s.Ports) > 1 || len(s.Ports) == 1 && (s.Ports[0].TargetPort != 0 || s.Ports[0].Port.Last != 0)) {
		b.Bad("ports", "write one port without target_port", "SRV records have the port of each backend")
	}
	return built.Key
}

func checkName(b *sources.Block, key, name string) {
	_, err := netip.ParseAddr(name)
	_, valid := dns.IsDomainName(name)
	if name != "" && (err == nil || !valid || strings.ContainsAny(name, " \\") || name == ".") {
		b.Bad(key, "write a full name: db.example.com", "%s is not a DNS name", strict.Quote(name))
	}
}

// serverAt returns the address and port of a server.
func serverAt(text string) (string, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return net.JoinHostPort(addr.String(), "53"), true
	}
	at, err := netip.ParseAddrPort(text)
	return at.String(), err == nil && at.Port() != 0
}

// NewSource implements sources.Config.
func (c *Config) NewSource(d sources.Deps) (sources.Source, error) {
	return d.Cache(New(Options{Config: *c, Name: d.Name, Pools: d.Pools, Prior: d.Prior})), nil
}

// place returns where the backends of a service are found, for messages.
func (s *Service) place() string {
	if s.SRV != "" {
		return "SRV records of " + strconv.Quote(s.SRV)
	}
	return "addresses of " + strconv.Quote(s.Host)
}
