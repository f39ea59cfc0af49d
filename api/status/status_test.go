package status

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/pipelinetest"
	"github.com/ironvip/ironvip/vip"
)

var noon = time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)

// statusOf returns the input of a service with granted and programmed vips, with changes.
func statusOf(s vip.Service, vips string, change ...func(*Input)) Input {
	return statusOn(compile.Node{Name: "n1", Zone: "za"}, s, vips, change...)
}

// statusOn is statusOf on a node. Every backend passes its health check.
func statusOn(node compile.Node, s vip.Service, vips string, change ...func(*Input)) Input {
	return statusSeen(node, s, vips, allHealthy, change...)
}

// statusSeen is statusOn with the health checks of each backend, by the last byte of its address.
func statusSeen(node compile.Node, s vip.Service, vips string, seen checksOf, change ...func(*Input)) Input {
	a := vip.Allocation{Asked: &s, ServiceRev: 5, Pool: "public-v4", Since: vip.InstantOf(noon), VIPs: addrs(strings.Fields(vips)...)}
	c := pipeline.Compiled{Service: &s, ServiceRev: 5}
	view := compile.View{Service: &s, Health: func(k vip.BackendKey) *vip.BackendHealth {
		last := k.Address.AsSlice()
		if checks := seen(last[len(last)-1]); len(checks) > 0 {
			return &vip.BackendHealth{Backend: k, Checks: checks}
		}
		return nil
	}}
	in := Input{View: view, Key: s.Key, ServiceRev: 5, Allocation: &a, Compiled: &c, Now: noon}
	frontends, refused := compile.Service(compile.Input{View: view, Allocation: &a, Node: node})
	c.Problems, c.NotHere = refused, node.RealServer && len(frontends) == 0
	for i, f := range frontends {
		rev := uint64(10 + i)
		row := &pipeline.FrontendRow{Value: f, Rev: rev}
		c.Frontends = append(c.Frontends, row)
		in.Frontends = append(in.Frontends, Frontend{Frontend: f, Rev: rev, Applied: &reconcile.AppliedFrontend{Tried: row}})
	}
	for _, do := range change {
		do(&in)
	}
	return in
}

// checksOf returns the results of a backend's checks by the last byte of its address.
type checksOf func(byte) []vip.CheckResult

// result returns a result that is 12 s old.
func result(h vip.Health, reason string) vip.CheckResult {
	return vip.CheckResult{Type: vip.CheckTCP, Port: 80, Health: h, Since: vip.InstantOf(noon.Add(-12 * time.Second)), Reason: reason}
}

func allHealthy(byte) []vip.CheckResult { return []vip.CheckResult{result(vip.Healthy, "")} }

// only returns results for one backend, and healthy for the others.
func only(backend byte, checks ...vip.CheckResult) checksOf {
	return func(b byte) []vip.CheckResult {
		if b == backend {
			return checks
		}
		return allHealthy(b)
	}
}

func fail(code string) func(*Input) {
	return func(in *Input) {
		in.Frontends[0].Applied.Problem = &vip.Problem{Code: code, Message: "no such file or directory"}
	}
}

// A refused newer version is among the problems of the service, and the last good version, which
// is served, keeps its state.
func TestRefusedInputIsShown(t *testing.T) {
	in := statusOf(service("web", []string{"10.0.0.1"}), "192.0.2.10")
	before := Of(in)
	in.Refused = []vip.Problem{{Code: vip.CodeInvalid, Place: "web.toml:4", Service: "web", Field: "port", Message: "unknown key"}}
	got := Of(in)
	if got.State != before.State || len(got.Problems) != len(before.Problems)+1 {
		t.Errorf("%s with %v, before %s with %v", got.State, got.Problems, before.State, before.Problems)
	}
	if text := strings.Join(got.Lines, "\n"); !strings.Contains(text, "web.toml:4") || !strings.Contains(text, "unknown key") {
		t.Error(text)
	}
}

