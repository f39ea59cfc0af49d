package vip

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestParseServiceKey(t *testing.T) {
	for in, want := range map[string]ServiceKey{
		"web":         {"default", "web"},
		"default/web": {"default", "web"},
		"shop/web-2":  {"shop", "web-2"},
	} {
		got, err := ParseServiceKey(in)
		if err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
		again, err := ParseServiceKey(got.String())
		if err != nil || again != got {
			t.Errorf("%q written as %q is read as %v, %v", in, got, again, err)
		}
	}
	for _, in := range []string{"", "/", "a/", "/a", "a/b/c", "Web", "-a", "a-", "a_b", "é", strings.Repeat("a", 64)} {
		if got, err := ParseServiceKey(in); err == nil {
			t.Errorf("%q is taken for %v", in, got)
		}
	}
	if _, err := ParseServiceKey(strings.Repeat("a", 63)); err != nil {
		t.Errorf("63 characters: %v", err)
	}
}

func TestBackendID(t *testing.T) {
	for id, want := range map[string]Backend{
		"10.1.0.11":            {Address: netip.MustParseAddr("10.1.0.11")},
		"10.1.0.11:8080":       {Address: netip.MustParseAddr("10.1.0.11"), Port: 8080},
		"2001:db8::1":          {Address: netip.MustParseAddr("2001:db8::1")},
		"[2001:db8::1]:8080":   {Address: netip.MustParseAddr("2001:db8::1"), Port: 8080},
		"[2001:db8::1]":        {Address: netip.MustParseAddr("2001:db8::1")},
		"[::ffff:10.1.0.1]:80": {Address: netip.MustParseAddr("10.1.0.1"), Port: 80},
	} {
		a, port, err := ParseBackendID(id)
		if err != nil || a != want.Address || port != want.Port {
			t.Errorf("%q: %v %d %v", id, a, port, err)
		}
		a, port, err = ParseBackendID(want.ID())
		if err != nil || a != want.Address || port != want.Port {
			t.Errorf("%q written as %q: %v %d %v", id, want.ID(), a, port, err)
		}
	}
	for _, id := range []string{"", "web", "10.1.0.11:", "10.1.0.11:99999", "10.1.0.11:0", "[2001:db8::1]:0", "10.1.0", "fe80::1%eth0", "[fe80::1%eth0]:80"} {
		if a, port, err := ParseBackendID(id); err == nil {
			t.Errorf("%q is taken for %v port %d", id, a, port)
		}
	}
}

func TestProblemError(t *testing.T) {
	for want, p := range map[string]Problem{
		"wrong": {Message: "wrong", Hint: "not part of it", Code: CodeInvalid},
		`f.toml:7: service "web": ports[0].port: out of range`: {
			Place: "f.toml:7", Service: "web", Field: "ports[0].port", Message: "out of range"},
		`service "web": wrong`: {Service: "web", Message: "wrong"},
	} {
		expect.Equal(t, p.Error(), want)
	}
	p := Unsupported("userspace", "forward", `forward "dr"`)
	if p.Code != CodeUnsupported || p.Error() != `forward: userspace does not support forward "dr"` {
		t.Errorf("%+v", p)
	}
}

type enum interface {
	encoding.TextMarshaler
	String() string
}

func TestEnumsAsText(t *testing.T) {
	for want, e := range map[string]enum{"tcp": TCP, "udp": UDP, "sctp": SCTP, "ipv4": IPv4, "ipv6": IPv6} {
		b, err := e.MarshalText()
		if err != nil || string(b) != want || e.String() != want {
			t.Errorf("%v: %q, %v", e, b, err)
		}
		for _, in := range []string{want, strings.ToUpper(want)} {
			switch e := e.(type) {
			case Protocol:
				var got Protocol
				if err := got.UnmarshalText([]byte(in)); err != nil || got != e {
					t.Errorf("%q is read as %v, %v", in, got, err)
				}
			case Family:
				var got Family
				if err := got.UnmarshalText([]byte(in)); err != nil || got != e {
					t.Errorf("%q is read as %v, %v", in, got, err)
				}
			}
		}
	}
	if err := new(Protocol).UnmarshalText([]byte("icmp")); err == nil || !strings.Contains(err.Error(), "icmp") {
		t.Errorf("icmp: %v", err)
	}
	if err := new(Family).UnmarshalText([]byte("ipx")); err == nil || !strings.Contains(err.Error(), "ipx") {
		t.Errorf("ipx: %v", err)
	}
	for want, s := range map[string]string{
		"protocol(1)": Protocol(1).String(), "family(5)": Family(5).String(), "kind(9)": FrontendKind(9).String(),
		"vip": OnVIP.String(), "node-port": OnHost.String(), "80/tcp": PortKey{Port: 80, Protocol: TCP}.String(), "health-check": HealthPortKey.String(),
		"10000-10099/udp": PortKey{Port: 10000, LastPort: 10099, Protocol: UDP}.String(), "real-server": OnRealServer.String(),
		"everyone": Everyone.String(), "internal": InternalClients.String(), "audience(7)": Audience(7).String(),
	} {
		expect.Equal(t, s, want)
	}
}

