package balance

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// fillUp makes each service take what it gets, in turn, and returns how many descriptors each has.
func fillUp(c *Capacity, greedy ...*Service) (held []int64) {
	for refused := 0; refused < len(greedy); {
		refused = 0
		for _, s := range greedy {
			if c.Take(s, ConnectionFiles) != Admitted {
				refused++
			}
		}
	}
	for _, s := range greedy {
		held = append(held, s.files.Load())
	}
	return held
}

func TestReserve(t *testing.T) {
	const total = 2000
	for _, x := range []struct {
		greedy   int
		others   int64 // services that are idle so far
		wantLeft int64
	}{
		{1, 0, 0}, // alone
		{1, 1, total / 4},
		{2, 0, total / 7}, // each leaves room for the other one
		{2, 1, total / 7},
		{10, 1, total / 31},
	} {
		var c Capacity
		c.files = total
		c.tenants.Store(int64(x.greedy) + x.others)
		greedy := make([]*Service, x.greedy)
		for i := range greedy {
			greedy[i] = &Service{}
		}
		held := fillUp(&c, greedy...)
		left := total - c.used.Load()
		expect.Between(t, left, x.wantLeft-2, x.wantLeft+2*int64(x.greedy), "left by %d greedy services of %d", x.greedy, c.tenants.Load())
		expect.AtMost(t, slices.Max(held)-slices.Min(held), 2, "they hold %v", held)
		// A service that arrives now is served, until it holds three times what is left.
		if x.others > 0 {
			late := fillUp(&c, &Service{})[0]
			if want := left * 3 / 4; late < want-4 || late > want {
				t.Errorf("beside %d greedy services, another one gets %d of %d", x.greedy, late, left)
			}
		}
	}
}

// Refused clients change nothing, and taking costs no memory.
func TestCapacityIsGivenBack(t *testing.T) {
	var c Capacity
	c.files = 100
	c.tenants.Store(2)
	a, b := &Service{}, &Service{}
	fillUp(&c, a, b)
	for _, s := range []*Service{a, b} {
		for range s.files.Load() / ConnectionFiles {
			c.Give(s, ConnectionFiles)
		}
	}
	if c.used.Load() != 0 || a.files.Load() != 0 || b.files.Load() != 0 {
		t.Errorf("%d used, %d and %d held after all is given back", c.used.Load(), a.files.Load(), b.files.Load())
	}
	if n := testing.AllocsPerRun(100, func() {
		if c.Take(a, ConnectionFiles) == Admitted {
			c.Give(a, ConnectionFiles)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The reference has every reason that metrics have.
func TestReasonsAreDocumented(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/proxy.md"))(t)
	for why := range reasons {
		if why.String() == "" || reasonTexts[why].meaning == "" {
			t.Errorf("reason %d has no text", why)
		}
		expect.True(t, strings.Contains(string(page), "`"+why.String()+"`"), "docs/proxy.md has no `%s`", why.String())
	}
}
func TestAdmit(t *testing.T) {
	own := func(a netip.Addr) bool { return a == netip.MustParseAddr("10.9.0.1") }
	both := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	f := &Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1")}, balancer: &Balancer{own: own}}
	f.backends.Store(&backends{spec: &vip.Frontend{SourceRanges: both}})
	for client, want := range map[string]bool{
		"198.51.100.7": true, "::ffff:198.51.100.7": true, "2001:db8::1%eth0": true, "198.51.101.7": false, "2001:db9::1": false,
		"10.9.0.1": true, "10.9.0.2": false, "192.0.2.1": true, "192.0.2.2": false,
	} {
		expect.Equal(t, f.Accepts(netip.MustParseAddr(client)), want, "%s", client)
	}
	f.backends.Store(&noBackends)
	expect.True(t, f.Accepts(netip.MustParseAddr("203.0.113.1")), "no ranges keep somebody out")
	f.backends.Store(&backends{spec: &vip.Frontend{SourceRanges: both[1:]}})
	expect.False(t, f.Accepts(netip.MustParseAddr("203.0.113.1")), "ranges of the other family let everybody in")
}
