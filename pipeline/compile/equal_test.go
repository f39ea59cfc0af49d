package compile

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func exampleFrontend() vip.Frontend {
	return vip.Frontend{
		Key:  vip.FrontendKey{Addr: addr("192.0.2.10"), Port: 80, Protocol: vip.TCP},
		Kind: vip.OnVIP, Service: vip.ServiceKey{Namespace: "n", Name: "s"}, Port: "http",
		Scheduler: vip.RoundRobin, SchedulerFallback: true, SchedulerPort: true, OnePacket: true, Forward: vip.ForwardNAT,
		Affinity: time.Second, Masquerade: vip.MasqueradeAuto,
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, DrainTimeout: time.Second, KeepsOwner: true, SourceLimits: vip.SourceLimits{MaxRatePerSource: 1}, SynProxy: true, Relay: &vip.ProxySettings{IdleTimeout: 2},
		Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:1"), Weight: 1, MaxConnections: 2, Leaving: vip.InstantOf(time.Unix(5, 0))}},
	}
}

var asked vip.Service

func exampleAllocation() vip.Allocation {
	return vip.Allocation{
		Asked: &asked, ServiceRev: 1, VIPs: []netip.Addr{addr("192.0.2.10")},
		Reserved: [2]bool{true, false},
		Pool:     "p", NodePorts: map[vip.PortKey]uint16{{Port: 1, Protocol: vip.TCP}: 30000}, Since: vip.InstantOf(time.Unix(5, 0)),
		Problems: []vip.Problem{{Code: "c"}},
	}
}

func exampleService() vip.Service {
	return vip.Service{
		Key: vip.ServiceKey{Namespace: "n", Name: "s"}, Source: "static", Origin: "f:1", Labels: map[string]string{"a": "b"},
		VIPs: []netip.Addr{addr("192.0.2.10")}, Preferred: []netip.Addr{addr("192.0.2.11")}, Ports: []vip.Port{{Port: 80}}, Backends: []vip.Backend{{Weight: 1}}, Groups: []vip.Group{{Name: "a"}}, Settings: vip.Settings{Pool: "p"},
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Relay: &vip.ProxySettings{IdleTimeout: 2},
		Check: &vip.HealthCheck{Type: vip.CheckTCP}, Hostnames: vip.HostnamesOf("shop.example.com"),
	}
}

func exampleHealth() vip.BackendHealth {
	return vip.BackendHealth{
		Backend: vip.BackendKey{Service: vip.ServiceKey{Namespace: "n", Name: "s"}, Address: addr("10.0.0.1")},
		Checks: []vip.CheckResult{{Ports: "http", Type: vip.CheckTCP, Port: 80, Health: vip.Unhealthy, Since: vip.InstantOf(time.Unix(5, 0)),
			Reason: "connect refused (3 of 3)", HeldUntil: 1}},
	}
}

func exampleCheck() vip.HealthCheck {
	return vip.HealthCheck{
		Type: vip.CheckHTTP, Port: 80, Interval: time.Second, FastInterval: time.Second, Timeout: time.Second, Rise: 1, Fall: 1,
		Method: "GET", Path: "/", Host: "h", Status: "200", Body: "b", TLS: true, SkipVerify: true, Service: "s", Send: "s", Expect: "e", Command: "/c",
	}
}

// A new field that is missing in the comparison would hide changes, so a change of any single field
// of an example must be detected.
func TestSameSeesEveryField(t *testing.T) {
	t.Run("frontend", func(t *testing.T) { everyField(t, exampleFrontend, SameFrontend) })
	t.Run("allocation", func(t *testing.T) { everyField(t, exampleAllocation, SameAllocation) })
	t.Run("service", func(t *testing.T) { everyField(t, exampleService, SameService) })
	t.Run("health", func(t *testing.T) { everyField(t, exampleHealth, SameHealth) })
	t.Run("health check of a service", func(t *testing.T) {
		everyField(t, exampleCheck, func(a, b vip.HealthCheck) bool { return SameService(vip.Service{Check: &a}, vip.Service{Check: &b}) })
	})
	t.Run("result", func(t *testing.T) {
		everyField(t, func() vip.CheckResult { return exampleHealth().Checks[0] }, func(a, b vip.CheckResult) bool {
			return SameHealth(vip.BackendHealth{Checks: []vip.CheckResult{a}}, vip.BackendHealth{Checks: []vip.CheckResult{b}})
		})
	})
	t.Run("relay", func(t *testing.T) {
		everyField(t, func() vip.ProxySettings {
			return vip.ProxySettings{ConnectTimeout: 1, IdleTimeout: 2, HalfCloseTimeout: 3, MaxConnections: 4, MaxQueue: 5, QueueTimeout: 6,
				ProxyProtocol: vip.ProxyV1, AcceptProxyFrom: exampleFrontend().SourceRanges}
		}, func(a, b vip.ProxySettings) bool { return vip.SameProxySettings(&a, &b) })
	})
	t.Run("endpoint", func(t *testing.T) {
		everyField(t, func() vip.Endpoint {
			e := exampleFrontend().Backends[0]
			e.Reset, e.Step = true, 1 // Reset only until drains; rows of the frontends table never have it
			return e
		}, func(a, b vip.Endpoint) bool {
			return SameEndpoints([]vip.Endpoint{a}, []vip.Endpoint{b})
		})
		expect.True(t, SameEndpoints(nil, []vip.Endpoint{}), "nil and empty differ")
	})
}

func everyField[V any](t *testing.T, example func() V, same func(a, b V) bool) {
	must.True(t, same(example(), example()), "an example is not the same as itself")
	for f := range reflect.TypeFor[V]().Fields() {
		changed := example()
		v := reflect.ValueOf(&changed).Elem().FieldByIndex(f.Index)
		must.False(t, v.IsZero(), "the example leaves %s zero", f.Name)
		v.SetZero()
		expect.False(t, same(example(), changed), "a change of %s goes unnoticed", f.Name)
	}
}

func TestSameAllocatesNothing(t *testing.T) {
	a, b := exampleFrontend(), exampleFrontend()
	expect.Equal(t, testing.AllocsPerRun(100, func() { SameFrontend(a, b) }), 0, "allocations for frontends")
	c, d := exampleService(), exampleService()
	expect.Equal(t, testing.AllocsPerRun(100, func() { SameService(c, d) }), 0, "allocations for services")
}
