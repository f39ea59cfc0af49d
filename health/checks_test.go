package health

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// service builds a service from ports such as "http:tcp:80>8080" and backends such as
// "10.0.0.1", "10.0.0.1:90", "10.0.0.1/http".
func service(name, ports string, backends ...string) vip.Service {
	s := vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: name}, Settings: vip.Settings{Forward: vip.ForwardNAT}}
	for word := range strings.FieldsSeq(ports) {
		var p vip.Port
		parts := strings.Split(word, ":")
		p.Name = parts[0]
		_ = p.Protocol.UnmarshalText([]byte(parts[1]))
		if _, err := fmt.Sscanf(parts[2], "%d>%d", &p.Port, &p.TargetPort); err != nil {
			p.TargetPort = p.Port
		}
		s.Ports = append(s.Ports, p)
	}
	for _, word := range backends {
		at, names, _ := strings.Cut(word, "/")
		b := vip.Backend{State: vip.Ready, Weight: 1, Ports: vip.Names(strings.ReplaceAll(names, ",", " "))}
		if ap, err := netip.ParseAddrPort(at); err == nil {
			b.Address, b.Port = ap.Addr(), ap.Port()
		} else {
			b.Address = netip.MustParseAddr(at)
		}
		s.Backends = append(s.Backends, b)
	}
	return s
}

// texts lists checks as "tcp 10.0.0.1:80 for http,https"; without "for", they decide for all ports.
func texts(checks []check) string {
	var out []string
	for _, c := range checks {
		word := c.target.String()
		if c.ports != "" {
			word += " for " + strings.Join(c.ports.List(), ",")
		}
		out = append(out, word)
	}
	return strings.Join(out, "; ")
}

