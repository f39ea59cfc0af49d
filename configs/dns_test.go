package configs

import (
	"net/netip"
	"slices"
	"testing"
)

// systemd-resolved queries the loopback addresses if there are any.
func TestResolvedServers(t *testing.T) {
	at := func(list ...string) (out []netip.AddrPort) {
		for _, s := range list {
			out = append(out, netip.MustParseAddrPort(s))
		}
		return out
	}
	for _, c := range []struct{ listen, want []netip.AddrPort }{
		{nil, nil},
		{at("127.0.0.1:8653"), at("127.0.0.1:8653")},
		{at("192.0.2.1:53", "127.0.0.1:8653", "[2001:db8::1]:53", "[::1]:8653"), at("127.0.0.1:8653", "[::1]:8653")},
		{at("192.0.2.1:53", "[2001:db8::1]:53"), at("192.0.2.1:53", "[2001:db8::1]:53")},
	} {
		cfg := &Config{DNS: newDNS()}
		cfg.DNS.Resolver = ResolverResolved
		for _, l := range c.listen {
			cfg.DNS.Listen = append(cfg.DNS.Listen, ListenAddress{l})
		}
		if got := cfg.ResolvedSettings().Servers; !slices.Equal(got, c.want) {
			t.Errorf("listen %v: servers %v, want %v", c.listen, got, c.want)
		}
	}
}
