package spec

import (
	"cmp"
	"net/netip"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/vip"
)

var cmpPrefixes = gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

// Each row adds a valid combination to a small service.
func TestBuildAccepts(t *testing.T) {
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	port := func(protocol vip.Protocol, first, last, target uint16) vip.Port {
		p := vip.Port{Protocol: protocol, Port: first, LastPort: last, TargetPort: target}
		p.Name = p.Key().String()
		return p
	}
	backend := func(port uint16, state vip.State) []vip.Backend {
		return []vip.Backend{{Address: netip.MustParseAddr("10.1.0.11"), Port: port, Weight: 1, State: state}}
	}
	check := func(c vip.HealthCheck) func(*vip.Service) {
		if c.Type != vip.CheckNone {
			c.Interval, c.FastInterval = cmp.Or(c.Interval, 2*time.Second), cmp.Or(c.FastInterval, 500*time.Millisecond)
			c.Timeout, c.Rise, c.Fall = cmp.Or(c.Timeout, time.Second), cmp.Or(c.Rise, 2), cmp.Or(c.Fall, 3)
		}
		return func(s *vip.Service) { s.Check = &c }
	}
	type row struct {
		what, doc string
		want      func(*vip.Service)
	}
	tests := []row{
		{"a range", `"ports": [{"port": "10000-10099"}]`, func(s *vip.Service) { s.Ports = []vip.Port{port(vip.TCP, 10000, 10099, 0)} }},
		{"ranges and ports that touch", `"ports": [{"port": "10-19"}, {"port": 20}, {"port": 9}, {"port": "10-19", "protocol": "udp"}]`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.TCP, 10, 19, 0), port(vip.TCP, 20, 0, 20), port(vip.TCP, 9, 0, 9), port(vip.UDP, 10, 19, 0)}
		}},
		{"all ports", `"ports": [{"port": "all", "protocol": "udp"}, {"port": "1-65535", "name": "x"}]`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.UDP, 1, 65535, 0), port(vip.TCP, 1, 65535, 0)}
			s.Ports[1].Name = "x"
		}},
		{"a range to one port", `"ports": [{"port": "10000-10099", "target_port": 80}], "backends": [{"address": "10.1.0.11", "port": 81}]`, func(s *vip.Service) {
			s.Ports, s.Backends = []vip.Port{port(vip.TCP, 10000, 10099, 80)}, backend(81, vip.Ready)
		}},
		{"sctp", `"ports": [{"port": 3868, "protocol": "sctp", "node_port": "auto"}, {"port": 3868}]`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.SCTP, 3868, 0, 3868), port(vip.TCP, 3868, 0, 3868)}
			s.Ports[0].NodePort.Auto = true
		}},
		{"direct routing", `"forward": "dr", "ports": [{"port": 80, "target_port": 80}], "masquerade": "never", "backends": [{"address": "10.1.0.11", "port": 80}]`, func(s *vip.Service) {
			s.Forward, s.Masquerade, s.Backends = vip.ForwardDirect, vip.MasqueradeNever, backend(80, vip.Ready)
		}},
		{"a tunnel for a range", `"forward": "tunnel", "ports": [{"port": "all"}], "backends": [{"address": "10.1.0.11"}]`, func(s *vip.Service) {
			s.Forward, s.Ports, s.Backends = vip.ForwardTunnel, []vip.Port{port(vip.TCP, 1, 65535, 0)}, backend(0, vip.Ready)
		}},
		{"one-packet", `"forward": "dr", "scheduler": "sh", "scheduler_flags": ["one-packet", "port"], "ports": [{"port": 53, "protocol": "udp"}]`, func(s *vip.Service) {
			s.Forward, s.Scheduler, s.OnePacket, s.SchedulerPort, s.Ports = vip.ForwardDirect, vip.SourceHash, true, true, []vip.Port{port(vip.UDP, 53, 0, 53)}
		}},
		{"local traffic", `"internal_traffic": "local", "external_traffic": "local", "ports": [{"port": 80, "node_port": 30080}], "health_check_node_port": 30081`, func(s *vip.Service) {
			s.InternalTraffic, s.ExternalTraffic, s.HealthPort.Number, s.Ports[0].NodePort.Number = vip.Local, vip.Local, 30081, 30080
		}},
		{"a health port like a udp node port", `"external_traffic": "local", "ports": [{"port": 53, "protocol": "udp", "node_port": 30080}], "health_check_node_port": 30080`, func(s *vip.Service) {
			s.ExternalTraffic, s.HealthPort.Number, s.Ports = vip.Local, 30080, []vip.Port{port(vip.UDP, 53, 0, 53)}
			s.Ports[0].NodePort.Number = 30080
		}},
		{"an automatic health port", `"external_traffic": "local", "health_check_node_port": "auto"`, func(s *vip.Service) {
			s.ExternalTraffic, s.HealthPort.Auto = vip.Local, true
		}},
		{"groups", `"groups": [{"name": "stable", "weight": 90, "backends": [{"address": "10.1.0.12"}]}, {"name": "canary", "backends": [{"address": "10.1.0.11"}]}, {"name": "none", "weight": 0}]`, func(s *vip.Service) {
			s.Groups = []vip.Group{{Name: "stable", Weight: 90}, {Name: "canary", Weight: 1}, {Name: "none"}}
			s.Backends = append(backend(0, vip.Ready), backend(0, vip.Ready)...)
			s.Backends[0].Group, s.Backends[1].Group, s.Backends[1].Address = "canary", "stable", netip.MustParseAddr("10.1.0.12")
		}},
		{"no health port", `"health_check_node_port": "off"`, func(*vip.Service) {}},
		{"zones", `"traffic_distribution": "same-zone"`, func(s *vip.Service) { s.Distribution = vip.PreferSameZone }},
		{"nodes", `"traffic_distribution": "same-node"`, func(s *vip.Service) { s.Distribution = vip.PreferSameNode }},
		{"source ranges", `"source_ranges": ["2001:db8::/32", "10.2.0.0/16", "192.0.2.7", "10.0.0.0/8", "10.2.0.0/16", "2001:db8::1", "192.0.2.7/32"]`, func(s *vip.Service) {
			s.SourceRanges = prefixes("10.0.0.0/8", "10.2.0.0/16", "192.0.2.7/32", "2001:db8::/32", "2001:db8::1/128")
		}},
		{"source ranges of the stated families", `"families": ["ipv6", "ipv4"], "source_ranges": ["::/0", "0.0.0.0/0"]`, func(s *vip.Service) {
			s.Families, s.SourceRanges = vip.FamiliesOf(vip.IPv6, vip.IPv4), prefixes("0.0.0.0/0", "::/0")
		}},
		{"hostnames", `"hostnames": ["shop.example.com", "db.vip.internal"]`, func(s *vip.Service) {
			s.Hostnames = vip.HostnamesOf("db.vip.internal", "shop.example.com")
		}},
		{"no hostnames", `"hostnames": []`, func(*vip.Service) {}},
		{"proxy protocol", `"proxy_protocol": "v2", "accept_proxy_from": ["10.2.0.0/16", "10.0.0.1", "10.2.0.0/16"]`, func(s *vip.Service) {
			s.Relay = vip.RelayOf(vip.ProxySettings{ProxyProtocol: vip.ProxyV2, AcceptProxyFrom: prefixes("10.0.0.1/32", "10.2.0.0/16")})
		}},
		{"proxy protocol of the tcp port", `"proxy_protocol": "v1", "ports": [{"port": 53}, {"port": 53, "protocol": "udp"}]`, func(s *vip.Service) {
			s.Relay, s.Ports = vip.RelayOf(vip.ProxySettings{ProxyProtocol: vip.ProxyV1}), []vip.Port{port(vip.TCP, 53, 0, 53), port(vip.UDP, 53, 0, 53)}
		}},
		{"ports by name", `"ports": [{"port": 80, "name": "http"}, {"port": 53, "protocol": "udp"}], "backends": [{"address": "10.1.0.11", "ports": ["http", "53/udp"]}]`, func(s *vip.Service) {
			s.Ports, s.Backends = []vip.Port{port(vip.TCP, 80, 0, 80), port(vip.UDP, 53, 0, 53)}, backend(0, vip.Ready)
			s.Ports[0].Name, s.Backends[0].Ports = "http", "53/udp http"
		}},
		{"one server with a number for each port", `"ports": [{"port": 80, "name": "http", "target_port": 8080}, {"port": 81, "name": "admin"}],
			"backends": [{"address": "10.1.0.11", "ports": ["http"]}, {"address": "10.1.0.11", "port": 8080, "ports": ["admin"]}]`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.TCP, 80, 0, 8080), port(vip.TCP, 81, 0, 81)}
			s.Ports[0].Name, s.Ports[1].Name = "http", "admin"
			s.Backends = append(backend(0, vip.Ready), backend(8080, vip.Ready)...)
			s.Backends[0].Ports, s.Backends[1].Ports = "http", "admin"
		}},
		{"direct routing to one port of two", `"forward": "dr", "ports": [{"port": 80, "name": "http"}, {"port": 443}], "backends": [{"address": "10.1.0.11", "port": 80, "ports": ["http"]}]`, func(s *vip.Service) {
			s.Forward, s.Ports, s.Backends = vip.ForwardDirect, []vip.Port{port(vip.TCP, 80, 0, 80), port(vip.TCP, 443, 0, 443)}, backend(80, vip.Ready)
			s.Ports[0].Name, s.Backends[0].Ports = "http", "http"
		}},
		{"hints", `"backends": [{"address": "10.1.0.11", "for_zones": ["zb", "za"], "for_nodes": ["n1"]}]`, func(s *vip.Service) {
			s.Backends = backend(0, vip.Ready)
			s.Backends[0].ForZones, s.Backends[0].ForNodes = "za zb", "n1"
		}},
		{"empty lists", `"ports": [{"port": 80}], "backends": [{"address": "10.1.0.11", "ports": [], "for_zones": []}]`, func(s *vip.Service) { s.Backends = backend(0, vip.Ready) }},
		{"a tcp check", `"health": {"type": "tcp"}`, check(vip.HealthCheck{Type: vip.CheckTCP})},
		{"a tcp check with a talk", `"health": {"type": "tcp", "send": "PING\r\n", "expect": "+PONG"}`, check(vip.HealthCheck{Type: vip.CheckTCP, Send: "PING\r\n", Expect: "+PONG"})},
		{"no check", `"health": {"type": "none"}`, check(vip.HealthCheck{Type: vip.CheckNone})},
		{"an http check", `"health": {"type": "http"}`, check(vip.HealthCheck{Type: vip.CheckHTTP, Method: "GET", Path: "/", Status: "200-399"})},
		{"everything of an https check", `"health": {"type": "https", "port": 8443, "interval": "10s", "fast_interval": "1s", "timeout": "5s", "rise": 1, "fall": 255, "method": "GET",
			"path": "/healthz?full=1", "host": "a.example:8443", "status": "200, 204-206,404", "body": "ok", "skip_verify": true}`,
			check(vip.HealthCheck{Type: vip.CheckHTTPS, Port: 8443, Interval: 10 * time.Second, FastInterval: time.Second, Timeout: 5 * time.Second, Rise: 1, Fall: 255,
				Method: "GET", Path: "/healthz?full=1", Host: "a.example:8443", Status: "200, 204-206,404", Body: "ok", SkipVerify: true})},
		{"a HEAD check", `"health": {"type": "http", "method": "HEAD"}`, check(vip.HealthCheck{Type: vip.CheckHTTP, Method: "HEAD", Path: "/", Status: "200-399"})},
		{"a grpc check", `"health": {"type": "grpc", "service": "shop.Cart", "host": "cart", "tls": true, "skip_verify": true}`,
			check(vip.HealthCheck{Type: vip.CheckGRPC, Service: "shop.Cart", Host: "cart", TLS: true, SkipVerify: true})},
		{"the limits of times", `"health": {"type": "tcp", "interval": "1h", "fast_interval": "1h", "timeout": "1m"}`,
			check(vip.HealthCheck{Type: vip.CheckTCP, Interval: time.Hour, FastInterval: time.Hour, Timeout: time.Minute})},
		{"a short interval is the fast one, too", `"health": {"type": "tcp", "interval": "100ms", "timeout": "100ms"}`,
			check(vip.HealthCheck{Type: vip.CheckTCP, Interval: 100 * time.Millisecond, FastInterval: 100 * time.Millisecond, Timeout: 100 * time.Millisecond})},
		{"a udp check of a mixed service", `"ports": [{"port": 80}, {"port": 53, "protocol": "udp"}], "health": {"type": "udp", "send": "x"}`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.TCP, 80, 0, 80), port(vip.UDP, 53, 0, 53)}
			check(vip.HealthCheck{Type: vip.CheckUDP, Send: "x"})(s)
		}},
		{"an exec check", `"ports": [{"port": 53, "protocol": "udp"}], "health": {"type": "exec", "command": ["/usr/lib/check", "", "-v"]}`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.UDP, 53, 0, 53)}
			check(vip.HealthCheck{Type: vip.CheckExec, Command: "/usr/lib/check\x00\x00-v"})(s)
		}},
		{"an http check of another port", `"ports": [{"port": "50-53", "protocol": "udp"}], "health": {"type": "http", "port": 8080}`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.UDP, 50, 53, 0)}
			check(vip.HealthCheck{Type: vip.CheckHTTP, Port: 8080, Method: "GET", Path: "/", Status: "200-399"})(s)
		}},
		{"a check of a range to one port", `"ports": [{"port": "50-53", "target_port": 80}], "health": {"type": "tcp"}`, func(s *vip.Service) {
			s.Ports = []vip.Port{port(vip.TCP, 50, 53, 80)}
			check(vip.HealthCheck{Type: vip.CheckTCP})(s)
		}},
		{"a check of a range with ports of backends", `"ports": [{"port": "50-53"}], "health": {"type": "tcp"}, "backends": [{"address": "10.1.0.11", "port": 81}]`, func(s *vip.Service) {
			s.Ports, s.Backends = []vip.Port{port(vip.TCP, 50, 53, 0)}, backend(81, vip.Ready)
			check(vip.HealthCheck{Type: vip.CheckTCP})(s)
		}},
		{"drain unhealthy ones", `"on_unhealthy": "drain"`, func(*vip.Service) {}},
		{"reset unhealthy ones", `"on_unhealthy": "reset"`, func(s *vip.Service) { s.ResetUnhealthy = true }},
		{"panic", `"panic_threshold": 50`, func(s *vip.Service) { s.PanicThreshold = 50 }},
		{"no panic", `"panic_threshold": 0`, func(*vip.Service) {}},
		{"slow start", `"slow_start": "30s"`, func(s *vip.Service) { s.SlowStart = 30 }},
		{"slow start of wlc", `"slow_start": "1h", "scheduler": "wlc"`, func(s *vip.Service) { s.SlowStart, s.Scheduler = 3600, vip.WeightedLeastConnection }},
		{"no slow start", `"slow_start": "0s", "scheduler": "mh"`, func(s *vip.Service) { s.Scheduler = vip.MaglevHash }},
		{"this host", `"forward": "host"`, func(s *vip.Service) {
			s.Forward, s.Backends = vip.ForwardHost, []vip.Backend{thisHost}
			check(vip.HealthCheck{Type: vip.CheckTCP})(s)
		}},
		{"this host without ports or a check", `"forward": "host", "ports": []`, func(s *vip.Service) {
			s.Forward, s.Backends, s.Ports = vip.ForwardHost, []vip.Backend{thisHost}, nil
			check(vip.HealthCheck{Type: vip.CheckNone})(s)
		}},
		{"this host with a check", `"forward": "host", "health": {"type": "exec", "command": ["/bin/true"]}, "vips": ["192.0.2.9"], "hostnames": ["db.example"]`, func(s *vip.Service) {
			s.Forward, s.Backends = vip.ForwardHost, []vip.Backend{thisHost}
			s.VIPs, s.Hostnames = []netip.Addr{netip.MustParseAddr("192.0.2.9")}, vip.HostnamesOf("db.example")
			check(vip.HealthCheck{Type: vip.CheckExec, Command: "/bin/true"})(s)
		}},
		{"a backup", `"backends": [{"address": "10.1.0.11", "backup": true}]`, func(s *vip.Service) {
			s.Backends = backend(0, vip.Ready)
			s.Backends[0].Backup = true
		}},
		{"terminating", `"backends": [{"address": "10.1.0.11", "state": "terminating"}]`, func(s *vip.Service) { s.Backends = backend(0, vip.Terminating) }},
	}
	for name, want := range map[string]vip.Scheduler{"sed": vip.ShortestExpectedDelay, "nq": vip.NeverQueue, "fo": vip.WeightedFailover, "dh": vip.DestinationHash} {
		tests = append(tests, row{name, `"scheduler": "` + name + `"`, func(s *vip.Service) { s.Scheduler = want }})
	}
	for _, test := range tests {
		doc := `{"name": "a", ` + test.doc + `}`
		if !strings.Contains(doc, `"ports"`) {
			doc = `{"name": "a", "ports": [{"port": 80}], ` + test.doc + `}`
		}
		got, problems := build(t, doc)
		if len(problems) > 0 {
			t.Errorf("%s: %v", test.what, problems)
			continue
		}
		want := vip.Service{
			Key: vip.ServiceKey{Namespace: "default", Name: "a"}, Source: "rest", Ports: []vip.Port{port(vip.TCP, 80, 0, 80)}, Backends: []vip.Backend{},
			Settings: vip.Settings{Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT, InternalTraffic: vip.Cluster, ExternalTraffic: vip.Cluster, Distribution: vip.DistributeAny,
				Masquerade: vip.MasqueradeAuto, DrainTimeout: time.Minute},
		}
		test.want(&want)
		if diff := gocmp.Diff(want, got, cmpAddrs, cmpPrefixes); diff != "" {
			t.Errorf("%s: %s", test.what, diff)
		}
	}
}

// Build refuses invalid ports of a spec that a program built. The decoder never sees those.
func TestBuildChecksPortsOfPrograms(t *testing.T) {
	for _, r := range []PortRange{{First: -1}, {First: 65536}, {Last: 5}, {First: 9, Last: 9}, {First: 9, Last: 8}, {First: 9, Last: 65536}, {First: -9, Last: 8}, {First: 9, Last: -8}} {
		s := Service{Name: "a", Ports: []Port{{Port: r}}}
		if _, problems := s.Build("rest", ""); len(problems) != 1 || problems[0].Field != "ports[0].port" {
			t.Errorf("%+v: %v", r, problems)
		}
	}
}