func TestChecksOf(t *testing.T) {
	of := func(typ vip.CheckType, port uint16) func(*vip.Service) {
		return func(s *vip.Service) { c := defaultCheck; c.Type, c.Port = typ, port; s.Check = &c }
	}
	source := func(s *vip.Service) { s.Backends[0].Health = vip.Healthy }
	forward := func(f vip.Forward) func(*vip.Service) { return func(s *vip.Service) { s.Forward = f } }
	for _, test := range []struct {
		name, ports, backend string
		change               func(*vip.Service)
		want                 string
	}{
		{"default", "http:tcp:80", "10.0.0.1", nil, "tcp 10.0.0.1:80"},
		{"default, IPv6", "http:tcp:80", "2001:db8::1", nil, "tcp [2001:db8::1]:80"},
		{"default, target port", "http:tcp:80>8080", "10.0.0.1", nil, "tcp 10.0.0.1:8080"},
		{"default, port of the backend", "http:tcp:80 https:tcp:443", "10.0.0.1:9000", nil, "tcp 10.0.0.1:9000"},
		{"default, each port", "http:tcp:80 https:tcp:443", "10.0.0.1", nil, "tcp 10.0.0.1:80 for http; tcp 10.0.0.1:443 for https"},
		{"default, ports with one target", "a:tcp:80>8080 b:tcp:81>8080 c:tcp:82", "10.0.0.1", nil, "tcp 10.0.0.1:8080 for a,b; tcp 10.0.0.1:82 for c"},
		{"default, some of the ports", "http:tcp:80 https:tcp:443", "10.0.0.1/https", nil, "tcp 10.0.0.1:443"},
		{"default, with udp", "dns:tcp:53 dnsu:udp:53", "10.0.0.1", nil, "tcp 10.0.0.1:53 for dns"},
		{"default, udp only", "dns:udp:53", "10.0.0.1", nil, ""},
		{"default, direct routing", "http:tcp:80", "10.0.0.1", forward(vip.ForwardDirect), "tcp 10.0.0.1:80 by way of 10.96.0.1"},
		{"default, tunnel, IPv6", "http:tcp:80", "2001:db8::1", forward(vip.ForwardTunnel), "tcp [2001:db8::1]:80 by way of fd96::1"},
		{"default, direct routing, without a VIP", "http:tcp:80", "10.0.0.1", func(s *vip.Service) { forward(vip.ForwardDirect)(s); s.Key.Name = "bare" }, ""},
		{"exec, direct routing, without a VIP", "http:tcp:80", "10.0.0.1", func(s *vip.Service) {
			forward(vip.ForwardDirect)(s)
			s.Key.Name = "bare"
			of(vip.CheckExec, 0)(s)
		}, "exec 10.0.0.1:80"},
		{"exec, direct routing", "http:tcp:80", "10.0.0.1", func(s *vip.Service) { forward(vip.ForwardDirect)(s); of(vip.CheckExec, 0)(s) }, "exec 10.0.0.1:80"},
		{"http at a port, tunnel", "a:tcp:80", "10.0.0.1", func(s *vip.Service) { forward(vip.ForwardTunnel)(s); of(vip.CheckHTTP, 9)(s) }, "http 10.0.0.1:9 by way of 10.96.0.1"},
		{"this host", "http:tcp:80", "127.0.0.1", func(s *vip.Service) { s.Forward = vip.ForwardHost; of(vip.CheckHTTP, 0)(s) }, "http 10.96.0.1:80; http [fd96::1]:80"},
		{"this host, a port of the check, no ports", "", "127.0.0.1", func(s *vip.Service) { s.Forward = vip.ForwardHost; of(vip.CheckTCP, 9)(s) }, "tcp 10.96.0.1:9; tcp [fd96::1]:9"},
		{"this host, a command", "", "127.0.0.1", func(s *vip.Service) { s.Forward = vip.ForwardHost; of(vip.CheckExec, 0)(s) }, "exec 10.96.0.1:0"},
		{"this host, none", "http:tcp:80", "127.0.0.1", func(s *vip.Service) { s.Forward = vip.ForwardHost; of(vip.CheckNone, 0)(s) }, ""},
		{"default, source that checks", "http:tcp:80", "10.0.0.1", source, ""},
		{"none", "http:tcp:80", "10.0.0.1", of(vip.CheckNone, 0), ""},
		{"tcp, source that checks", "http:tcp:80", "10.0.0.1", func(s *vip.Service) { source(s); of(vip.CheckTCP, 0)(s) }, "tcp 10.0.0.1:80"},
		{"tcp, direct routing", "http:tcp:80", "10.0.0.1", func(s *vip.Service) { s.Forward = vip.ForwardDirect; of(vip.CheckTCP, 0)(s) }, "tcp 10.0.0.1:80 by way of 10.96.0.1"},
		{"tcp, with udp", "dns:tcp:53 dnsu:udp:53", "10.0.0.1", of(vip.CheckTCP, 0), "tcp 10.0.0.1:53"},
		{"tcp, two ports and udp", "a:tcp:1 b:tcp:2 c:udp:3", "10.0.0.1", of(vip.CheckTCP, 0), "tcp 10.0.0.1:1 for a,c; tcp 10.0.0.1:2 for b"},
		{"tcp at a port", "a:tcp:1 b:udp:2", "10.0.0.1", of(vip.CheckTCP, 9), "tcp 10.0.0.1:9"},
		{"http", "a:udp:1 b:tcp:2 c:tcp:3", "10.0.0.1", of(vip.CheckHTTP, 0), "http 10.0.0.1:2"},
		{"http, of a port that it serves", "b:tcp:2 c:tcp:3", "10.0.0.1/c", of(vip.CheckHTTP, 0), "http 10.0.0.1:3"},
		{"https at a port", "b:tcp:2", "10.0.0.1", of(vip.CheckHTTPS, 8443), "https 10.0.0.1:8443"},
		{"udp", "b:tcp:2 a:udp:1", "10.0.0.1", of(vip.CheckUDP, 0), "udp 10.0.0.1:1"},
		{"exec", "a:udp:1", "10.0.0.1", of(vip.CheckExec, 0), "exec 10.0.0.1:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := service("web", test.ports, test.backend)
			if test.change != nil {
				test.change(&s)
			}
			vips := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd96::1")}
			if s.Key.Name == "bare" {
				vips = []netip.Addr{}
			}
			expect.Equal(t, texts(checksOf(&s, &s.Backends[0], true, vips)), test.want)
			if got := checksOf(&s, &s.Backends[0], false, vips); s.Check == nil && len(got) > 0 {
				t.Errorf("without a default: %q", texts(got))
			}
		})
	}
}

// A dataplane without paths probes the backend's own address, and only if the service states a check.
func TestChecksWithoutPaths(t *testing.T) {
	for _, f := range []vip.Forward{vip.ForwardDirect, vip.ForwardTunnel} {
		s := service("web", "http:tcp:80", "10.0.0.1")
		s.Forward = f
		expect.Equal(t, texts(checksOf(&s, &s.Backends[0], true, nil)), "", "%s has the default check", f)
		s.Check = &defaultCheck
		expect.Equal(t, texts(checksOf(&s, &s.Backends[0], true, nil)), "tcp 10.0.0.1:80", "%s has the check", f)
	}
}

// The last failure of a backend is the newest of its checks, which the engine has.
func TestLastFailure(t *testing.T) {
	s := service("web", "http:tcp:80 https:tcp:443 admin:tcp:81", "10.0.0.1")
	of := func(t probe.Target) (at vip.Instant, why string) {
		switch t.Addr.Port() {
		case 80:
			return 5, "refused"
		case 443:
			return 7, "timeout"
		}
		return 0, ""
	}
	if at, why := (Rules{Default: true}).LastFailure(&s, &s.Backends[0], of); at != 7 || why != "timeout" {
		t.Errorf("%q at %d", why, at)
	}
	if at, why := (Rules{}).LastFailure(&s, &s.Backends[0], of); at != 0 || why != "" {
		t.Errorf("without a check: %q at %d", why, at)
	}
}
