package configs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// DNS is [dns]: the names of services, and where this host answers queries for them.
type DNS struct {
	Domain      string          `toml:"domain"`                       // the zone
	Listen      []ListenAddress `toml:"listen"`                       // UDP and TCP; empty: off
	Allow       []AddressRange  `toml:"allow"`                        // clients of addresses that are not loopback
	TTL         spec.Duration   `toml:"ttl" values:"0s..24h"`         // of addresses; at most ipam.reuse_delay
	NegativeTTL spec.Duration   `toml:"negative_ttl" values:"0s..1h"` // of the answer that a name doesn't exist
	Reverse     bool            `toml:"reverse"`                      // answer for addresses in the pools, too
	ShortNames  bool            `toml:"short_names"`                  // web.DOMAIN for services of namespace default
	Resolver    string          `toml:"resolver" values:"none|resolved"`
	RateLimit   int             `toml:"rate_limit" values:"1..1000000"` // replies per second and prefix of clients that are not loopback
}

const (
	DefaultDomain = "vip.internal"
	// MaxDomain is in bytes. The longest name of a service has 203 more, in
	// _PORT._PROTO.NAME.NAMESPACE.svc.DOMAIN.
	MaxDomain = vip.MaxHostnameLength - 203
)

// The resolvers of the host that the agent tells where to query the zone.
const (
	ResolverNone     = "none"
	ResolverResolved = "resolved" // systemd-resolved
)

func newDNS() DNS {
	return DNS{Domain: DefaultDomain, TTL: spec.Duration(30 * time.Second), NegativeTTL: spec.Duration(time.Second), Reverse: true, ShortNames: true, Resolver: ResolverNone, RateLimit: 1000}
}

// ListenAddress is a local unicast address with a port: "127.0.0.1:8653", "[::1]:8653".
type ListenAddress struct{ netip.AddrPort }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *ListenAddress) UnmarshalText(text []byte) error {
	const hint = `write an address and a port: "127.0.0.1:8653", "[::1]:8653"`
	s := string(text)
	ap, err := netip.ParseAddrPort(s)
	a := ap.Addr()
	switch {
	case err != nil || ap.Port() == 0:
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(s) + " is not an address with a port", Hint: hint}
	case a.IsUnspecified():
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(s) + " is every address of this host, also the VIPs", Hint: "write each address that clients query"}
	case a.Is4In6() || a.Zone() != "" || a.IsMulticast() || a.Is6() && a.IsLinkLocalUnicast():
		return vip.Problem{Code: vip.CodeInvalid, Message: strict.Quote(s) + " is not an address that clients can query", Hint: hint}
	}
	l.AddrPort = ap
	return nil
}

// On reports whether names are answered.
func (d *DNS) On() bool { return len(d.Listen) > 0 }

// Addresses returns where names are answered.
func (d *DNS) Addresses() (out []netip.AddrPort) {
	for _, l := range d.Listen {
		out = append(out, l.AddrPort)
	}
	return out
}

// ResolvedSettings returns what systemd-resolved should have or, unless it is configured, must not have.
// It queries a loopback address if there is one: these have no limit, and don't go away with a link.
func (c *Config) ResolvedSettings() resolved.Settings {
	listen := c.DNS.Addresses()
	remote := func(a netip.AddrPort) bool { return !a.Addr().IsLoopback() }
	if local := slices.DeleteFunc(slices.Clone(listen), remote); len(local) > 0 {
		listen = local
	}
	var reverse []netip.Prefix
	if c.DNS.Reverse {
		reverse = c.PoolCIDRs()
	}
	s := resolved.NewSettings(c.Dataplane.Device, c.DNS.Domain, listen, reverse)
	s.On = s.On && c.DNS.Resolver == ResolverResolved
	return s
}

func (c *Config) checkDNS(t *tomlfile.Checker) {
	d := &c.DNS
	checkDomain(t, d.Domain)
	local := true
	for i, l := range d.Listen {
		key := strict.Index("listen", i)
		if slices.Contains(d.Listen[:i], l) {
			t.Bad(key, "remove it", "%s is defined twice", l)
		}
		if l.IsValid() && !l.Addr().IsLoopback() {
			local = false
		}
		if l.meets(c.API.Listen) {
			t.Bad(key, "use another port", "%s is needed for api.listen, too", l)
		}
		if c.Announces() && l.meets(c.Announce.Listen) {
			t.Bad(key, "use another port", "%s is needed for announce.listen, too", l)
		}
		for _, p := range c.Pools {
			if slices.ContainsFunc(p.CIDRs, func(r netip.Prefix) bool { return r.Contains(l.Addr()) }) &&
				!slices.ContainsFunc(p.Exclude, func(r netip.Prefix) bool { return r.Contains(l.Addr()) }) {
				t.Bad(key, "use an address of this host, or exclude it from the pool", "%s is in pool %q and can be a VIP", l.Addr(), p.Name)
			}
		}
	}
	if !local && len(d.Allow) == 0 {
		t.Bad("allow", `write the ranges of the clients: allow = ["10.0.0.0/8"]`, "is required, because other hosts can reach an address of dns.listen")
	}
	wholeSeconds(t, "ttl", d.TTL)
	wholeSeconds(t, "negative_ttl", d.NegativeTTL)
	if d.On() && d.TTL > c.IPAM.ReuseDelay {
		t.Bad("ttl", fmt.Sprintf("use %q or less, or raise ipam.reuse_delay", c.IPAM.ReuseDelay),
			"%s is longer than ipam.reuse_delay: clients could use an address that belongs to another service", d.TTL)
	}
}

// meets reports whether another listener, such as ":7480" or "localhost:7480", needs the same address and port.
func (l ListenAddress) meets(other string) bool {
	host, port, err := net.SplitHostPort(other)
	if err != nil || port != strconv.Itoa(int(l.Port())) {
		return false
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	at, err := netip.ParseAddr(host)
	return host == "" || err == nil && (at.IsUnspecified() || at == l.Addr())
}

func wholeSeconds(t *tomlfile.Checker, key string, d spec.Duration) {
	if time.Duration(d)%time.Second != 0 {
		t.Bad(key, "use whole seconds", "%s has parts of a second", d)
	}
}

// checkDomain refuses names that resolvers don't look up by DNS.
func checkDomain(t *tomlfile.Checker, name string) {
	const key, hint = "domain", `use a name below "internal", which is reserved for private use: "` + DefaultDomain + `"`
	if err := vip.CheckHostname(name); err != nil {
		t.Bad(key, hint, "%s", err)
		return
	}
	if len(name) > MaxDomain {
		t.Bad(key, hint, "%s is longer than %d characters: some names of services would be too long for DNS", name, MaxDomain)
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	if slices.Contains([]string{"local", "localhost", "invalid"}, last) {
		t.Bad(key, hint, "resolvers do not look up names below %q by DNS", last)
	}
}
