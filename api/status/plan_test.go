package status

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func planned(s vip.Service, vips string) Planned {
	a := vip.Allocation{Asked: &s, VIPs: addrs(strings.Fields(vips)...)}
	if vips != "" {
		a.Pool = "public-v4"
	}
	return Planned{Service: s, Allocation: a}
}

// show formats a plan as the CLI does: "~ service web: detail (impact)".
func show(p v1.Plan) (lines []string) {
	for _, c := range p.Changes {
		sign := map[string]string{v1.ActionAdd: "+", v1.ActionChange: "~", v1.ActionRemove: "-"}[c.Action]
		line := fmt.Sprintf("%s %s %s", sign, c.Kind, c.Name)
		if c.Detail != "" {
			line += ": " + c.Detail
		}
		if c.Impact != "" {
			line += " (" + c.Impact + ")"
		}
		lines = append(lines, line)
	}
	return append(lines, fmt.Sprintf("Plan: %d add, %d change, %d remove", p.Add, p.Change, p.Remove))
}

func TestPlan(t *testing.T) {
	one, two := []string{"10.1.0.11"}, []string{"10.1.0.11", "10.1.0.13"}
	maglev := func(s *vip.Service) { s.Scheduler = vip.MaglevHash }
	internalLocal := func(s *vip.Service) { s.InternalTraffic = vip.Local }
	externalLocal := func(s *vip.Service) { s.ExternalTraffic = vip.Local }
	sameZone := func(s *vip.Service) { s.Distribution = vip.PreferSameZone }
	for _, tc := range []struct {
		name              string
		present, proposed []Planned
		want              []string
		codes             []string
	}{{
		name:    "nothing",
		present: []Planned{planned(service("web", two), "192.0.2.10")}, proposed: []Planned{planned(service("web", two), "192.0.2.10")},
		want: []string{"Plan: 0 add, 0 change, 0 remove"},
	}, {
		name:    "add, change and remove",
		present: []Planned{planned(service("web", two), "192.0.2.10"), planned(service("old", one, port(443)), "192.0.2.11")},
		proposed: []Planned{
			planned(service("web", one, maglev), "192.0.2.10"),
			planned(service("api", two, func(s *vip.Service) { s.Ports[0].Port = 443 }), "192.0.2.12"),
		},
		want: []string{
			"+ service api: 192.0.2.12 (new, from public-v4) 443/tcp, 2 backends",
			"- service old: 192.0.2.11 80,443/tcp, 1 backend (open connections drain up to 1m)",
			"~ service web: scheduler wrr -> mh (open connections keep their backend)",
			"- backend web/10.1.0.13 (open connections drain up to 1m)",
			"Plan: 1 add, 1 change, 2 remove",
		},
	}, {
		name:    "backends",
		present: []Planned{planned(service("web", two), "192.0.2.10")},
		proposed: []Planned{planned(service("web", nil, func(s *vip.Service) {
			s.Backends = []vip.Backend{
				{Address: addrs("10.1.0.11")[0], Port: 8080, Weight: 5, State: vip.Drain},
				{Address: addrs("10.1.0.13")[0], Weight: 50, State: vip.Maint, Backup: true, Zone: "a", Ports: "80/tcp", ForZones: "a b", ForNodes: "n1"},
				{Address: addrs("10.1.0.14")[0], Weight: 1, Ports: "80/tcp 81/tcp", Backup: true},
			}
		}), "192.0.2.10")},
		want: []string{
			"- backend web/10.1.0.11 (open connections drain up to 1m)",
			"+ backend web/10.1.0.11:8080: weight 5, drain",
			"~ backend web/10.1.0.13: backup none -> true, for_nodes none -> n1, for_zones none -> a b, ports none -> 80/tcp, state ready -> maint, weight 1 -> 50, zone none -> a",
			"+ backend web/10.1.0.14: weight 1, backup, for 80/tcp, 81/tcp",
			"Plan: 2 add, 1 change, 1 remove",
		},
	}, {
		name:     "ports",
		present:  []Planned{planned(service("web", one, port(443), port(8080)), "192.0.2.10")},
		proposed: []Planned{planned(service("web", one, port(444), nodePort, func(s *vip.Service) { s.Ports[0].TargetPort = 8000 }, port(443)), "192.0.2.10")},
		want: []string{
			"~ service web: ports[80/tcp].target_port 80 -> 8000, ports[80/tcp].node_port off -> auto, ports[444/tcp] none -> target_port 444, " +
				"ports[8080/tcp] target_port 8080 -> none (open connections drain up to 1m)",
			"Plan: 0 add, 1 change, 0 remove",
		},
	}, {
		name:     "ranges of ports",
		present:  []Planned{planned(service("web", one, onlyRanges(100, 199, 0), onlyRanges(300, 399, 0)), "192.0.2.10")},
		proposed: []Planned{planned(service("web", one, onlyRanges(100, 150, 0), onlyRanges(300, 399, 80)), "192.0.2.10"), planned(service("all", one, onlyRanges(1, 65535, 0)), "192.0.2.11")},
		want: []string{
			"+ service all: 192.0.2.11 (new, from public-v4) 1-65535/tcp, 1 backend",
			"~ service web: ports[100-150/tcp] none -> target_port as the client's, ports[100-199/tcp] target_port as the client's -> none, " +
				"ports[300-399/tcp].target_port as the client's -> 80 (open connections to 100-199/tcp end at once)",
			"Plan: 1 add, 1 change, 0 remove",
		},
	}, {
		name:     "a range gives way to a port of it",
		present:  []Planned{planned(service("web", one, onlyRanges(100, 199, 0)), "192.0.2.10")},
		proposed: []Planned{planned(service("web", one, port(150), func(s *vip.Service) { s.Ports = s.Ports[1:] }), "192.0.2.10")},
		want: []string{
			"~ service web: ports[100-199/tcp] target_port as the client's -> none, ports[150/tcp] none -> target_port 150 (open connections to 100-199/tcp end at once)",
			"Plan: 0 add, 1 change, 0 remove",
		},
	}, {
		name:     "another target port",
		present:  []Planned{planned(service("web", one), "192.0.2.10")},
		proposed: []Planned{planned(service("web", one, func(s *vip.Service) { s.Ports[0].TargetPort = 8000 }), "192.0.2.10")},
		want: []string{
			"~ service web: ports[80/tcp].target_port 80 -> 8000 (open connections drain up to 1m)",
			"Plan: 0 add, 1 change, 0 remove",
		},
	}, {
		name:     "other policies",
		present:  []Planned{planned(service("web", two), "192.0.2.10"), planned(service("zones", two), "192.0.2.11"), planned(service("inside", two, internalLocal), "192.0.2.12")},
		proposed: []Planned{planned(service("web", two, externalLocal), "192.0.2.10"), planned(service("zones", two, sameZone), "192.0.2.11"), planned(service("inside", two), "192.0.2.12")},
		want: []string{
			"~ service inside: internal_traffic local -> cluster (open connections of clients inside end at once)",
			"~ service web: external_traffic cluster -> local (where a backend is no longer chosen: open connections drain up to 1m)",
			"~ service zones: traffic_distribution none -> same-zone (where a backend is no longer chosen: open connections drain up to 1m)",
			"Plan: 0 add, 3 change, 0 remove",
		},
	}, {
		name:     "another address",
		present:  []Planned{planned(service("web", one), "192.0.2.10")},
		proposed: []Planned{planned(service("web", one, on("", "192.0.2.20")), "192.0.2.20")},
		want: []string{
			"~ service web: vips 192.0.2.10 -> 192.0.2.20 (open connections drain up to 1m)",
			"Plan: 0 add, 1 change, 0 remove",
		},
	}, {
		name:     "the address that it has already is asked for",
		present:  []Planned{planned(service("web", one), "192.0.2.10")},
		proposed: []Planned{planned(service("web", one, on("", "192.0.2.10")), "192.0.2.10")},
		want: []string{
			"~ service web: requested vips none -> 192.0.2.10 (open connections keep their backend)",
			"Plan: 0 add, 1 change, 0 remove",
		},
	}, {
		name:     "no address to be had, and unsupported",
		proposed: []Planned{{Service: service("web", nil, unsupported), Allocation: vip.Allocation{Problems: []vip.Problem{{Code: vip.CodePoolFull}}}}},
		want:     []string{"+ service web: no address 80/tcp, 0 backends", "Plan: 1 add, 0 change, 0 remove"},
		codes:    []string{vip.CodePoolFull, vip.CodeUnsupported},
	}, {
		name:    "udp leaves at once",
		present: []Planned{planned(service("dns", one, protocol(vip.UDP)), "192.0.2.10")},
		want:    []string{"- service dns: 192.0.2.10 80/udp, 1 backend (leaves at once)", "Plan: 0 add, 0 change, 1 remove"},
	}} {
		t.Run(tc.name, func(t *testing.T) {
			p := NewPlan(tc.present, tc.proposed, On{})
			expect.NoDiff(t, cmp.Diff(tc.want, show(p)))
			var codes []string
			for _, problem := range p.Problems {
				codes = append(codes, problem.Code)
				expect.Equal(t, problem.Service, "web", "problem %+v names no service", problem)
			}
			expect.NoDiff(t, cmp.Diff(tc.codes, codes, cmpopts.EquateEmpty()))
		})
	}
}

