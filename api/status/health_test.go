package status

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/vip"
)

// The observations of health checks and sources decide a backend's state together with its
// configuration, and the sentences keep the two apart.
func TestStatusOfHealth(t *testing.T) {
	one, two, three := []string{"10.0.0.1"}, []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	seen := func(s vip.Service, seen checksOf, change ...func(*Input)) Input {
		return statusSeen(compile.Node{Name: "n1", Zone: "za"}, s, "192.0.2.1", seen, change...)
	}
	all := func(checks ...vip.CheckResult) checksOf { return func(byte) []vip.CheckResult { return checks } }
	none := all()
	pending, refused := result(vip.Unknown, ""), result(vip.Unhealthy, "connect refused (3 of 3)")
	held := result(vip.Healthy, "timeout (3 of 3)")
	held.HeldUntil = vip.InstantOf(noon.Add(18 * time.Second))
	atAdmin, atHTTP := refused, result(vip.Healthy, "")
	atAdmin.Ports, atHTTP.Ports = "admin", "http"
	ports := func(s *vip.Service) {
		s.Ports[0].Name = "http"
		s.Ports = append(s.Ports, vip.Port{Name: "admin", Protocol: vip.TCP, Port: 81, TargetPort: 81})
	}
	observed := func(i int, h vip.Health, why string) func(*vip.Service) {
		return func(s *vip.Service) { s.Backends[i].Health, s.Backends[i].Reason = h, vip.ReasonText(why) }
	}
	bySource := func(s *vip.Service) {
		for i := range s.Backends {
			s.Backends[i].Health = vip.Healthy
		}
	}
	backup := func(i int) func(*vip.Service) { return func(s *vip.Service) { s.Backends[i].Backup = true } }
	panics := func(s *vip.Service) { s.PanicThreshold = 60 }
	slow := func(s *vip.Service) { s.SlowStart = 45 }
	udp := protocol(vip.UDP)
	for _, tc := range []statusCase{{
		name: "no check", in: seen(service("web", two), none), want: Unchecked, ready: 2,
		lines: []string{"web is unchecked: all of its 2 backends take new connections; none of them has a health check."},
	}, {
		name: "no check of the only one", in: seen(service("web", one), none), want: Unchecked, ready: 1,
		lines: []string{"web is unchecked: its one backend takes new connections; it has no health check."},
	}, {
		name: "no check of one", in: seen(service("web", two), only(2)), want: Unchecked, ready: 2,
		lines: []string{"web is unchecked: all of its 2 backends take new connections; 1 of them has no health check."},
	}, {
		name: "the first probe is pending", in: seen(service("web", two), all(pending)), want: Unchecked, ready: 2,
		lines:  []string{"web is unchecked: all of its 2 backends take new connections; the first health check of all of them is pending."},
		silent: []string{"is unknown"},
	}, {
		name: "the first probe of the only one is pending", in: seen(service("web", one), all(pending)), want: Unchecked, ready: 1,
		lines: []string{"web is unchecked: its one backend takes new connections; the first health check of it is pending."},
	}, {
		name: "one pending, one without a check", in: seen(service("web", three), func(b byte) []vip.CheckResult {
			return map[byte][]vip.CheckResult{1: {pending}, 3: allHealthy(3)}[b]
		}), want: Unchecked, ready: 3,
		lines: []string{"web is unchecked: all of its 3 backends take new connections; the first health check of 1 of them is pending; 1 of them has no health check."},
	}, {
		name: "a check that can't run", in: seen(service("web", two), only(2, result(vip.Unknown, "exec checks are not allowed"))), want: Unchecked, ready: 2,
		lines: []string{
			"web is unchecked: all of its 2 backends take new connections; the health of 1 of them is unknown.",
			"The health of backend 10.0.0.2 is unknown: exec checks are not allowed.",
		},
	}, {
		name: "healthy by the source", in: seen(service("web", two, bySource), none), want: Healthy, ready: 2,
	}, {
		name: "healthy by the source, and a first probe is pending", in: seen(service("web", two, bySource), only(1, pending)), want: Unchecked, ready: 2,
	}, {
		name: "one unhealthy", in: seen(service("web", two), only(2, refused)), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: 1 of 2 backends takes new connections.",
			"Backend 10.0.0.2 has been unhealthy for 12s: tcp check: connect refused (3 of 3).",
		},
	}, {
		name: "unhealthy by the source", in: seen(service("web", two, observed(1, vip.Unhealthy, "Consul check critical: web: HTTP 500")), allHealthy), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 is unhealthy: Consul check critical: web: HTTP 500."},
	}, {
		name: "unhealthy by the source, which gives no reason", in: seen(service("web", two, observed(1, vip.Unhealthy, "")), none), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 is unhealthy: its source says so."},
	}, {
		name: "an unhealthy one in maintenance", in: seen(service("web", two), only(2, refused), func(in *Input) {
			in.Override = func(k vip.BackendKey) (vip.State, bool) { return vip.Maint, k.Address == addrs("10.0.0.2")[0] }
		}), want: Degraded, ready: 1,
		lines: []string{"Backend 10.0.0.2 takes no new connections: set to maint by an operator."}, silent: []string{"unhealthy"},
	}, {
		name: "all unhealthy", in: seen(service("web", two), all(refused)), want: Down,
		lines: []string{
			"web is down: none of its 2 backends takes new connections, so clients are refused.",
			"Backend 10.0.0.1 has been unhealthy for 12s: tcp check: connect refused (3 of 3).",
			"Backend 10.0.0.2 has been unhealthy for 12s: tcp check: connect refused (3 of 3).",
		},
	}, {
		name: "one unhealthy at one port", in: seen(service("web", two, ports), only(2, atAdmin, atHTTP)), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: 1 of 2 backends takes new connections.",
			"Backend 10.0.0.2 has been unhealthy at admin for 12s: tcp check: connect refused (3 of 3).",
		},
		silent: []string{"refuses clients", "sends clients"},
	}, {
		name: "all unhealthy at one port", in: seen(service("web", two, ports), all(atAdmin, atHTTP)), want: Degraded,
		lines: []string{
			"web is degraded: no backend is healthy at all of its ports.",
			"192.0.2.1:81/tcp refuses clients: no ipv4 backend takes new connections.",
		},
	}, {
		name: "all unhealthy, panic", in: seen(service("web", two, panics), all(refused)), want: Degraded,
		lines: []string{
			"web is degraded: fewer than 60% of its backends are healthy, so unhealthy ones take new connections, too (panic mode).",
			"Backend 10.0.0.1 has been unhealthy for 12s: tcp check: connect refused (3 of 3).",
			"192.0.2.1:80/tcp sends clients to unhealthy backends, too: fewer than 60% are healthy (panic_threshold).",
		},
	}, {
		name: "half unhealthy, panic", in: seen(service("web", two, panics), only(2, refused)), want: Degraded, ready: 1,
		lines: []string{"192.0.2.1:80/tcp sends clients to unhealthy backends, too: fewer than 60% are healthy (panic_threshold)."},
	}, {
		name: "above the panic threshold", in: seen(service("web", three, panics), only(2, refused)), want: Degraded, ready: 2,
		silent: []string{"panic_threshold"},
	}, {
		name: "held", in: seen(service("web", two), all(held)), want: Degraded, ready: 2,
		lines: []string{
			"web is degraded: all of its 2 backends are unhealthy, with new connections until 2026-11-08T12:00:18Z, because all health checks of this host failed at once at 2026-11-08T11:59:48Z.",
			"Backend 10.0.0.1 has failed its tcp check for 12s (timeout (3 of 3)) and still takes new connections for 18s. Check this host's network.",
		},
	}, {
		name: "one held", in: seen(service("web", two), only(2, held)), want: Degraded, ready: 2,
		lines: []string{"web is degraded: 1 of its 2 backends is unhealthy, with new connections until 2026-11-08T12:00:18Z, because all health checks of this host failed at once at 2026-11-08T11:59:48Z."},
	}, {
		name: "a backup waits", in: seen(service("web", two, backup(1)), allHealthy), want: Healthy, ready: 2,
		lines:  []string{"web is healthy: its one backend takes new connections; its backup waits."},
		silent: []string{"sends clients", "no other does"},
	}, {
		name: "a backup of udp waits", in: seen(service("web", two, udp, backup(1)), allHealthy), want: Healthy, ready: 2,
		lines:  []string{"web is healthy: its one backend takes new connections; its backup waits."},
		silent: []string{"sends clients", "no other does"},
	}, {
		name: "a backup serves", in: seen(service("web", two, backup(1)), only(1, refused)), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: its one backend is not usable; its backup takes new connections.",
			"Backend 10.0.0.1 has been unhealthy for 12s: tcp check: connect refused (3 of 3).",
			"Backend 10.0.0.2 is a backup and takes new connections because no other does.",
		},
	}, {
		name: "a backup waits, another one and a backend fail", in: seen(service("web", []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}, backup(2), backup(3)), func(b byte) []vip.CheckResult {
			return map[byte][]vip.CheckResult{1: {refused}, 2: allHealthy(2), 3: allHealthy(3), 4: {refused}}[b]
		}), want: Degraded, ready: 2,
		lines: []string{"web is degraded: 1 of 2 backends takes new connections; 1 of its 2 backups waits."},
	}, {
		name: "only a backup fails", in: seen(service("web", three, backup(2)), only(3, refused)), want: Degraded, ready: 2,
		lines: []string{"web is degraded: all of its 2 backends take new connections; its backup is not usable."},
	}, {
		name: "all but the backups fail", in: seen(service("web", three, backup(1), backup(2)), only(1, refused)), want: Degraded, ready: 2,
		lines: []string{"web is degraded: its one backend is not usable; its 2 backups take new connections."},
	}, {
		name: "all are backups", in: seen(service("web", two, backup(0), backup(1)), only(1, refused)), want: Degraded, ready: 1,
		lines: []string{"web is degraded: 1 of 2 backends takes new connections."}, silent: []string{"is a backup"},
	}, {
		name: "local to an unhealthy one here", in: seen(service("web", two, local, onNode(0, "n1"), onNode(1, "n2")), only(1, refused)), want: Elsewhere, ready: 1,
		lines: []string{"192.0.2.1:80/tcp refuses clients: no backend on this node takes new connections, and external_traffic is local."},
	}, {
		name: "one starts slowly", in: seen(service("web", three, slow), allHealthy, func(in *Input) {
			for i := range in.Frontends {
				in.Frontends[i].Frontend.Backends[1].Step = 3
			}
		}), want: Healthy, ready: 3,
		lines:  []string{"Backend 10.0.0.2 has 30% of its weight: it has begun to take new connections (slow_start 45s)."},
		silent: []string{"Backend 10.0.0.1", "Backend 10.0.0.3"},
	}, {
		name: "one ejected by connections", in: seen(service("web", two), allHealthy, func(in *Input) {
			in.Passive = func(k vip.PassiveKey) *vip.PassiveHealth {
				if k.Addr.Addr().String() != "10.0.0.2" {
					return nil
				}
				return &vip.PassiveHealth{PassiveKey: k, Health: vip.Ejected, Since: vip.InstantOf(in.Now.Add(-12 * time.Second)),
					Until: vip.InstantOf(in.Now.Add(1500 * time.Millisecond)), Reason: "connect: connection refused (4 times)"}
			}
		}), want: Degraded, ready: 1,
		lines: []string{
			"web is degraded: 1 of 2 backends takes new connections.",
			"Backend 10.0.0.2 has been ejected for 12s: connections of clients to 10.0.0.2:80 failed: connect: connection refused (4 times). A client tests it in 1.5s.",
		},
	}} {
		t.Run(tc.name, tc.check)
	}
}

// The time since a change of health never is negative, whatever the clocks.
func TestSinceOfTheFuture(t *testing.T) {
	late := result(vip.Unhealthy, "timeout (3 of 3)")
	late.Since = vip.InstantOf(noon.Add(time.Hour))
	in := statusSeen(compile.Node{}, service("web", []string{"10.0.0.1"}), "192.0.2.1", func(byte) []vip.CheckResult { return []vip.CheckResult{late} })
	tc := statusCase{in: in, want: Down, lines: []string{"Backend 10.0.0.1 has been unhealthy for 0s: tcp check: timeout (3 of 3)."}}
	tc.check(t)
}