func TestStatus(t *testing.T) {
	direct := func(s *vip.Service) { s.Forward = vip.ForwardDirect }
	near := func(s *vip.Service) {
		s.Distribution, s.Backends[0].Zone, s.Backends[1].Zone = vip.PreferSameZone, "za", "zb"
	}
	udp := func(s *vip.Service) { s.Ports[0].Protocol = vip.UDP }
	terminating := func(s *vip.Service) { s.Backends[0].State = vip.Terminating }
	ofPorts := func(first, second vip.Names) func(*vip.Service) {
		return func(s *vip.Service) {
			s.Ports[0].Name = "http"
			s.Ports = append(s.Ports, vip.Port{Name: "admin", Protocol: vip.TCP, Port: 81, TargetPort: 81})
			s.Backends[0].Ports, s.Backends[1].Ports = first, second
		}
	}
	two := []string{"10.0.0.1", "10.0.0.2"}
	weightZero := func(s *vip.Service) { s.Backends[1].Weight = 0 }
	drained := func(s *vip.Service) { s.Backends[1].State = vip.Drain }
	reason := func(r vip.Reason) func(*vip.Service) {
		return func(s *vip.Service) { s.Backends[1].Reason = r }
	}
	maint := func(in *Input) {
		in.Override = func(k vip.BackendKey) (vip.State, bool) { return vip.Maint, k.Address == addrs("10.0.0.2")[0] }
	}
	for _, tc := range []statusCase{{
		name: "all healthy", in: statusOf(service("web", two), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{
			"web is healthy: all of its 2 backends take new connections.",
			"192.0.2.1 was assigned from pool public-v4 on 2026-11-08 and is held by this service.",
			"It comes from source static, services.d/web.toml:1.",
		},
	}, {
		name: "names", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) {
			in.Names = []zone.Name{{Name: "web.default.svc.vip.internal", Kind: zone.Canonical}, {Name: "web.vip.internal", Kind: zone.Short}}
		}), want: Healthy, ready: 2, lines: []string{"Its DNS names are web.default.svc.vip.internal, web.vip.internal."},
	}, {
		name: "names of others", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) {
			in.Names = []zone.Name{{Name: "web.default.svc.vip.internal", Kind: zone.Canonical}, {Name: "web.vip.internal", Kind: zone.Short, Lost: true, Winner: key("old")},
				{Name: "shop.example.com", Kind: zone.Hostname, Lost: true, Winner: vip.ServiceKey{Namespace: "shop", Name: "web"}}, {Name: "svc.vip.internal", Kind: zone.Hostname, Lost: true}}
		}), want: Degraded, ready: 2, lines: []string{
			"web is degraded: a part of it is not served as requested.",
			"services.d/web.toml:1: name: web.vip.internal resolves to service old, which has the older lease. Hint: rename one of the two services, or use web.default.svc.vip.internal.",
			"services.d/web.toml:1: hostnames: shop.example.com resolves to service shop/web, which has the older lease. Hint: remove it from one of the two services.",
			"services.d/web.toml:1: hostnames: svc.vip.internal is a name that ironvip needs itself. Hint: use another name.",
			"Its DNS names are web.default.svc.vip.internal.",
		},
	}, {
		name: "undecided names", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) {
			in.Names = []zone.Name{{Name: "web.default.svc.vip.internal", Kind: zone.Canonical}, {Name: "shop.example.com", Kind: zone.Hostname, Lost: true, Winner: key("old"), Undecided: true},
				{Name: "www.example.com", Kind: zone.Hostname, Lost: true, Undecided: true}}
		}), want: Degraded, ready: 2, lines: []string{
			"web is degraded: a part of it is not served as requested.",
			"services.d/web.toml:1: hostnames: shop.example.com is not answered yet: service old had it before the restart, and not every source has been read. Hint: wait until every source is synced: ironvip source list.",
			"services.d/web.toml:1: hostnames: www.example.com is not answered yet: a service had it before the restart, and not every source has been read. Hint: wait until every source is synced: ironvip source list.",
			"Its DNS names are web.default.svc.vip.internal.",
		},
	}, {
		name: "one backend is enough", in: statusOf(service("web", two[:1]), "192.0.2.1"), want: Healthy, ready: 1,
		lines: []string{"web is healthy: its one backend takes new connections."},
	}, {
		name: "requested address", in: statusOf(service("web", two, on("", "192.0.2.1")), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{"192.0.2.1 was requested from pool public-v4 on 2026-11-08 and is held by this service."},
	}, {
		name: "operator's maintenance", in: statusOf(service("web", two), "192.0.2.1", maint), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: 1 of 2 backends takes new connections.",
			"Backend 10.0.0.2 takes no new connections: set to maint by an operator.",
		},
	}, {
		name: "drained by the source", in: statusOf(service("web", two, drained), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: set to drain by its source."},
	}, {
		name: "without heartbeats", in: statusOf(service("web", two, drained, reason(vip.NoHeartbeat(vip.InstantOf(noon.Add(-12*time.Second)), 10*time.Second))), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: no heartbeat for 12s (ttl 10s)."}, silent: []string{"by its source"},
	}, {
		name: "a critical check in Consul", in: statusOf(service("web", two, drained, reason(vip.ReasonText("Consul check critical: web: HTTP 500"))), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: Consul check critical: web: HTTP 500."}, silent: []string{"by its source"},
	}, {
		name: "an operator overrides the source's reason", in: statusOf(service("web", two, drained, reason(vip.ReasonText("x"))), "192.0.2.1", maint), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: set to maint by an operator."},
	}, {
		name: "weight 0", in: statusOf(service("web", two, weightZero), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: its weight is 0."},
	}, {
		name: "a group with weight 0", in: statusOf(service("web", two, func(s *vip.Service) {
			s.Groups, s.Backends[1].Group = []vip.Group{{Name: "canary"}}, "canary"
		}), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: the weight of its group canary is 0."},
	}, {
		name: "a family without backends", in: statusOf(service("web", two), "192.0.2.1 2001:db8::1"), want: Degraded, ready: 2,
		lines: []string{
			"web is degraded: a part of it is not served as requested.",
			"[2001:db8::1]:80/tcp refuses clients: no ipv6 backend is listed.",
		},
	}, {
		name: "no backends", in: statusOf(service("web", nil), "192.0.2.1"), want: Down,
		lines: []string{"web is down: it has no backends, so clients are refused."},
	}, {
		name: "no usable backends", in: statusOf(service("web", two[1:], func(s *vip.Service) { s.Backends[0].Weight = 0 }), "192.0.2.1"), want: Down,
		lines: []string{"web is down: its one backend takes no new connections, so clients are refused."},
	}, {
		name: "a program of this host fails", in: statusOf(service("lb", two[1:], func(s *vip.Service) {
			s.Forward, s.Backends[0].Weight = vip.ForwardHost, 0
		}), "192.0.2.1"), want: Down,
		lines: []string{"lb is down: the check of this host has not passed, so this host does not announce its VIPs."},
	}, {
		name: "the dataplane fails at all", in: statusOf(service("web", two), "192.0.2.1", fail(vip.CodeDataplane)), want: Down, ready: 2,
		lines: []string{
			"web is down: the dataplane can't be programmed.",
			"192.0.2.1:80/tcp: no such file or directory.",
		},
	}, {
		name: "somebody else keeps changing it, and it is repaired", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) {
			in.Frontends[0].Applied.Warning = &vip.Problem{Code: vip.CodeContested, Message: "somebody else keeps changing it"}
		}), want: Healthy, ready: 2,
	}, {
		name: "the dataplane fails at some", in: statusOf(service("web", two, port(443)), "192.0.2.1", fail(vip.CodeDataplane)), want: Degraded, ready: 2,
		lines: []string{"web is degraded: a part of it is not served as requested."},
	}, {
		name: "the dataplane supports none of it", in: statusOf(service("web", two), "192.0.2.1", fail(vip.CodeUnsupported)), want: Refused, ready: 2,
	}, {
		name: "unsupported", in: statusOf(service("web", two, unsupported), "192.0.2.1"), want: Refused, ready: 2,
		lines: []string{
			"web is refused: it requests something unsupported or taken, so none of it is served.",
			`services.d/web.toml:1: ports[1].protocol: this version does not support protocol "protocol(33)".`,
		},
	}, {
		name: "external local, none here", in: statusOf(service("web", two, local), "192.0.2.1"), want: Elsewhere, ready: 2,
		lines: []string{
			"web is elsewhere: external_traffic is local and its ready backends are on other nodes, so clients that come to this one are refused.",
			"192.0.2.1:80/tcp refuses clients: no backend on this node, and external_traffic is local.",
		},
	}, {
		name: "external local, one here drains", in: statusOf(service("web", two, local, onNode(1, "n1"), drained), "192.0.2.1"), want: Elsewhere, ready: 1,
		lines: []string{
			"web is elsewhere: external_traffic is local and its ready backends are on other nodes, so clients that come to this one are refused.",
			"192.0.2.1:80/tcp refuses clients: no backend on this node takes new connections, and external_traffic is local.",
		},
	}, {
		name: "external local, none ready anywhere", in: statusOf(service("web", two[1:], local, func(s *vip.Service) { s.Backends[0].State = vip.Drain }), "192.0.2.1"), want: Down,
		lines: []string{"web is down: its one backend takes no new connections, so clients are refused."},
	}, {
		name: "external local, none here of one family and none ready of the other", in: statusOf(service("web", two, local), "192.0.2.1 2001:db8::1"), want: Down, ready: 2,
		lines: []string{
			"web is down: no backend that its clients may use takes new connections, so they are refused.",
			"192.0.2.1:80/tcp refuses clients: no backend on this node, and external_traffic is local.",
			"[2001:db8::1]:80/tcp refuses clients: no ipv6 backend is listed.",
		},
	}, {
		name: "external local, none here, and the dataplane fails", in: statusOf(service("web", two, local), "192.0.2.1", fail(vip.CodeDataplane)), want: Down, ready: 2,
		lines: []string{"web is down: the dataplane can't be programmed."},
	}, {
		name: "external local, none here, and clients inside are not supported", in: statusOf(service("web", two, func(s *vip.Service) { s.ExternalTraffic = vip.Local }), "192.0.2.1", func(in *Input) {
			in.Frontends[1].Applied.Problem = &vip.Problem{Code: vip.CodeUnsupported, Message: "not supported"}
		}), want: Down, ready: 2,
		lines: []string{"web is down: the dataplane doesn't support a part of it and the rest has no backend here."},
	}, {
		name: "external local, none here, and something is not granted", in: statusOf(service("web", two, local), "192.0.2.1", func(in *Input) {
			in.Compiled.Problems = []vip.Problem{{Code: vip.CodePortTaken, Service: "web", Message: "node port 32000/tcp is held by db"}}
		}), want: Degraded, ready: 2,
		lines: []string{"web is degraded: a part of it is not served as requested.", "node port 32000/tcp is held by db."},
	}, {
		name: "internal local, none here", in: statusOf(service("web", two, func(s *vip.Service) { s.InternalTraffic = vip.Local }), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{
			"web is healthy: all of its 2 backends take new connections.",
			"192.0.2.1:80/tcp+internal refuses clients: no backend on this node, and internal_traffic is local.",
		},
	}, {
		name: "external local, some here", in: statusOf(service("web", two, local, onNode(1, "n1")), "192.0.2.1", func(in *Input) {
			in.Compiled.HealthPort, in.Compiled.LocalReady = 32000, 1
		}), want: Healthy, ready: 2,
		lines: []string{
			"web is healthy: all of its 2 backends take new connections.",
			"192.0.2.1:80/tcp sends clients to 1 of 2 backends: external_traffic is local.",
			"Health checks of this node are answered on port 32000: 1 ready backend here.",
		},
	}, {
		name: "idle ones of udp", in: statusOf(service("web", two, udp, drained), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{"web is degraded: 1 of 2 backends takes new connections."}, silent: []string{"sends clients", "refuses clients"},
	}, {
		name: "idle ones of udp, local", in: statusOf(service("web", two, udp, local, onNode(1, "n1"), drained), "192.0.2.1"), want: Elsewhere, ready: 1,
		lines: []string{"192.0.2.1:80/udp refuses clients: no backend on this node takes new connections, and external_traffic is local."},
	}, {
		name: "near ones", in: statusOf(service("web", two, near), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{
			"web is healthy: all of its 2 backends take new connections.",
			"192.0.2.1:80/tcp sends clients to 1 of 2 backends: traffic_distribution is same-zone.",
		},
	}, {
		name: "meant for clients here", in: statusOf(service("web", two, near, func(s *vip.Service) { s.Backends[0].ForZones, s.Backends[1].ForZones = "zb", "za zc" }), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{
			"web is healthy: all of its 2 backends take new connections.",
			"192.0.2.1:80/tcp sends clients to 1 of 2 backends: the others are for clients elsewhere (for_zones, for_nodes).",
		},
	}, {
		name: "each port has its backend", in: statusOf(service("web", two, ofPorts("http", "admin")), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{"web is healthy: all of its 2 backends take new connections."}, silent: []string{"sends clients", "refuses clients"},
	}, {
		name: "a port without a backend", in: statusOf(service("web", two, ofPorts("http", "http")), "192.0.2.1"), want: Degraded, ready: 2,
		lines: []string{
			"web is degraded: a part of it is not served as requested.",
			"192.0.2.1:81/tcp refuses clients: no ipv4 backend for port admin is listed.",
		},
	}, {
		name: "a port whose backend is drained", in: statusOf(service("web", two, ofPorts("http", "admin"), drained), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: 1 of 2 backends takes new connections.",
			"192.0.2.1:81/tcp refuses clients: no ipv4 backend for port admin takes new connections.",
		},
	}, {
		name: "one port is served elsewhere, the other by nobody", in: statusOf(service("web", two, ofPorts("http", "http"), local, func(s *vip.Service) { s.InternalTraffic = vip.Local }), "192.0.2.1"),
		want: Down, ready: 2, lines: []string{"192.0.2.1:81/tcp refuses clients: no ipv4 backend for port admin is listed."},
	}, {
		name: "assigned", in: statusOf(service("web", two, func(s *vip.Service) { s.Assigned, s.VIPs, s.Source = true, addrs("192.0.2.1"), "kubernetes" }), "192.0.2.1"), want: Healthy, ready: 2,
		lines: []string{"192.0.2.1 was assigned by source kubernetes from pool public-v4 on 2026-11-08 and is held by this service."},
	}, {
		name: "terminating ones stand in", in: statusOf(service("web", two[1:], terminating), "192.0.2.1"), want: Degraded, ready: 0,
		lines: []string{
			"web is degraded: no backend is ready and healthy; others take new connections in their place.",
			"Backend 10.0.0.2 is terminating and takes new connections because no other does.",
		},
	}, {
		name: "terminating beside ready", in: statusOf(service("web", two, func(s *vip.Service) { s.Backends[1].State = vip.Terminating }), "192.0.2.1"), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: 1 of 2 backends takes new connections.",
			"Backend 10.0.0.2 takes no new connections: set to terminating by its source.",
		},
	}, {
		name: "a real server without a part", in: statusOn(compile.Node{RealServer: true}, service("web", two, direct), "192.0.2.1"), want: Elsewhere, ready: 2,
		lines: []string{"web is elsewhere: this host is a real server without a backend of it."},
	}, {
		name: "outside of the scope", in: statusOf(service("web", two, drained, func(s *vip.Service) { s.NotHere = true }), ""), want: Elsewhere, ready: 1,
		lines: []string{"web is elsewhere: not served by this host (scope): outside of dataplane.namespaces or dataplane.labels."},
	}, {
		name: "a real server takes whom a director sends", in: statusOn(compile.Node{RealServer: true, Addrs: addrs("10.0.0.2")}, service("web", two, direct, drained), "192.0.2.1"),
		want: Degraded, ready: 1,
		lines: []string{"web is degraded: 1 of 2 backends takes new connections."},
	}, {
		name: "not answered yet", in: statusOf(service("web", two), "", func(in *Input) { in.Allocation, in.Compiled = nil, nil }), want: Pending, ready: 2,
		lines: []string{"web is pending: it waits for an address."},
	}, {
		name: "not compiled yet, and a problem already", in: statusOf(service("web", two), "", func(in *Input) {
			in.Compiled = nil
			in.Allocation.Problems = []vip.Problem{{Code: vip.CodePoolFull, Message: "pool p is full", Hint: "add a range to it"}}
		}), want: Pending, ready: 2,
		lines: []string{"web is pending: no address that it may use is available.", "pool p is full. Hint: add a range to it."},
	}, {
		name: "newer than what was refused", in: statusOf(service("web", two), "192.0.2.1", fail(vip.CodeUnsupported), func(in *Input) { in.ServiceRev = 6 }), want: Pending, ready: 2,
		lines: []string{"web is pending: its newest version is being compiled."},
	}, {
		name: "newer than compiled", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) { in.ServiceRev = 6 }), want: Pending, ready: 2,
		lines: []string{"web is pending: its newest version is being compiled."},
	}, {
		name: "not programmed yet", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) { in.Frontends[0].Applied = nil }), want: Pending, ready: 2,
		lines: []string{"web is pending: the dataplane is being programmed."},
	}, {
		name: "served, but not at the address asked for", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) {
			in.Compiled.Problems = []vip.Problem{{Code: vip.CodeAddressTaken, Service: "web", Message: "192.0.2.9 is held by db"}}
		}), want: Degraded, ready: 2,
		lines: []string{"web is degraded: a part of it is not served as requested.", "192.0.2.9 is held by db."},
	}, {
		name: "removed", in: statusOf(service("web", two), "192.0.2.1", func(in *Input) {
			in.Service, in.Allocation, in.Compiled = nil, nil, nil
			in.Frontends[0].Frontend.Backends[0].Leaving = vip.InstantOf(noon.Add(42 * time.Second))
		}), want: Draining,
		lines: []string{
			"web is draining: it was removed and its open connections drain.",
			"10.0.0.1:80 drains from 192.0.2.1:80/tcp: open connections may continue for 42s.",
		},
	}, {
		name: "removed and gone", in: Input{Key: key("web")}, want: Draining,
		lines: []string{"web is draining: it was removed and nothing of it is left."},
	}} {
		t.Run(tc.name, tc.check)
	}
}

