package spec

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/vip"
)

var cmpAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func build(t *testing.T, doc string) (vip.Service, []vip.Problem) {
	t.Helper()
	s, problems := DecodeJSON([]byte(doc))
	out, more := s.Build("rest", "")
	return out, Merge(problems, more)
}

func TestBuildFillsDefaults(t *testing.T) {
	got, problems := build(t, `{"name": "web", "ports": [{"port": 80, "target_port": 8080}, {"port": 53, "protocol": "udp", "name": "dns", "node_port": "auto"}],
		"backends": [{"address": "10.1.0.12", "weight": 0}, {"address": "10.1.0.11", "port": 81}], "affinity": {}}`)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := vip.Service{
		Key: vip.ServiceKey{Namespace: "default", Name: "web"}, Source: "rest",
		Ports: []vip.Port{
			{Name: "80/tcp", Protocol: vip.TCP, Port: 80, TargetPort: 8080},
			{Name: "dns", Protocol: vip.UDP, Port: 53, TargetPort: 53, NodePort: vip.NodePort{Auto: true}},
		},
		Backends: []vip.Backend{
			{Address: netip.MustParseAddr("10.1.0.11"), Port: 81, Weight: 1, State: vip.Ready},
			{Address: netip.MustParseAddr("10.1.0.12"), State: vip.Ready},
		},
		Scheduler: "wrr", Forward: "nat", Affinity: 3 * time.Hour, InternalTraffic: "cluster", ExternalTraffic: "cluster",
		Masquerade: "auto", DrainTimeout: time.Minute,
	}
	if diff := cmp.Diff(want, got, cmpAddrs); diff != "" {
		t.Error(diff)
	}
}

