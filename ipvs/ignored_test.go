package ipvs

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// Settings of relayed connections are named, and only if they are not the defaults.
func TestIgnoredIsNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*vip.Service, *Options)
		want   []string
	}{
		{"defaults", func(*vip.Service, *Options) {}, nil},
		{"connect", func(s *vip.Service, _ *Options) { s.Relay = &vip.ProxySettings{ConnectTimeout: time.Second} }, []string{"connect_timeout"}},
		{"all", func(s *vip.Service, _ *Options) {
			s.Relay = &vip.ProxySettings{ConnectTimeout: 1, IdleTimeout: 2, HalfCloseTimeout: 3}
		},
			[]string{"connect_timeout", "idle_timeout", "half_close_timeout"}},
		{"limits", func(s *vip.Service, _ *Options) {
			s.Relay = &vip.ProxySettings{MaxConnections: 1, MaxQueue: 2}
			s.Backends = []vip.Backend{{}, {MaxConnections: 3}}
		},
			[]string{"max_queue", "max_connections"}},
		{"limit of sessions", func(s *vip.Service, _ *Options) {
			s.Relay, s.Ports[0].Protocol = &vip.ProxySettings{MaxConnections: 1, MaxQueue: 2}, vip.UDP
		}, []string{"max_connections"}},
		{"no TCP", func(s *vip.Service, _ *Options) {
			s.Relay, s.Ports[0].Protocol = &vip.ProxySettings{IdleTimeout: 1}, vip.UDP
		}, nil},
		{"real server", func(s *vip.Service, o *Options) { s.Relay, o.RealServer = &vip.ProxySettings{IdleTimeout: 1}, true }, nil},
	} {
		s := vip.Service{Ports: []vip.Port{{Port: 80, Protocol: vip.TCP}}}
		var o Options
		c.change(&s, &o)
		var got []string
		for _, p := range (&Target{opt: o}).Ignored(&s) {
			got = append(got, p.Field)
			if p.Code != vip.CodeIneffective || p.Hint == "" {
				t.Errorf("%s: %+v", c.name, p)
			}
		}
		expect.SameList(t, got, c.want, c.name)
	}
}

// A frontend with another idle_timeout is a change, because Apply sets the kernel's timeouts. A real server remembers no
// connections, so it has nothing to do.
func TestIdleTimeoutIsAChange(t *testing.T) {
	f := vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}, Kind: vip.OnVIP}
	real := vip.Frontend{Key: f.Key, Kind: vip.OnRealServer, Forward: vip.ForwardDirect, Masquerade: vip.MasqueradeNever}
	long := vip.RelayOf(vip.ProxySettings{IdleTimeout: 2 * time.Hour})
	target := &Target{}
	for want, f := range map[bool]vip.Frontend{false: f, true: real} {
		g := f
		g.Relay = long
		if !target.Same(&g, &g) || target.Same(&f, &g) != want {
			t.Errorf("%v: the same with another idle_timeout: %v", f.Kind, !want)
		}
	}
}
