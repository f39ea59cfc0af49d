package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/test/expect"
)

func TestNodePortAddrs(t *testing.T) {
	host := hostAddrs("10.9.0.2/24", "10.9.0.1/24", "10.9.0.1/32", "2001:db8::1/64", "fe80::1/64", "127.0.0.1/8", "::1/128")
	host.Addrs = append(host.Addrs, hostnet.Addr{Prefix: netip.MustParsePrefix("10.9.0.3/24"), Secondary: true},
		hostnet.Addr{Prefix: netip.MustParsePrefix("10.10.0.1/32"), Link: "kube-ipvs0"}, hostnet.Addr{Prefix: netip.MustParsePrefix("10.10.0.2/32"), Link: "kube-dummy-if"})
	for name, tc := range map[string]struct {
		chosen []string
		want   []string
	}{
		"primary":                   {nil, []string{"10.9.0.1", "10.9.0.2", "2001:db8::1"}},
		"one":                       {[]string{"10.9.0.2/32"}, []string{"10.9.0.2"}},
		"ranges":                    {[]string{"10.9.0.0/24", "2001:db8::/32"}, []string{"10.9.0.1", "10.9.0.2", "10.9.0.3", "2001:db8::1"}},
		"loopback when chosen":      {[]string{"127.0.0.0/8"}, []string{"127.0.0.1"}},
		"another's VIP when chosen": {[]string{"10.10.0.1/32"}, []string{"10.10.0.1"}},
		"nothing of this host's":    {[]string{"203.0.113.0/24"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var chosen []netip.Prefix
			for _, p := range tc.chosen {
				chosen = append(chosen, netip.MustParsePrefix(p))
			}
			got := NodePortAddrs(host, chosen)
			expect.SameList(t, got, addrs(tc.want...), "got %v, want %v", got, tc.want)
		})
	}
}

func TestHostAddrs(t *testing.T) {
	host := hostAddrs("10.9.0.2/24", "10.9.0.1/24", "10.9.0.1/32", "127.0.0.1/8")
	host.Addrs = append(host.Addrs, hostnet.Addr{Prefix: netip.MustParsePrefix("10.9.0.3/24"), Link: "eth0", Secondary: true},
		hostnet.Addr{Prefix: netip.MustParsePrefix("10.96.0.1/32"), Link: "kube-ipvs0"})
	if got, want := hostAddrsOf(host), addrs("10.9.0.1", "10.9.0.2", "10.9.0.3", "127.0.0.1"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
