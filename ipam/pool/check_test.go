package pool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/must"
)

func TestCheck(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	p := func(name string, cidrs ...string) ipam.Pool { return ipam.Pool{Name: name, CIDRs: prefixes(cidrs...)} }
	excluding := p("p", "192.0.2.0/24")
	excluding.Exclude = prefixes("192.0.2.1/28", "10.0.0.0/8", "192.0.0.0/16")
	empty := p("p", "192.0.2.0/24", "2001:db8::/64")
	empty.Exclude = prefixes("192.0.0.0/16")
	for _, c := range []struct {
		name  string
		pools []ipam.Pool
		pods  []string
		want  []string // field: message | hint
	}{
		{name: "nothing"},
		{name: "fine", pools: []ipam.Pool{p("a", "192.0.2.0/25", "2001:db8::/64"), p("b", "192.0.2.128/25")}, pods: []string{"10.0.0.0/8", "2001:db8:1::/48"}},
		{name: "loopback", pools: []ipam.Pool{p("a", "127.96.0.0/24")}},
		{name: "names", pools: []ipam.Pool{p("", "192.0.2.0/32"), p("Public V4", "192.0.2.1/32")}, want: []string{
			`pool[0].name: pool name: a name is needed`,
			`pool[1].name: pool name: "Public V4" is not a DNS label: use a-z, 0-9 and inner "-"`,
		}},
		{name: "same name", pools: []ipam.Pool{p("a", "192.0.2.0/32"), p("a", "192.0.2.1/32")}, want: []string{`pool[1].name: pool "a" is defined twice: pool[0] and pool[1]`}},
		{name: "no ranges", pools: []ipam.Pool{p("a")}, want: []string{`pool[0].cidrs: pool "a" has no ranges`}},
		{name: "host bits", pools: []ipam.Pool{p("a", "192.0.2.7/24", "2001:db8::1/64")}, want: []string{
			`pool[0].cidrs: pool "a" 192.0.2.7/24 has bits set behind its length | write it as "192.0.2.0/24", or as "192.0.2.7/32" for the one address`,
			`pool[0].cidrs: pool "a" 2001:db8::1/64 has bits set behind its length`,
		}},
		{name: "zero range", pools: []ipam.Pool{{Name: "a", CIDRs: make([]netip.Prefix, 1)}}, want: []string{`pool[0].cidrs: pool "a" invalid Prefix is not a range`}},
		{name: "unfit", pools: []ipam.Pool{p("a", "224.0.0.0/8", "0.0.0.0/0", "fe80::/64", "ff02::/16", "::ffff:0:0/96", "255.255.255.255/32", "169.254.1.0/24")}, want: []string{
			`pool[0].cidrs: pool "a" 224.0.0.0/8 reaches into 224.0.0.0/4, which is multicast`,
			`pool[0].cidrs: pool "a" 0.0.0.0/0 reaches into 0.0.0.0/8, which is "this network"`,
			`pool[0].cidrs: pool "a" fe80::/64 reaches into fe80::/10, which is link-local`,
			`pool[0].cidrs: pool "a" ff02::/16 reaches into ff00::/8, which is multicast`,
			`pool[0].cidrs: pool "a" ::ffff:0.0.0.0/96 reaches into ::ffff:0.0.0.0/96, which is IPv4 in IPv6`,
			`pool[0].cidrs: pool "a" 255.255.255.255/32 reaches into 240.0.0.0/4, which is reserved`,
			`pool[0].cidrs: pool "a" 169.254.1.0/24 reaches into 169.254.0.0/16, which is link-local`,
		}},
		{name: "overlaps", pools: []ipam.Pool{p("a", "10.0.0.0/16", "10.0.4.0/24"), p("b", "10.0.0.0/8")}, want: []string{
			`pool[0].cidrs: pool "a" 10.0.4.0/24 overlaps 10.0.0.0/16 of the same pool`,
			`pool[1].cidrs: pool "b" 10.0.0.0/8 overlaps pool "a" 10.0.0.0/16`,
			`pool[1].cidrs: pool "b" 10.0.0.0/8 overlaps pool "a" 10.0.4.0/24`,
		}},
		{name: "pods", pools: []ipam.Pool{p("public-v4", "10.244.0.0/16")}, pods: []string{"10.244.0.0/16", "10.244.9.0/24", "10.0.0.0/8"}, want: []string{
			`pool[0].cidrs: pool "public-v4" 10.244.0.0/16 overlaps pod range 10.244.0.0/16`,
			`pool[0].cidrs: pool "public-v4" 10.244.0.0/16 overlaps pod range 10.244.9.0/24`,
			`pool[0].cidrs: pool "public-v4" 10.244.0.0/16 overlaps pod range 10.0.0.0/8`,
		}},
		{name: "excludes", pools: []ipam.Pool{excluding}, want: []string{
			`pool[0].exclude: pool "p" excludes 192.0.2.1/28, which has bits set behind its length`,
			`pool[0].exclude: pool "p" excludes 10.0.0.0/8, which is outside of its ranges`,
		}},
		{name: "nothing left", pools: []ipam.Pool{empty}, want: []string{
			`pool[0].exclude: pool "p" has nothing to give: all of its ipv4 addresses are excluded or held out`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Check(c.pools, prefixes(c.pods...))
			must.Len(t, got, len(c.want), "problems")
			for i, p := range got {
				if line := fmt.Sprintf("%s: %s | %s", p.Field, p.Message, p.Hint); !strings.HasPrefix(line, c.want[i]) || p.Hint == "" {
					t.Errorf("%s\nwant %s", line, c.want[i])
				}
			}
		})
	}
}
