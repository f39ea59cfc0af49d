package naming

import (
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns/server"
	"github.com/ironvip/ironvip/dns/zone"
)

func listenAddresses(cfg *configs.Config) []netip.AddrPort {
	var out []netip.AddrPort
	for _, l := range cfg.DNS.Listen {
		out = append(out, l.AddrPort)
	}
	return out
}

func pools(cfg *configs.Config) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range cfg.Pools {
		out = append(out, p.CIDRs...)
	}
	return out
}

func zoneSettings(cfg *configs.Config) zone.Settings {
	d := &cfg.DNS
	s := zone.Settings{Domain: d.Domain, TTL: time.Duration(d.TTL), NegativeTTL: time.Duration(d.NegativeTTL), ShortNames: d.ShortNames, Reverse: d.Reverse, Pools: pools(cfg)}
	for _, l := range d.Listen {
		if !slices.Contains(s.Servers, l.Addr()) {
			s.Servers = append(s.Servers, l.Addr())
		}
	}
	return s
}

func serverSettings(cfg *configs.Config) server.Settings {
	s := server.Settings{Listen: listenAddresses(cfg), RateLimit: cfg.DNS.RateLimit}
	for _, r := range cfg.DNS.Allow {
		s.Allow = append(s.Allow, r.Prefix)
	}
	return s
}