// statusCase is a status with its explanation.
type statusCase struct {
	name   string
	in     Input
	want   State
	ready  int
	lines  []string // required lines, the first one first
	silent []string // texts that no line contains
}

func (tc *statusCase) check(t *testing.T) {
	got := Of(tc.in)
	if got.State != tc.want || got.Ready != tc.ready {
		t.Errorf("%s with %d ready, want %s with %d", got.State, got.Ready, tc.want, tc.ready)
	}
	for i, line := range tc.lines {
		if at := slices.Index(got.Lines, line); at < 0 || i == 0 && at > 0 && strings.Contains(line, " is "+string(tc.want)) {
			t.Errorf("missing or not first: %q in\n%s", line, strings.Join(got.Lines, "\n"))
		}
	}
	for _, words := range tc.silent {
		text := strings.Join(got.Lines, "\n")
		expect.False(t, strings.Contains(text, words), "%q in\n%s", words, text)
	}
	for _, p := range got.Problems {
		expect.Equal(t, p.Service, "web", "problem %+v names no service", p)
	}
}

// The sample services.
var (
	key         = pipelinetest.Key
	addrs       = pipelinetest.Addrs
	service     = pipelinetest.Service
	protocol    = pipelinetest.Protocol
	port        = pipelinetest.Port
	nodePort    = pipelinetest.NodePort
	on          = pipelinetest.On
	hostAddrs   = pipelinetest.HostAddrs
	unsupported = pipelinetest.Unsupported
	local       = pipelinetest.Local
	onNode      = pipelinetest.OnNode
)