// onlyRanges makes a range the only port, or adds it to ranges.
func onlyRanges(first, last, target uint16) func(*vip.Service) {
	return func(s *vip.Service) {
		p := vip.Port{Protocol: vip.TCP, Port: first, LastPort: last, TargetPort: target}
		p.Name = p.Key().String()
		ranges := slices.DeleteFunc(slices.Clone(s.Ports), func(p vip.Port) bool { return p.LastPort == 0 })
		s.Ports = append(ranges, p)
	}
}

func TestPlanNamesEveryField(t *testing.T) {
	untested := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[vip.Service]()) {
		untested[f.Name] = !f.Anonymous
	}
	for _, name := range []string{"Settings", "Key", "VIPs", "Ports", "Backends"} { // have rows of their own in a plan, and tests
		delete(untested, name)
	}
	for _, name := range []string{"NotHere", "Origin", "Assigned", "Preferred"} { // follow from the source
		delete(untested, name)
	}
	for want, change := range map[string]func(*vip.Service){
		"groups[canary] none -> weight 10":       func(s *vip.Service) { s.Groups = []vip.Group{{Name: "canary", Weight: 10}} },
		"source static -> rest":                  func(s *vip.Service) { s.Source = "rest" },
		"labels.a none -> 1, labels.b none -> 2": func(s *vip.Service) { s.Labels = map[string]string{"b": "2", "a": "1"} },
		"pool none -> other":                     func(s *vip.Service) { s.Pool = "other" },
		"families none -> ipv4 ipv6":             func(s *vip.Service) { s.Families = vip.FamiliesOf(vip.IPv4, vip.IPv6) },
		"share_key none -> k":                    func(s *vip.Service) { s.ShareKey = "k" },
		"hostnames none -> a.example b.example":  func(s *vip.Service) { s.Hostnames = vip.HostnamesOf("b.example", "a.example") },
		"ports[80/tcp].name 80/tcp -> http":      func(s *vip.Service) { s.Ports[0].Name = "http" },
		"scheduler wrr -> lc":                    func(s *vip.Service) { s.Scheduler = vip.LeastConnection },
		"scheduler_flags none -> fallback port":  func(s *vip.Service) { s.SchedulerFallback, s.SchedulerPort = true, true },
		"forward nat -> dr":                      func(s *vip.Service) { s.Forward = vip.ForwardDirect },
		"affinity.timeout none -> 3h":            func(s *vip.Service) { s.Affinity = 3 * time.Hour },
		"internal_traffic cluster -> local":      func(s *vip.Service) { s.InternalTraffic = vip.Local },
		"external_traffic cluster -> local":      func(s *vip.Service) { s.ExternalTraffic = vip.Local },
		"scheduler_flags none -> one-packet":     func(s *vip.Service) { s.OnePacket = true },
		"traffic_distribution none -> same-zone": func(s *vip.Service) { s.Distribution = vip.PreferSameZone },
		"health_check_node_port off -> auto":     func(s *vip.Service) { s.HealthPort.Auto = true },
		"health_check_node_port off -> 32000":    func(s *vip.Service) { s.HealthPort.Number = 32000 },
		"masquerade auto -> never":               func(s *vip.Service) { s.Masquerade = vip.MasqueradeNever },
		"source_ranges none -> 10.0.0.0/8":       func(s *vip.Service) { s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
		"connect_timeout 3s -> 500ms":            func(s *vip.Service) { s.Relay = &vip.ProxySettings{ConnectTimeout: 500 * time.Millisecond} },
		"idle_timeout 1h -> 5m":                  func(s *vip.Service) { s.Relay = &vip.ProxySettings{IdleTimeout: 5 * time.Minute} },
		"half_close_timeout 30s -> 5s":           func(s *vip.Service) { s.Relay = &vip.ProxySettings{HalfCloseTimeout: 5 * time.Second} },
		"max_connections none -> 100":            func(s *vip.Service) { s.Relay = &vip.ProxySettings{MaxConnections: 100} },
		"max_queue none -> 50":                   func(s *vip.Service) { s.Relay = &vip.ProxySettings{MaxQueue: 50} },
		"queue_timeout 5s -> 1s":                 func(s *vip.Service) { s.Relay = &vip.ProxySettings{QueueTimeout: time.Second} },
		"proxy_protocol none -> v2":              func(s *vip.Service) { s.Relay = &vip.ProxySettings{ProxyProtocol: vip.ProxyV2} },
		"accept_proxy_from none -> 10.0.0.0/8": func(s *vip.Service) {
			s.Relay = &vip.ProxySettings{AcceptProxyFrom: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		},
		"drain_timeout 1m -> 1h30m":       func(s *vip.Service) { s.DrainTimeout = 90 * time.Minute },
		"health default -> http /healthz": func(s *vip.Service) { s.Check = httpCheck() },
		"on_unhealthy none -> reset":      func(s *vip.Service) { s.ResetUnhealthy = true },
		"slow_start none -> 30s":          func(s *vip.Service) { s.SlowStart = 30 },
		"max_connections_per_source none -> 9, max_rate_per_source none -> 5": func(s *vip.Service) {
			s.SourceLimits = vip.SourceLimits{MaxConnectionsPerSource: 9, MaxRatePerSource: 5}
		},
		"syn_proxy none -> true":     func(s *vip.Service) { s.SynProxy = true },
		"panic_threshold none -> 50": func(s *vip.Service) { s.PanicThreshold = 50 },
	} {
		before, after := service("web", nil), service("web", nil, change)
		for _, f := range reflect.VisibleFields(reflect.TypeFor[vip.Service]()) {
			if !reflect.DeepEqual(reflect.ValueOf(after).FieldByIndex(f.Index).Interface(), reflect.ValueOf(before).FieldByIndex(f.Index).Interface()) {
				delete(untested, f.Name)
			}
		}
		p := NewPlan([]Planned{planned(before, "192.0.2.1")}, []Planned{planned(after, "192.0.2.1")}, On{})
		if len(p.Changes) != 1 || p.Changes[0].Detail != want {
			t.Errorf("%+v, want %q", p.Changes, want)
		}
	}
	for name := range untested {
		t.Errorf("no row changes %s: add it to this table", name)
	}
}

func httpCheck() *vip.HealthCheck {
	return &vip.HealthCheck{Type: vip.CheckHTTP, Interval: vip.DefaultCheckInterval, FastInterval: vip.DefaultCheckFastInterval, Timeout: vip.DefaultCheckTimeout,
		Rise: vip.DefaultRise, Fall: vip.DefaultFall, Method: "GET", Path: "/healthz", Status: vip.DefaultCheckStatus}
}

func TestPlanOfAnotherCheck(t *testing.T) {
	tcp := vip.HealthCheck{Type: vip.CheckTCP, Interval: 2 * time.Second, FastInterval: 500 * time.Millisecond, Timeout: time.Second, Rise: 2, Fall: 3}
	with := func(c vip.HealthCheck, change func(*vip.HealthCheck)) *vip.HealthCheck {
		change(&c)
		return &c
	}
	for _, tc := range []struct {
		before, after *vip.HealthCheck
		want          string
	}{
		{nil, &vip.HealthCheck{Type: vip.CheckNone}, "health default -> none"},
		{&tcp, nil, "health tcp -> default"},
		{&tcp, with(tcp, func(c *vip.HealthCheck) {
			c.Port, c.Interval, c.Send, c.Expect = 81, 10*time.Second, "PING\r\n", "+PONG"
		}), `health.expect none -> +PONG, health.interval 2s -> 10s, health.port none -> 81, health.send none -> "PING\r\n"`},
		{&tcp, with(tcp, func(c *vip.HealthCheck) { c.Type, c.Command = vip.CheckExec, "/bin/check\x00-v\x00a b" }),
			`health.command none -> /bin/check -v "a b", health.type tcp -> exec`},
		{httpCheck(), with(*httpCheck(), func(c *vip.HealthCheck) { c.Status, c.Fall, c.Timeout = "200", 5, 1500*time.Millisecond }),
			"health.fall 3 -> 5, health.status 200-399 -> 200, health.timeout 1s -> 1.5s"},
	} {
		expect.Equal(t, planOfCheck(tc.before, tc.after), tc.want, "from %+v to %+v", tc.before, tc.after)
	}
}

// planOfCheck returns the detail of a change from one check to another.
func planOfCheck(before, after *vip.HealthCheck) string {
	was, is := service("web", nil), service("web", nil)
	was.Check, is.Check = before, after
	p := NewPlan([]Planned{planned(was, "192.0.2.1")}, []Planned{planned(is, "192.0.2.1")}, On{})
	if len(p.Changes) != 1 {
		return ""
	}
	return p.Changes[0].Detail
}

// A plan shows each change of a check: a field without a text would hide it.
func TestPlanShowsEveryFieldOfAHealthCheck(t *testing.T) {
	for f := range reflect.TypeFor[vip.HealthCheck]().Fields() {
		changed := *httpCheck()
		switch v := reflect.ValueOf(&changed).Elem().FieldByIndex(f.Index); v.Kind() {
		case reflect.String:
			v.SetString("/else")
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int64:
			v.SetInt(int64(300 * time.Millisecond))
		default:
			v.SetUint(5)
		}
		expect.True(t, planOfCheck(httpCheck(), &changed) != "", "a change of %s is not shown", f.Name)
	}
}

func TestPlanShowsGrantedNodePorts(t *testing.T) {
	before, after := planned(service("web", nil, nodePort), "192.0.2.1"), planned(service("web", nil), "192.0.2.1")
	before.Allocation.NodePorts = map[vip.PortKey]uint16{{Port: 80, Protocol: vip.TCP}: 30123}
	p := NewPlan([]Planned{before}, []Planned{after}, On{})
	if len(p.Changes) != 1 || p.Changes[0].Detail != "ports[80/tcp].node_port 30123 -> off" {
		t.Errorf("%+v", p.Changes)
	}
}

func TestPlanIsStable(t *testing.T) {
	var present, proposed []Planned
	for i := range 20 {
		s := service(fmt.Sprintf("s%02d", i), []string{"10.0.0.1"})
		if i%3 != 0 {
			present = append(present, planned(s, "192.0.2.1"))
		}
		if i%2 != 0 {
			s.Scheduler = vip.MaglevHash
			proposed = append(proposed, planned(s, "192.0.2.1"))
		}
	}
	want := show(NewPlan(present, proposed, On{}))
	random := rand.New(rand.NewPCG(1, 0))
	for range 10 {
		for _, list := range [][]Planned{present, proposed} {
			random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		must.NoDiff(t, cmp.Diff(want, show(NewPlan(present, proposed, On{}))))
	}
}
