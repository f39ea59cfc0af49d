package rib

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// updates returns the messages of AppendUpdates until there are no more.
func updates(t *testing.T, o *AdjRIBOut) string {
	t.Helper()
	var b []byte
	for more := true; more; {
		b, more = o.AppendUpdates(b)
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
	loc := New(routes)
	routes.SetAll([]netip.Prefix{prefix("10.96.0.1/32"), prefix("10.96.0.76/30"), prefix("fd96::1/128")})
	both := [message.Families]bool{true, true}
	hops := [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	all, only4, noHop := loc.Out(both, hops), loc.Out([message.Families]bool{true, false}, hops), loc.Out(both, [message.Families]netip.Addr{hops[0], {}})
	outs := []*AdjRIBOut{all, only4, noHop}
	attributes := (&message.PathAttributes{ASN: 65010}).Append(nil, true)
	for _, o := range outs {
		defer o.Close()
		first, err1 := o.SetAttributes(attributes)
		again, err2 := o.SetAttributes(attributes)
		if !first || again || err1 != nil || err2 != nil {
			t.Error("SetAttributes must report a change, and only that")
		}
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
	expect.Equal(t, noHop.Prefixes(), [message.Families]int{2, 0}, "prefixes")
	expect.Equal(t, words(t, all.AppendAll(nil, message.IPv4)), "+10.96.0.1/32 +10.96.0.2/32", "all")
	expect.Equal(t, words(t, noHop.AppendAll(nil, message.IPv6)), "", "all without a next hop")
}

// Changed and Ready say when there are more messages.
func TestWaiting(t *testing.T) {
	routes := announce.NewPrefixes()
	ready := routes.Initializer()
	o := New(routes).Out([message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}})
	defer o.Close()
	check := func(step string, changed, ready bool) {
		t.Helper()
		if table.IsClosed(o.Changed()) != changed || table.IsClosed(o.Ready()) != ready {
			t.Errorf("%s: changed %t, want %t; ready %t, want %t", step, table.IsClosed(o.Changed()), changed, table.IsClosed(o.Ready()), ready)
		}
	}
	updates(t, o)
	check("empty", false, false)
	routes.Set(prefix("10.96.0.1/32"))
	check("announced", true, false)
	ready()
	check("ready", true, true)
	if _, more := o.AppendUpdates(nil); !more {
		t.Error("no more messages after the first batch, but End-of-RIB follows")
	}
	check("in the middle", true, false)
	updates(t, o)
	check("at the end", false, false)
}

// A peer that comes later gets what there is, without former prefixes, and End-of-RIB.
func TestLaterPeer(t *testing.T) {
	routes := announce.NewPrefixes()
	routes.SetAll([]netip.Prefix{prefix("10.96.0.1/32"), prefix("10.96.0.2/32")})
	routes.Delete(prefix("10.96.0.1/32"))
	o := New(routes).Out([message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}})
	defer o.Close()
	expect.Equal(t, updates(t, o), "+10.96.0.2/32, EOR 4, EOR 6")
	expect.True(t, o.Ready() == nil, "Ready must be nil once it is known")
}

// Attributes up to the largest size leave room for a prefix in each message of any next hop, and longer
// ones are an error. Without the limit, AppendUpdates would never end.
func TestLargestAttributes(t *testing.T) {
	routes := announce.NewPrefixes()
	routes.SetAll([]netip.Prefix{prefix("10.96.0.1/32"), prefix("10.96.0.2/32"), prefix("fd96::1/128"), prefix("fd96::2/128")})
	loc := New(routes)
	both := [message.Families]bool{true, true}
	for _, hop := range []string{"10.0.0.2", "fd00::2"} {
		o := loc.Out(both, [message.Families]netip.Addr{netip.MustParseAddr(hop), netip.MustParseAddr("fd00::2")})
		communities := make([]message.Community, (message.MaxAttributes-40)/4)
		attributes := (&message.PathAttributes{ASN: 65010, Communities: communities}).Append(nil, true)
		if _, err := o.SetAttributes(attributes); err != nil {
			t.Fatal(err)
		}
		if text := updates(t, o); strings.Count(text, "+") != 4 {
			t.Errorf("next hop %s: %s", hop, text)
		}
		_, err := o.SetAttributes(make([]byte, message.MaxAttributes+1))
		expect.Equal(t, fmt.Sprint(err), "path attributes of 3969 bytes are longer than the 3968 that a message has room for")
		o.Close()
	}
}
