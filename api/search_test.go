package api

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// found returns the matches of a search, one line each.
func (r *rig) found(text string) string {
	r.t.Helper()
	var out strings.Builder
	for _, m := range decode[v1.SearchResult](r, "GET", v1.PathSearch+"?q="+text, "").Matches {
		fmt.Fprintf(&out, "%s %s|%s|%s|%s\n", m.Kind, m.Name, m.Service, m.State, m.Detail)
	}
	return out.String()
}

func TestSearch(t *testing.T) {
	reads, begin := 0, time.Now()
	r := newRig(t, func(d *Deps) {
		d.Nodes.List = func(context.Context) (v1.NodeList, error) {
			reads++
			return v1.NodeList{Items: []v1.Node{{Name: "Rack7-lb1", State: "present", Dataplane: "nft"}}}, nil
		}
	})
	decode[v1.Service](r, "PUT", "/v1/services/shop/cart", `{"ports":[{"port":80,"target_port":8080}],"backends":[{"address":"10.1.0.11","node":"rack7-a"},{"address":"10.1.0.12","port":9000},{"address":"10.1.0.110"}]}`, "Prefer: wait=60")
	decode[v1.Service](r, "PUT", "/v1/services/default/cart-old", `{"ports":[{"port":80}],"backends":[{"address":"10.2.0.1"}]}`, "Prefer: wait=60")
	decode[v1.Backend](r, "PUT", v1.BackendStatePath("shop", "cart", "10.1.0.12:9000"), `{"state":"drain"}`, "Prefer: wait=60")
	cart, _, _ := r.deps.Tables.Allocations.Get(vip.ServiceKey{Namespace: "shop", Name: "cart"})
	at := cart.VIPs[0].String()
	other, _, _ := r.deps.Tables.Allocations.Get(vip.ServiceKey{Namespace: "default", Name: "cart-old"})
	old := other.VIPs[0].String()
	for _, c := range []struct{ text, want string }{
		{"10.1.0.11", "backend 10.1.0.11|shop/cart|unchecked|node rack7-a\nbackend 10.1.0.110|shop/cart|unchecked|\n"},
		{"10.1.0.11:8080", "backend 10.1.0.11|shop/cart|unchecked|node rack7-a\n"}, // the service's target port
		{"10.1.0.12:9000", "backend 10.1.0.12:9000|shop/cart|drain|\n"},
		{"10.1.0.12:9001", ""},
		{"2:90", "backend 10.1.0.12:9000|shop/cart|drain|\n"},
		{at, "vip " + at + "|shop/cart|held|pool lan\n"},
		{at + ":80", "vip " + at + "|shop/cart|held|pool lan\n"},
		{"lan", "pool lan|||192.0.2.0/24\n"},
		{"RACK7", "node Rack7-lb1||present|nft\nbackend 10.1.0.11|shop/cart|unchecked|node rack7-a\n"},
		{"shop/cart", "service shop/cart|shop/cart|degraded|" + at + " 80/tcp\n"},
		{"default/cart-old", "service cart-old|cart-old|unchecked|" + old + " 80/tcp\n"},
		{"lt/cart", "service cart-old|cart-old|unchecked|" + old + " 80/tcp\n"},
		{"default/cart", "service cart-old|cart-old|unchecked|" + old + " 80/tcp\n"},
		{"other/cart", ""},
		{"cart.shop", "dns_name cart.shop.svc.vip.internal|shop/cart|answered|" + at + "\n"},
		{"nothing", ""},
	} {
		if got := r.found(c.text); got != c.want {
			t.Errorf("%s:\n%swant:\n%s", c.text, got, c.want)
		}
	}
	// The best first: an exact name, then those that begin with it, then those that contain it.
	var names []string
	for _, m := range decode[v1.SearchResult](r, "GET", v1.PathSearch+"?q=cart&limit=4", "").Matches {
		names = append(names, m.Kind+" "+m.Name)
	}
	if got := strings.Join(names, ", "); got != "service shop/cart, service cart-old, dns_name cart-old.default.svc.vip.internal, dns_name cart-old.vip.internal" {
		t.Errorf("%s", got)
	}
	if begun := time.Since(begin); begun < nodesAge && reads != 1 {
		t.Errorf("%d reads of the nodes in %s", reads, begun)
	}
	away := newRig(t, func(d *Deps) {
		d.Nodes.List = func(context.Context) (v1.NodeList, error) { return v1.NodeList{}, errors.New("consul is away") }
	})
	if got := decode[v1.SearchResult](away, "GET", v1.PathSearch+"?q=rack7", ""); len(got.Missing) != 1 || got.Missing[0] != "node" || len(got.Matches) != 0 {
		t.Errorf("without nodes: %+v", got)
	}
	for _, q := range []string{"", "?q=", "?q=%20", "?q=" + strings.Repeat("x", 101), "?q=x&limit=0", "?q=x&limit=101"} {
		if a := r.ask("GET", v1.PathSearch+q, ""); a.StatusCode != 400 && a.StatusCode != 422 {
			t.Errorf("%q: %s", q, a.Status)
		}
	}
}

// One spelling of an IPv6 address finds the others.
func TestSearchAddressSpellings(t *testing.T) {
	a := netip.MustParseAddr("2001:db8::1")
	for text, want := range map[string]quality{"2001:DB8:0:0::1": exactly, "[2001:db8::1]:80": exactly, "[2001:db8::1]": exactly, "2001:db8": beginsWith, "[2001:db8": beginsWith,
		"db8::": contains, "::1]:8": contains, "[2001:db8::1]:81": nothing, "10.0.0.1": nothing} {
		expect.Equal(t, newFinder(text).rankAddress(a, 80), want, "%s: rank", text)
	}
}
