package naming

import (
	"slices"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns/server"
	"github.com/ironvip/ironvip/dns/zone"
)

func zoneSettings(cfg *configs.Config) zone.Settings {
	d := &cfg.DNS
	s := zone.Settings{Domain: d.Domain, TTL: time.Duration(d.TTL), NegativeTTL: time.Duration(d.NegativeTTL), ShortNames: d.ShortNames, Reverse: d.Reverse, Pools: cfg.PoolCIDRs()}
	for _, l := range d.Listen {
		if !slices.Contains(s.Servers, l.Addr()) {
			s.Servers = append(s.Servers, l.Addr())
		}
	}
	return s
}

func serverSettings(cfg *configs.Config) server.Settings {
	s := server.Settings{Listen: cfg.DNS.Addresses(), RateLimit: cfg.DNS.RateLimit}
	for _, r := range cfg.DNS.Allow {
		s.Allow = append(s.Allow, r.Prefix)
	}
	return s
}
