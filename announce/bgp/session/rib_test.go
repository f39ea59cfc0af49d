package session

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// plain is a route without a policy.
func plain(s string) announce.PrefixRoute { return announce.PrefixRoute{Prefix: prefix(s)} }

// encode returns the attributes of a route for an eBGP router without keys.
func encode(r announce.Route) string {
	a, gets := r.Attributes("10.0.0.1", announce.RouteKeys{}, false, false)
	if !gets {
		return ""
	}
	path := message.PathAttributes{ASN: 65010, MED: a.MED, LinkBandwidth: float32(a.LinkBandwidth)}
	for _, c := range a.Communities {
		if err := path.AddCommunity(c); err != nil {
			panic(err)
		}
	}
	return string(path.Append(nil, true))
}

// updates returns the messages of appendUpdates until there are no more.
func updates(t *testing.T, o *adjRIBOut) string {
	t.Helper()
	var b []byte
	for more := true; more; {
		b, more = o.appendUpdates(b)
	}
	return words(t, b)
}

func words(t *testing.T, b []byte) string {
	t.Helper()
	var all []string
	for _, u := range bgptest.Decode(t, b) {
		all = append(all, u.String())
	}
	return strings.Join(all, ", ")
}

func TestUpdates(t *testing.T) {
	routes := announce.NewPrefixRoutes()
	ready := routes.Initializer()
	out := func(families [message.Families]bool, hops [message.Families]netip.Addr) *adjRIBOut {
		return newAdjRIBOut(routes, families, hops, encode)
	}
	routes.SetAll([]announce.PrefixRoute{plain("10.96.0.1/32"), plain("10.96.0.76/30"), plain("fd96::1/128")})
	both := [message.Families]bool{true, true}
	hops := [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	all, only4, noHop := out(both, hops), out([message.Families]bool{true, false}, hops), out(both, [message.Families]netip.Addr{hops[0], {}})
	outs := []*adjRIBOut{all, only4, noHop}
	for _, o := range outs {
		defer o.feed.Close()
	}
	for _, step := range []struct {
		name             string
		change           func()
		all, only4, noV6 string
	}{
		{"at the start", func() {}, "+10.96.0.1/32 +10.96.0.76/30, +fd96::1/128", "+10.96.0.1/32 +10.96.0.76/30", "+10.96.0.1/32 +10.96.0.76/30"},
		{"ready", ready, "EOR 4, EOR 6", "EOR 4", "EOR 4, EOR 6"},
		{"no change", func() { routes.Set(plain("10.96.0.1/32")); routes.Delete(prefix("10.96.0.9/32")) }, "", "", ""},
		{"a new prefix", func() { routes.Set(plain("10.96.0.2/32")) }, "+10.96.0.2/32", "+10.96.0.2/32", "+10.96.0.2/32"},
		{"withdrawn ones", func() { routes.Delete(prefix("10.96.0.76/30")); routes.Delete(prefix("fd96::1/128")) }, "-10.96.0.76/30, -fd96::1/128", "-10.96.0.76/30", "-10.96.0.76/30"},
	} {
		step.change()
		for i, want := range []string{step.all, step.only4, step.noV6} {
			expect.Equal(t, updates(t, outs[i]), want, "%s, peer %d", step.name, i)
		}
	}
	expect.Equal(t, noHop.prefixes, [message.Families]int{2, 0}, "prefixes")
	expect.Equal(t, words(t, all.appendAgain(nil, message.IPv4)), "+10.96.0.1/32 +10.96.0.2/32", "all")
	expect.Equal(t, words(t, noHop.appendAgain(nil, message.IPv6)), "", "all without a next hop")
}

// changed and ready say when there are more messages.
func TestWaiting(t *testing.T) {
	routes := announce.NewPrefixRoutes()
	ready := routes.Initializer()
	o := newAdjRIBOut(routes, [message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}}, encode)
	defer o.feed.Close()
	check := func(step string, changed, ready bool) {
		t.Helper()
		if table.IsClosed(o.changed) != changed || table.IsClosed(o.ready) != ready {
			t.Errorf("%s: changed %t, want %t; ready %t, want %t", step, table.IsClosed(o.changed), changed, table.IsClosed(o.ready), ready)
		}
	}
	updates(t, o)
	check("empty", false, false)
	routes.Set(plain("10.96.0.1/32"))
	check("announced", true, false)
	ready()
	check("ready", true, true)
	_, more := o.appendUpdates(nil)
	expect.True(t, more, "no more messages after the first batch, but End-of-RIB follows")
	check("in the middle", true, false)
	updates(t, o)
	check("at the end", false, false)
}

// A peer that comes later gets what there is, without former prefixes, and End-of-RIB.
func TestLaterPeer(t *testing.T) {
	routes := announce.NewPrefixRoutes()
	routes.SetAll([]announce.PrefixRoute{plain("10.96.0.1/32"), plain("10.96.0.2/32")})
	routes.Delete(prefix("10.96.0.1/32"))
	o := newAdjRIBOut(routes, [message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}}, encode)
	defer o.feed.Close()
	expect.Equal(t, updates(t, o), "+10.96.0.2/32, EOR 4, EOR 6")
	expect.True(t, o.ready == nil, "ready must be nil once it is known")
}

// The memory of one prefix, and of what each of ten peers has of it. The attributes are in memory once.
func TestMemoryPerPrefix(t *testing.T) {
	const prefixes, peers, most = 10_000, 10, 200 + 10*80
	const policy = `{"Communities":["65010:100","no-export","4200065010:1:100"]}`
	size := heapsize.Of(func() any {
		routes := announce.NewPrefixRoutes()
		for i := range prefixes {
			routes.Set(announce.PrefixRoute{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)}), 32), Route: announce.Route{Policy: policy}})
		}
		var outs []*adjRIBOut
		for range peers {
			o := newAdjRIBOut(routes, [message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}}, encode)
			for b, more := []byte(nil), true; more; {
				_, more = o.appendUpdates(b[:0])
			}
			outs = append(outs, o)
		}
		return outs
	}) / prefixes
	if size > most || size < most/2 {
		t.Errorf("%d bytes for each prefix, want at most %d", size, most)
	}
}

// Prefixes of the earlier process are withdrawn also if their family has no next hop any more.
func TestResumedWithoutNextHop(t *testing.T) {
	routes := announce.NewPrefixRoutes()
	ready := routes.Initializer()
	o := newAdjRIBOut(routes, [message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}}, encode)
	defer o.feed.Close()
	o.resume([]netip.Prefix{prefix("fd96::1/128"), prefix("fd96::2/128")})
	routes.SetAll([]announce.PrefixRoute{plain("fd96::1/128"), plain("fd96::2/128"), plain("fd96::3/128")})
	expect.Equal(t, updates(t, o), "", "there is no next hop to send")
	routes.Delete(prefix("fd96::1/128"))
	routes.Delete(prefix("fd96::3/128"))
	expect.Equal(t, updates(t, o), "-fd96::1/128")
	ready()
	expect.Equal(t, updates(t, o), "-fd96::2/128, EOR 4, EOR 6")
	expect.Equal(t, o.prefixes, [message.Families]int{}, "prefixes")
}