func TestTextOfFrontendKeys(t *testing.T) {
	four, six := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::1")
	for want, key := range map[string]FrontendKey{
		"192.0.2.10:80/tcp":             {Addr: four, Port: 80, Protocol: TCP},
		"192.0.2.10:80-89/udp":          {Addr: four, Port: 80, LastPort: 89, Protocol: UDP},
		"[2001:db8::1]:80/tcp+internal": {Addr: six, Port: 80, Protocol: TCP, Audience: InternalClients},
		"192.0.2.10":                    {Addr: four}, // leftovers
		"2001:db8::1":                   {Addr: six},
	} {
		if got := key.String(); got != want || key.Whole() != (key.Protocol == 0) {
			t.Errorf("%q, whole %t, want %q", got, key.Whole(), want)
		}
	}
}

func TestFrontendKeysInOrder(t *testing.T) {
	key := func(a string, port uint16, p Protocol) FrontendKey {
		return FrontendKey{Addr: netip.MustParseAddr(a), Port: port, Protocol: p}
	}
	want := []FrontendKey{
		key("9.0.0.1", 80, TCP), key("10.0.0.1", 53, TCP), key("10.0.0.1", 53, UDP), key("10.0.0.1", 65535, TCP), key("2001:db8::1", 1, TCP),
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, CompareFrontendKeys)
	expect.SameList(t, got, want)
	single := want[1]
	ranged, internal := single, single
	ranged.LastPort, internal.Audience = 59, InternalClients
	for _, after := range []FrontendKey{ranged, internal} {
		if CompareFrontendKeys(single, after) >= 0 || CompareFrontendKeys(after, single) <= 0 {
			t.Errorf("%s comes before %s", after, single)
		}
	}
}

func TestPortKeysOverlap(t *testing.T) {
	tcp := func(first, last uint16) PortKey { return PortKey{Port: first, LastPort: last, Protocol: TCP} }
	for _, tc := range []struct {
		a, b PortKey
		want bool
	}{
		{tcp(80, 0), tcp(80, 0), true},
		{tcp(80, 0), tcp(81, 0), false},
		{tcp(80, 0), PortKey{Port: 80, Protocol: UDP}, false},
		{tcp(80, 90), tcp(90, 0), true},
		{tcp(80, 90), tcp(91, 0), false},
		{tcp(80, 90), tcp(79, 0), false},
		{tcp(80, 90), tcp(85, 86), true},
		{tcp(80, 90), tcp(90, 100), true},
		{tcp(80, 90), tcp(91, 100), false},
		{tcp(1, 65535), tcp(65535, 0), true},
	} {
		if tc.a.Overlaps(tc.b) != tc.want || tc.b.Overlaps(tc.a) != tc.want {
			t.Errorf("%s and %s: overlap is not %t", tc.a, tc.b, tc.want)
		}
	}
}

func TestFamilyOf(t *testing.T) {
	for a, want := range map[string]Family{"10.0.0.1": IPv4, "2001:db8::1": IPv6, "::ffff:10.0.0.1": IPv6} {
		expect.Equal(t, FamilyOf(netip.MustParseAddr(a)), want, a)
	}
}

func TestFieldProblem(t *testing.T) {
	known := Problem{Code: CodeUnsupported, Field: "inner", Message: "no", Hint: "do without"}
	for _, c := range []struct {
		err  error
		want Problem
	}{
		{errors.New("bad number"), Problem{Code: CodeInvalid, Field: "port", Message: "bad number"}},
		{fmt.Errorf("read it: %w", known), Problem{Code: CodeUnsupported, Field: "port", Message: "no", Hint: "do without"}},
		{Problem{Message: "no"}, Problem{Code: CodeInvalid, Field: "port", Message: "no"}},
	} {
		expect.Equal(t, FieldProblem("port", c.err), c.want, c.err)
	}
}