// Each row breaks one thing in a good service; "field: message | hint" must be
// the one problem.
func TestBuildRefuses(t *testing.T) {
	const ports, backends = `"ports": [{"port": 80}]`, `"backends": [{"address": "10.1.0.11"}]`
	long := strings.Repeat("x", 70)
	tests := []struct{ what, doc, want string }{
		{"unknown key", `{"name": "a", "ports": [{"port": 80, "prot": "tcp"}]}`, `ports[0].prot: unknown key | did you mean "protocol"?`},
		{"unknown key far from all", `{"name": "a", "zzzzzz": 1, ` + ports + `}`, `zzzzzz: unknown key | remove it; known keys: affinity, `},
		{"later feature", `{"name": "a", "health": {}, ` + ports + `}`, `health: this version does not support health probes`},
		{"key twice", `{"name": "a", "pool": "x", "pool": "y", ` + ports + `}`, `pool: comes twice | keep one of them`},
		{"wrong type", `{"name": 7, ` + ports + `}`, `name: wants a string, has the number 7 | put it in quotes`},
		{"port in quotes", `{"name": "a", "ports": [{"port": "80"}]}`, `ports[0].port: wants a whole number, has the string "80" | write it without quotes`},
		{"port with a fraction", `{"name": "a", "ports": [{"port": 80.5}]}`, `ports[0].port: wants a whole number, has the number 80.5`},
		{"list wanted", `{"name": "a", "ports": {"port": 80}}`, `ports: wants a list, has a table | write it in brackets`},
		{"no name", `{` + ports + `}`, `name: a name is needed | use 1 to 63`},
		{"bad name", `{"name": "Web_1", ` + ports + `}`, `name: "Web_1" is not a DNS label`},
		{"long name", `{"name": "` + long + `", ` + ports + `}`, `name: "xxxxxxxxxxxxxxxxxxxx"... is longer than 63 characters`},
		{"bad namespace", `{"name": "a", "namespace": "-", ` + ports + `}`, `namespace: "-" is not a DNS label`},
		{"no ports", `{"name": "a"}`, `ports: a service needs a port | add one`},
		{"empty ports", `{"name": "a", "ports": []}`, `ports: a service needs a port`},
		{"port missing", `{"name": "a", "ports": [{}]}`, `ports[0].port: a port number is needed`},
		{"port zero", `{"name": "a", "ports": [{"port": 0}]}`, `ports[0].port: 0 is no port | use 1 to 65535`},
		{"port above", `{"name": "a", "ports": [{"port": 65536}]}`, `ports[0].port: 65536 is no port`},
		{"port far above", `{"name": "a", "ports": [{"port": 99999999999999999999}]}`, `ports[0].port: wants a whole number`},
		{"target above", `{"name": "a", "ports": [{"port": 80, "target_port": -1}]}`, `ports[0].target_port: -1 is no port`},
		{"port range", `{"name": "a", "ports": [{"port": "10000-10099"}]}`, `ports[0].port: this version does not support port ranges`},
		{"same port", `{"name": "a", "ports": [{"port": 80}, {"port": 80, "protocol": "udp"}, {"port": 80, "protocol": "tcp"}]}`, `ports[2].port: 80/tcp is that of ports[0], too | change one`},
		{"same port name", `{"name": "a", "ports": [{"port": 80, "name": "x"}, {"port": 81, "name": "x"}]}`, `ports[1].name: "x" is the name of ports[0], too`},
		{"protocol", `{"name": "a", "ports": [{"port": 80, "protocol": "tpc"}]}`, `ports[0].protocol: "tpc" is not a protocol | did you mean "tcp"?`},
		{"sctp", `{"name": "a", "ports": [{"port": 80, "protocol": "sctp"}]}`, `ports[0].protocol: this version does not support sctp`},
		{"node port", `{"name": "a", "ports": [{"port": 80, "node_port": "yes"}]}`, `ports[0].node_port: the string "yes" is no node port | use "off", "auto" or a number`},
		{"node port above", `{"name": "a", "ports": [{"port": 80, "node_port": 70000}]}`, `ports[0].node_port: 70000 is no port`},
		{"same node port", `{"name": "a", "ports": [{"port": 80, "node_port": 30080}, {"port": 81, "node_port": 30080}]}`, `ports[1].node_port: 30080/tcp is that of ports[0], too`},
		{"address", `{"name": "a", ` + ports + `, "backends": [{"address": "web1.example"}]}`, `backends[0].address: "web1.example" is not an address | write an IPv4 or IPv6 address; names are not looked up`},
		{"address with port", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.11:80"}]}`, `backends[0].address: "10.1.0.11:80" is not an address | write the address alone (10.1.0.11)`},
		{"no address", `{"name": "a", ` + ports + `, "backends": [{"port": 80}]}`, `backends[0].address: an address is needed`},
		{"multicast", `{"name": "a", ` + ports + `, "backends": [{"address": "224.0.0.1"}]}`, `backends[0].address: 224.0.0.1 is not a unicast address`},
		{"mapped", `{"name": "a", ` + ports + `, "backends": [{"address": "::ffff:10.1.0.1"}]}`, `backends[0].address: ::ffff:10.1.0.1 is an IPv4 address in IPv6 form | write it as 10.1.0.1`},
		{"link-local", `{"name": "a", ` + ports + `, "backends": [{"address": "fe80::1%eth0"}]}`, `backends[0].address: fe80::1%eth0 is link-local`},
		{"weight above", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "weight": 65536}]}`, `backends[0].weight: 65536 is out of bounds | use 0 to 65535`},
		{"weight below", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "weight": -1}]}`, `backends[0].weight: -1 is out of bounds`},
		{"state", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "state": "drian"}]}`, `backends[0].state: "drian" is not a state | did you mean "drain"?`},
		{"backend twice", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1"}, {"address": "10.1.0.2"}, {"address": "10.1.0.1"}]}`, `backends[2]: 10.1.0.1 is that of backends[0], too | keep one`},
		{"backend twice by target port", `{"name": "a", "ports": [{"port": 80, "target_port": 8080}], "backends": [{"address": "10.1.0.1", "port": 8080}, {"address": "10.1.0.1"}]}`, `backends[1]: 10.1.0.1 is the same server as backends[0] on port 80/tcp`},
		{"nat family", `{"name": "a", "families": ["ipv4"], ` + ports + `, "backends": [{"address": "2001:db8::1"}]}`, `backends[0].address: 2001:db8::1 is ipv6 and the service's VIP is ipv4: nat does not translate`},
		{"nat family by vip", `{"name": "a", "vips": ["2001:db8::9"], ` + ports + `, "backends": [{"address": "10.1.0.1"}]}`, `backends[0].address: 10.1.0.1 is ipv4 and the service's VIP is ipv6`},
		{"two vips of a family", `{"name": "a", "vips": ["192.0.2.1", "192.0.2.2"], ` + ports + `}`, `vips[1]: 192.0.2.2 is the second ipv4 address`},
		{"vip outside families", `{"name": "a", "families": ["ipv4"], "vips": ["2001:db8::1"], ` + ports + `}`, `vips[0]: 2001:db8::1 is ipv6, which families leaves out`},
		{"vip is a prefix", `{"name": "a", "vips": ["192.0.2.1/32"], ` + ports + `}`, `vips[0]: "192.0.2.1/32" is not an address | write the address alone: 192.0.2.1`},
		{"family", `{"name": "a", "families": ["v4"], ` + ports + `}`, `families[0]: "v4" is not an address family | use ipv4 or ipv6`},
		{"family twice", `{"name": "a", "families": ["ipv4", "ipv4"], ` + ports + `}`, `families[1]: ipv4 comes twice`},
		{"scheduler", `{"name": "a", "scheduler": "wlcc", ` + ports + `}`, `scheduler: "wlcc" is not a known value | did you mean "wlc"? use rr, wrr, lc, wlc, sh, mh`},
		{"later scheduler", `{"name": "a", "scheduler": "sed", ` + ports + `}`, `scheduler: this version does not support scheduler "sed"`},
		{"flag without mh", `{"name": "a", "scheduler_flags": ["port"], ` + ports + `}`, `scheduler_flags[0]: scheduler wrr has no flag "port"`},
		{"unknown flag", `{"name": "a", "scheduler": "mh", "scheduler_flags": ["fall"], ` + ports + `}`, `scheduler_flags[0]: "fall" is not a scheduler flag | did you mean "fallback"?`},
		{"direct routing", `{"name": "a", "forward": "dr", ` + ports + `}`, `forward: this version does not support forward "dr"`},
		{"local traffic", `{"name": "a", "external_traffic": "local", ` + ports + `}`, `external_traffic: this version does not support external_traffic "local"`},
		{"masquerade", `{"name": "a", "masquerade": "alway", ` + ports + `}`, `masquerade: "alway" is not a known value | did you mean "always"?`},
		{"source ranges", `{"name": "a", "source_ranges": ["10.0.0.0/8"], ` + ports + `}`, `source_ranges: this version does not support source ranges`},
		{"affinity bare", `{"name": "a", "affinity": "3h", ` + ports + `}`, `affinity: wants a table, has the string "3h"`},
		{"affinity unit", `{"name": "a", "affinity": {"timeout": "30"}, ` + ports + `}`, `affinity.timeout: "30" is not a duration | write it with a unit, in quotes: "90s"`},
		{"affinity below", `{"name": "a", "affinity": {"timeout": "0s"}, ` + ports + `}`, `affinity.timeout: 0s is out of bounds | use "1s" to "24h"`},
		{"affinity above", `{"name": "a", "affinity": {"timeout": "24h1s"}, ` + ports + `}`, `affinity.timeout: 24h0m1s is out of bounds`},
		{"affinity fraction", `{"name": "a", "affinity": {"timeout": "1500ms"}, ` + ports + `}`, `affinity.timeout: 1.5s is out of bounds`},
		{"drain number", `{"name": "a", "drain_timeout": 60, ` + ports + `}`, `drain_timeout: wants a duration, has the number 60`},
		{"drain below", `{"name": "a", "drain_timeout": "-1s", ` + ports + `}`, `drain_timeout: -1s is out of bounds | use "0s" to "24h"`},
		{"drain above", `{"name": "a", "drain_timeout": "25h", ` + ports + `}`, `drain_timeout: 25h is out of bounds`},
		{"pool name", `{"name": "a", "pool": "Public", ` + ports + `}`, `pool: "Public" is not a DNS label`},
		{"label", `{"name": "a", "labels": {"a\u0000": "b"}, ` + ports + `}`, `labels."a\x00": a label's name has 1 to 253`},
		{"label value", `{"name": "a", "labels": {"team": 7}, ` + ports + `}`, `labels.team: wants a string, has the number 7`},
		{"not an object", `[]`, `wants a JSON object, has a list`},
		{"cut off", `{"name": "a",`, `not valid JSON near line 1, column 14: ends too early`},
		{"too deep", `{"name": ` + strings.Repeat(`[`, 100) + `}`, `not valid JSON near line 1, column 42: more than 32 levels`},
		{"after the end", `{"name": "a", ` + ports + `} {}`, `not valid JSON near line 1, column 41: something follows the object`},
		{"not UTF-8", "{\"name\": \"\xff\"}", `is not valid UTF-8`},
		{"null item", `{"name": "a", "ports": [null, {"port": 80}]}`, `ports[0]: wants a value, has null`},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			s, problems := DecodeJSON([]byte(test.doc))
			if s.Name != "" || len(problems) == 0 {
				_, more := s.Build("rest", "")
				problems = Merge(problems, more)
			}
			if len(problems) != 1 {
				t.Fatalf("%d problems, want one like %q:\n%v", len(problems), test.want, problems)
			}
			p := problems[0]
			got := strings.TrimPrefix(p.Field+": "+p.Message, ": ")
			if p.Hint != "" {
				got += " | " + p.Hint
			}
			if !strings.HasPrefix(got, test.want) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if p.Code == "" {
				t.Error("no code")
			}
		})
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, problems := build(t, `{"name": "A", "nmae": "b", "ports": [{"port": 0}, {"port": "x"}], "backends": [{"address": "y", "weight": -1}], "forward": "tunnel"}`)
	var fields []string
	for _, p := range problems {
		fields = append(fields, p.Field)
		if p.Service != "A" {
			t.Errorf("%s is of service %q", p.Field, p.Service)
		}
	}
	want := []string{"nmae", "ports[0].port", "ports[1].port", "name", "forward", "backends[0].address", "backends[0].weight"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Error(diff)
	}
}

