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
	routes := announce.NewPrefixes()
	ready := routes.Initializer()
	loc := NewLocRIB(routes)
	routes.SetAll([]netip.Prefix{prefix("10.96.0.1/32"), prefix("10.96.0.76/30"), prefix("fd96::1/128")})
	both := [message.Families]bool{true, true}
	hops := [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	all, only4, noHop := loc.out(both, hops), loc.out([message.Families]bool{true, false}, hops), loc.out(both, [message.Families]netip.Addr{hops[0], {}})
	outs := []*adjRIBOut{all, only4, noHop}
	attributes := (&message.PathAttributes{ASN: 65010}).Append(nil, true)
	for _, o := range outs {
		defer o.feed.Close()
		o.attributes = attributes
	}
	for _, step := range []struct {
		name             string
		change           func()
		all, only4, noV6 string
	}{
		{"at the start", func() {}, "+10.96.0.1/32 +10.96.0.76/30, +fd96::1/128", "+10.96.0.1/32 +10.96.0.76/30", "+10.96.0.1/32 +10.96.0.76/30"},
		{"ready", ready, "EOR 4, EOR 6", "EOR 4", "EOR 4, EOR 6"},
		{"no change", func() { routes.Set(prefix("10.96.0.1/32")); routes.Delete(prefix("10.96.0.9/32")) }, "", "", ""},
		{"a new prefix", func() { routes.Set(prefix("10.96.0.2/32")) }, "+10.96.0.2/32", "+10.96.0.2/32", "+10.96.0.2/32"},
		{"withdrawn ones", func() { routes.Delete(prefix("10.96.0.76/30")); routes.Delete(prefix("fd96::1/128")) }, "-10.96.0.76/30, -fd96::1/128", "-10.96.0.76/30", "-10.96.0.76/30"},
	} {
		step.change()
		for i, want := range []string{step.all, step.only4, step.noV6} {
			expect.Equal(t, updates(t, outs[i]), want, "%s, peer %d", step.name, i)
		}
	}
	expect.Equal(t, noHop.prefixes(), [message.Families]int{2, 0}, "prefixes")
	expect.Equal(t, words(t, all.appendAll(nil, message.IPv4)), "+10.96.0.1/32 +10.96.0.2/32", "all")
	expect.Equal(t, words(t, noHop.appendAll(nil, message.IPv6)), "", "all without a next hop")
}

// changed and ready say when there are more messages.
func TestWaiting(t *testing.T) {
	routes := announce.NewPrefixes()
	ready := routes.Initializer()
	o := NewLocRIB(routes).out([message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}})
	defer o.feed.Close()
	check := func(step string, changed, ready bool) {
		t.Helper()
		if table.IsClosed(o.changed) != changed || table.IsClosed(o.ready) != ready {
			t.Errorf("%s: changed %t, want %t; ready %t, want %t", step, table.IsClosed(o.changed), changed, table.IsClosed(o.ready), ready)
		}
	}
	updates(t, o)
	check("empty", false, false)
	routes.Set(prefix("10.96.0.1/32"))
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
	routes := announce.NewPrefixes()
	routes.SetAll([]netip.Prefix{prefix("10.96.0.1/32"), prefix("10.96.0.2/32")})
	routes.Delete(prefix("10.96.0.1/32"))
	o := NewLocRIB(routes).out([message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}})
	defer o.feed.Close()
	expect.Equal(t, updates(t, o), "+10.96.0.2/32, EOR 4, EOR 6")
	expect.True(t, o.ready == nil, "ready must be nil once it is known")
}

// The memory of one prefix, and of nothing more for each of ten peers that have received all of them.
func TestMemoryPerPrefix(t *testing.T) {
	const prefixes, peers, most = 10_000, 10, 160
	size := heapsize.Of(func() any {
		routes := announce.NewPrefixes()
		loc := NewLocRIB(routes)
		for i := range prefixes {
			routes.Set(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)}), 32))
		}
		var outs []*adjRIBOut
		for range peers {
			o := loc.out([message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}})
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
