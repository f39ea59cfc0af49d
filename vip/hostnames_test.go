package vip

import (
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestCheckHostname(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253
	for _, good := range []string{"shop.example.com", "a.b", "xn--bcher-kva.example", "1.example", "db.vip.internal", "arpa.example", long} {
		expect.Succeed(t, CheckHostname(good), good)
	}
	for bad, want := range map[string]string{
		"":                                "a name is needed",
		"shop":                            `"shop" has no domain`,
		"Shop.example.com":                "is not a DNS name",
		"shop.example.com.":               "is not a DNS name",
		".example.com":                    "is not a DNS name",
		"a..b":                            "is not a DNS name",
		"*.example.com":                   "is not a DNS name",
		"_http._tcp.example.com":          "is not a DNS name",
		"-a.example":                      "is not a DNS name",
		"shop.example.com/24":             "is not a DNS name",
		"bücher.example":                  "is not a DNS name",
		strings.Repeat("a", 64) + ".b":    "is not a DNS name",
		long + "a":                        "is longer than 253 characters",
		"192.0.2.1":                       "ends in a number, as an address does",
		"a.0":                             "ends in a number",
		"10.2.0.192.in-addr.arpa":         "is a name of the reverse zones",
		"0.1.0.0.2.ip6.arpa":              "is a name of the reverse zones",
		"shop.example.com shop.example.a": "is not a DNS name",
	} {
		if err := CheckHostname(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", bad, err, want)
		}
	}
}

func TestHostnames(t *testing.T) {
	none, one, two := Hostnames{}, HostnamesOf("b.example"), HostnamesOf("b.example", "a.example", "b.example")
	if HostnamesOf() != none || none.List() != nil || !slices.Equal(two.List(), []string{"a.example", "b.example"}) {
		t.Errorf("%q, %q", none.List(), two.List())
	}
	for i, a := range []Hostnames{none, one, two} {
		for j, b := range []Hostnames{none, HostnamesOf("b.example"), HostnamesOf("a.example", "b.example")} {
			if a.Equal(b) != (i == j) {
				t.Errorf("%q and %q: %t", a.List(), b.List(), a.Equal(b))
			}
		}
	}
	expect.Equal(t, testing.AllocsPerRun(100, func() { two.Equal(one) }), 0, "allocations of a comparison")
}