func TestCheckAgainstPools(t *testing.T) {
	pools := []Pool{
		{Name: "v6", CIDRs: []netip.Prefix{netip.MustParsePrefix("2001:db8::/64")}},
		{Name: "v4", AutoAssign: true, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Exclude: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")}},
	}
	tests := []struct{ what, pool, backend, want string }{
		{"own address", "", "10.1.0.1", ""},
		{"excluded address", "", "192.0.2.3", ""},
		{"in the pool", "", "192.0.2.16", `backends[0].address: 192.0.2.16 is in VIP pool "v4"`},
		{"in another pool", "", "2001:db8::5", `backends[0].address: 2001:db8::5 is in VIP pool "v6"`},
		{"wrong family of the default pool", "", "2001:db9::5", `backends[0].address: 2001:db9::5 is ipv6 and the service's VIP is ipv4`},
		{"wrong family of the named pool", "v6", "10.1.0.1", `backends[0].address: 10.1.0.1 is ipv4 and the service's VIP is ipv6`},
		{"unknown pool is the allocator's to tell", "x", "10.1.0.1", ""},
	}
	for _, test := range tests {
		s := Service{Name: "a", Pool: test.pool, Backends: []Backend{{Address: test.backend}}}
		got := ""
		if problems := CheckAgainstPools(&s, pools); len(problems) > 0 {
			got = problems[0].Field + ": " + problems[0].Message
		}
		if !strings.HasPrefix(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%s: got %q, want %q", test.what, got, test.want)
		}
	}
}
