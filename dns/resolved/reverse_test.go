package resolved

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestReverseZones(t *testing.T) {
	for _, c := range []struct{ pools, want string }{
		{"", ""},
		{"10.96.0.0/16", "96.10.in-addr.arpa"},
		{"10.0.0.0/8", "10.in-addr.arpa"},
		{"198.51.100.0/22", "100.51.198.in-addr.arpa 101.51.198.in-addr.arpa 102.51.198.in-addr.arpa 103.51.198.in-addr.arpa"},
		{"192.0.2.6/31", "6.2.0.192.in-addr.arpa 7.2.0.192.in-addr.arpa"},
		{"192.0.2.7/32", "7.2.0.192.in-addr.arpa"},
		{"10.96.0.0/16 10.96.0.0/16", "96.10.in-addr.arpa"},
		{"fd00:10::/32", "0.1.0.0.0.0.d.f.ip6.arpa"},
		{"2001:db8::abc0/123", "c.b.a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa d.b.a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"},
	} {
		var pools []netip.Prefix
		for _, p := range strings.Fields(c.pools) {
			pools = append(pools, netip.MustParsePrefix(p))
		}
		expect.Equal(t, strings.Join(ReverseZones(pools), " "), c.want, "%s", c.pools)
	}
}
