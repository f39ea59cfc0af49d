package consul

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// inst returns an instance: "n1 10.0.0.1:8080 warning w=5/2 pool=lan".
func inst(line string) instance {
	var i instance
	i.Service.Meta, i.Service.Tags = map[string]string{}, []string{DefaultTag}
	i.Service.Weights.Passing, i.Service.Weights.Warning = 1, 1
	words := strings.Fields(line)
	i.Node.Node, i.Service.ID = words[0], "web"
	i.Node.Address, i.Node.Meta = "10.9.9.9", map[string]string{}
	for _, word := range words[1:] {
		key, value, pair := strings.Cut(word, "=")
		switch {
		case !pair && (word == "passing" || word == "warning" || word == "critical"):
			i.Checks = append(i.Checks, check{CheckID: "service:web", Status: word})
		case !pair && word == "node-critical":
			i.Checks = append(i.Checks, check{CheckID: "serfHealth", Status: "critical"})
		case !pair && word == "maint":
			i.Checks = append(i.Checks, check{CheckID: "_service_maintenance:web", Status: "critical"})
		case !pair && word == "node-maint":
			i.Checks = append(i.Checks, check{CheckID: nodeMaintenance, Status: "critical"})
		case !pair && word == "proxy":
			i.Service.Kind = "connect-proxy"
		case !pair:
			i.Service.Address = word
			if at, err := netip.ParseAddrPort(word); err == nil {
				i.Service.Address, i.Service.Port = at.Addr().String(), int(at.Port())
			}
		case key == "w":
			fmt.Sscanf(value, "%d/%d", &i.Service.Weights.Passing, &i.Service.Weights.Warning)
		case key == "id":
			i.Service.ID = value
		case key == "ports":
			for _, p := range strings.Split(value, ",") {
				name, number, _ := strings.Cut(p, ":")
				var n int
				fmt.Sscan(number, &n)
				i.Service.Ports = append(i.Service.Ports, servicePort{Name: name, Port: n})
			}
		case strings.HasPrefix(key, "tagged:"):
			name := strings.TrimPrefix(key, "tagged:")
			if i.Service.TaggedAddresses == nil {
				i.Service.TaggedAddresses = map[string]serviceAddress{}
			}
			at := serviceAddress{Address: value}
			if ap, err := netip.ParseAddrPort(value); err == nil {
				at = serviceAddress{ap.Addr().String(), int(ap.Port())}
			}
			i.Service.TaggedAddresses[name] = at
		case strings.HasPrefix(key, "node:"):
			if i.Node.TaggedAddresses == nil {
				i.Node.TaggedAddresses = map[string]string{}
			}
			i.Node.TaggedAddresses[strings.TrimPrefix(key, "node:")] = value
		case strings.HasPrefix(key, "nodemeta:"):
			i.Node.Meta[strings.TrimPrefix(key, "nodemeta:")] = value
		default:
			i.Service.Meta[metaPrefix+key] = strings.ReplaceAll(value, "_", " ")
		}
	}
	return i
}

func instances(lines ...string) []instance {
	var out []instance
	for _, line := range lines {
		out = append(out, inst(line))
	}
	return out
}

// each changes instances.
func each(all []instance, change func(*instance)) []instance {
	for i := range all {
		change(&all[i])
	}
	return all
}

// described returns the parts of a service that these tests compare.
func described(s vip.Service) string {
	var ports, backends []string
	for _, p := range s.Ports {
		word := p.Key().String()
		if p.Name != word {
			word = p.Name + "=" + word
		}
		if p.TargetPort != p.Port {
			word += fmt.Sprintf(">%d", p.TargetPort)
		}
		if p.NodePort.Auto {
			word += "+auto"
		} else if p.NodePort.Number != 0 {
			word += fmt.Sprintf("+%d", p.NodePort.Number)
		}
		ports = append(ports, word)
	}
	for _, b := range s.Backends {
		word := b.ID()
		if b.Health == vip.Unhealthy && b.State == vip.Ready {
			word += " unhealthy"
		}
		if b.State != vip.Ready {
			word += " " + b.State.String()
		}
		if b.Weight != 1 {
			word += fmt.Sprintf(" w=%d", b.Weight)
		}
		backends = append(backends, word)
	}
	return s.Key.String() + " " + strings.Join(ports, " ") + ": " + strings.Join(backends, ", ")
}

func texts(problems []vip.Problem) string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field+": "+p.Message)
	}
	return strings.Join(out, "; ")
}

func TestBuild(t *testing.T) {
	for _, test := range []struct {
		name      string
		instances []instance
		want      string
		problems  string // "" for none
	}{
		{"the instances' port", instances("n1 10.0.0.1:8080", "n2 10.0.0.2:8080"), "web 8080/tcp: 10.0.0.1:8080, 10.0.0.2:8080", ""},
		{"the VIP's port", instances("n1 10.0.0.1:8080 port=80", "n2 10.0.0.2:9090 port=80"), "web 80/tcp: 10.0.0.1:8080, 10.0.0.2:9090", ""},
		{"another protocol", instances("n1 10.0.0.1:53 protocol=udp"), "web 53/udp: 10.0.0.1:53", ""},
		{"two ports", instances("n1 10.0.0.1:80 port=80,443"), "web 80/tcp 443/tcp: 10.0.0.1", ""},
		{"named, with protocols", instances("n1 10.0.0.1:80 port=http=80,dns=53/udp"), "web http=80/tcp dns=53/udp: 10.0.0.1", ""},
		{"targets", instances("n1 10.0.0.1:80 port=80,443 target-port=8080,8443 node-port=auto"), "web 80/tcp>8080+auto 443/tcp>8443+auto: 10.0.0.1", ""},
		{"one protocol for all", instances("n1 10.0.0.1:80 port=80,443 protocol=udp node-port=30080,30443"), "web 80/udp+30080 443/udp+30443: 10.0.0.1", ""},
		{"a range", instances("n1 10.0.0.1:80 port=10000-10099"), "web 10000-10099/tcp>0: 10.0.0.1", ""},
		{"named ports of instances", instances("n1 10.0.0.1 ports=http:8080,admin:9090"), "web http=8080/tcp admin=9090/tcp: 10.0.0.1", ""},
		{"and the VIP's for them", instances("n1 10.0.0.1 ports=http:8080,admin:9090 port=http=80,admin=81"), "web http=80/tcp>8080 admin=81/tcp>9090: 10.0.0.1", ""},
		{"a target for one port", instances("n1 10.0.0.1:1234 port=80 target-port=8080"), "web 80/tcp>8080: 10.0.0.1", ""},
		{"no port at all", instances("n1 10.0.0.1"), "", "ironvip-port: is not there, and the instances have no port"},
		{"health", instances("n1 10.0.0.1:80 passing w=10/3", "n2 10.0.0.2:80 passing warning w=10/3", "n3 10.0.0.3:80 warning critical", "n4 10.0.0.4:80 passing node-critical",
			"n5 10.0.0.5:80 maint", "n6 10.0.0.6:80 critical node-maint"),
			"web 80/tcp: 10.0.0.1:80 w=10, 10.0.0.2:80 w=3, 10.0.0.3:80 unhealthy, 10.0.0.4:80 unhealthy, 10.0.0.5:80 maint, 10.0.0.6:80 maint", ""},
		{"weights left out", instances("n1 10.0.0.1:80 warning w=0/0"), "web 80/tcp: 10.0.0.1:80", ""},
		{"a warning that takes none", instances("n1 10.0.0.1:80 warning w=5/0"), "web 80/tcp: 10.0.0.1:80 w=0", ""},
		{"proxies are not backends", instances("n1 10.0.0.1:80", "n1 10.0.0.1:21000 id=web-sidecar-proxy proxy pool=other"), "web 80/tcp: 10.0.0.1:80", ""},
		{"the node's address", func() []instance { i := inst("n1 port=80"); i.Service.Port = 8080; return []instance{i} }(), "web 80/tcp: 10.9.9.9:8080", ""},
		{"the majority says", instances("n1 10.0.0.1:80 port=1", "n2 10.0.0.2:80 port=2", "n3 10.0.0.3:80 port=2"), "web 2/tcp: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80",
			`ironvip-port: instances disagree: "1" on n1/web, "2" on n2/web n3/web; "2" is used`},
		{"the first of two", instances("n2 10.0.0.2:80 port=2", "n1 10.0.0.1:80 port=1"), "web 1/tcp: 10.0.0.1:80, 10.0.0.2:80",
			`ironvip-port: instances disagree: "1" on n1/web, "2" on n2/web; "1" is used`},
		{"most say nothing", instances("n1 10.0.0.1:80 port=1", "n2 10.0.0.2:80", "n3 10.0.0.3:80"), "web 80/tcp: 10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80",
			`ironvip-port: instances disagree: "1" on n1/web, nothing on n2/web n3/web; nothing is used`},
		{"dynamic ports, and none for the VIP", instances("n1 10.0.0.1:80", "n2 10.0.0.2:81"), "web 80/tcp: 10.0.0.1:80, 10.0.0.2:81",
			`ironvip-port: instances disagree: "80" on n1/web, "81" on n2/web; "80" is used`},
		{"an unknown key", instances("n1 10.0.0.1:80 schedular=mh"), "", "ironvip-schedular: is no key of ours"},
		{"a bad value", instances("n1 10.0.0.1:80 scheduler=fast"), "", `ironvip-scheduler: "fast" is not a known value`},
		{"a bad port", instances("n1 10.0.0.1:80 port=http"), "", `ironvip-port: invalid port "http"`},
		{"a bad protocol", instances("n1 10.0.0.1:80 port=53 protocol=dns"), "", `ironvip-protocol: "dns" is not a protocol`},
		{"too many targets", instances("n1 10.0.0.1:80 port=80,81 target-port=1,2,3"), "", "ironvip-target-port: has 3 values for 2 ports"},
		{"a bad node port", instances("n1 10.0.0.1:80 node-port=yes"), "", `ironvip-node-port: invalid node port: the string "yes"`},
		{"all that is wrong at once", instances("n1 10.0.0.1:80 affinity=long drain-timeout=48h vips=10.0.0.300 health-check-node-port=auto"), "",
			`ironvip-affinity: "long" is not a time span; ironvip-vips: "10.0.0.300" is not an address; ironvip-drain-timeout: 48h is out of bounds; ironvip-health-check-node-port: with external_traffic cluster every node takes traffic, and there is nothing to check`},
		{"a bad health check", instances("n1 10.0.0.1:80 health=htpp"), "", `ironvip-health: "htpp" is not a known value`},
		{"a bad field of a health check", instances(`n1 10.0.0.1:80 health={"type":"http","rise":0}`), "", "ironvip-health: 0 is out of bounds"},
		{"slow start of a hash", instances("n1 10.0.0.1:80 scheduler=mh slow-start=30"), "", `ironvip-slow-start: scheduler mh would move clients with each step`},
		{"an address that is a name", instances("n1 10.0.0.1:80", "n2 db.example:80"), "web 80/tcp: 10.0.0.1:80", `ironvip-port: instances disagree: "80" on n1/web, nothing on n2/web; "80" is used; address: instance n2/web is left out: "db.example:80" is not an address`},
		{"in a pool", instances("n1 10.0.0.1:80", "n2 192.0.2.7:80"), "web 80/tcp: 10.0.0.1:80", `address: instance n2/web is left out: 192.0.2.7 is in VIP pool "public"`},
		{"the same server twice", instances("n1 10.0.0.1:80 critical", "n2 10.0.0.1:80 passing"), "web 80/tcp: 10.0.0.1:80", `address: instance n1/web is left out: 10.0.0.1: another instance is the same server`},
		{"the same server twice, by the addresses of nodes", each(instances("n1 10.0.0.1:80", "n2 10.0.0.1:80"), func(i *instance) { i.Service.Address, i.Node.Address = "", i.Service.Address }),
			"web 80/tcp: 10.0.0.1:80", `address: instance n2/web is left out: 10.0.0.1: another instance is the same server`},
		{"without names", each(instances("n1 10.0.0.1:80", "n2 10.0.0.1:80"), func(i *instance) { i.Node.Node, i.Service.ID = "", "" }),
			"web 80/tcp: 10.0.0.1:80", `address: instance ""/"" is left out: 10.0.0.1: another instance is the same server`},
		{"a node and a zone with spaces", each(instances("n1 10.0.0.1:80"), func(i *instance) { i.Node.Node, i.Node.Meta = "rack 7", map[string]string{"zone": "a b"} }),
			"web 80/tcp: 10.0.0.1:80", `node: instance rack 7/web has no node here: "rack 7" isn't of up to 253 printable characters without spaces; zone: instance rack 7/web has no zone here: "a b" isn't of up to 253 printable characters without spaces`},
		{"another family", instances("n1 10.0.0.1:80 families=ipv4", "n2 [2001:db8::1]:80 families=ipv4"), "web 80/tcp: 10.0.0.1:80",
			"address: instance n2/web is left out: 2001:db8::1 is ipv6 and the service's VIP is ipv4: nat does not translate between families"},
		{"direct routing", instances("n1 10.0.0.1:80 forward=dr", "n2 10.0.0.2:8080 forward=dr port=80", "n3 10.0.0.3:80 port=80 forward=dr"), "web 80/tcp: 10.0.0.1:80, 10.0.0.3:80",
			`ironvip-port: instances disagree: nothing on n1/web, "80" on n2/web n3/web; "80" is used; port: instance n2/web is left out: forward dr does not change the port: 8080 is not that of ports[0], 80/tcp`},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := Options{Pools: func() []spec.Pool {
				return []spec.Pool{{Name: "public", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}, AutoAssign: true}}
			}}.withDefaults()
			got := o.build("web", test.instances, nil)
			desc := ""
			if got.good {
				desc = described(got.service)
			}
			expect.Equal(t, desc, test.want, "built")
			if texts(got.problems) != test.problems {
				t.Errorf("problems\n%s, not\n%s", texts(got.problems), test.problems)
			}
			for _, p := range got.problems {
				if p.Place != "consul service web" || p.Service != "web" || p.Code == "" {
					t.Errorf("%+v", p)
				}
			}
			// The order of instances in Consul's answer does not matter.
			slices.Reverse(test.instances)
			if again := o.build("web", test.instances, nil); described(again.service) != described(got.service) || texts(again.problems) != texts(got.problems) {
				t.Errorf("in another order: %q, %s", described(again.service), texts(again.problems))
			}
		})
	}
}

// A service with invalid settings still follows its instances.
func TestFormerSettingsStay(t *testing.T) {
	o := Options{}.withDefaults()
	first := o.build("web", instances("n1 10.0.0.1:80 port=443 scheduler=mh"), nil)
	got := o.build("web", instances("n1 10.0.0.1:80 critical port=443 scheduler=fast", "n2 10.0.0.2:80 port=443 scheduler=fast"), first.settings)
	if !got.good || described(got.service) != "web 443/tcp: 10.0.0.1:80 unhealthy, 10.0.0.2:80" || got.service.Scheduler != vip.MaglevHash {
		t.Errorf("%v %q", got.good, described(got.service))
	}
	if texts(got.problems) != `ironvip-scheduler: "fast" is not a known value` || !strings.Contains(got.problems[0].Hint, "keeps its former settings") {
		t.Errorf("%+v", got.problems)
	}
	// This also applies to settings that leave no instance.
	got = o.build("web", instances("n1 10.0.0.1:80 port=443 forward=dr"), first.settings)
	if described(got.service) != "web 443/tcp: 10.0.0.1:80" || got.service.Forward != vip.ForwardNAT || len(got.problems) != 1 {
		t.Errorf("%q, %+v", described(got.service), got.problems)
	}
}

func TestWhatTheSourceSays(t *testing.T) {
	o := Options{Config: Config{Pool: "lan", ServiceNamespace: "team"}}.withDefaults()
	o.Datacenter = "dc2"
	got := o.build("web", instances("n1 10.0.0.1:80 zone=z1", "n2 10.0.0.2:80 zone=z2", "n3 10.0.0.3:80 nodemeta:zone=z3"), nil)
	zones := ""
	for _, b := range got.service.Backends {
		zones += b.Node + "@" + b.Zone + " "
	}
	if got.service.Pool != "lan" || got.service.Key.String() != "team/web" || got.service.Origin != "consul service web in dc2" || zones != "n1@z1 n2@z2 n3@z3 " || len(got.problems) > 0 {
		t.Errorf("%+v %s %v", got.service, zones, got.problems)
	}
	over := o.build("web", instances("n1 10.0.0.1:80 pool=wan namespace=other"), nil)
	if over.service.Pool != "wan" || over.service.Key.String() != "other/web" {
		t.Errorf("%+v", over.service)
	}
	i := inst("n1 10.0.0.1:80")
	i.Service.Namespace = "finance"
	if got := (&Options{Name: "consul", Pools: o.Pools}).build("web", []instance{i}, nil); got.service.Key.String() != "finance/web" {
		t.Errorf("%v", got.service.Key)
	}
	if bad := o.build("Web_App", instances("n1 10.0.0.1:80"), nil); bad.good || texts(bad.problems) != `ironvip-name: "Web_App" is not a DNS label: use a-z, 0-9 and inner "-"` {
		t.Errorf("%+v", bad.problems)
	}
}

func TestTaggedAddresses(t *testing.T) {
	const both = "n1 10.0.0.1:80 tagged:lan_ipv4=10.0.0.1:80 tagged:lan_ipv6=[2001:db8::1]:80 tagged:wan=198.51.100.1:8080 tagged:vpn=100.64.0.1 node:wan=198.51.100.9 node:lan_ipv6=2001:db8::9"
	for _, test := range []struct{ line, tag, want string }{
		{both, "", "10.0.0.1:80"},
		{both, "lan", "10.0.0.1:80"},
		{both, "wan", "198.51.100.1:8080"},
		{both, "ipv4", "10.0.0.1:80"},
		{both, "ipv6", "[2001:db8::1]:80"},
		{both, "vpn", "100.64.0.1:80"},
		{both, "nothing", "10.0.0.1:80"},
		{"n1 10.0.0.1:80 node:lan_ipv6=2001:db8::9", "ipv6", "[2001:db8::9]:80"},
		{"n1 [2001:db8::1]:80", "ipv6", "[2001:db8::1]:80"},
		{"n1 10.0.0.1:80 node:wan=198.51.100.9", "wan", "10.0.0.1:80"}, // the node's address does not show where the service listens
		{"n1 port=80 node:wan=198.51.100.9", "wan", "198.51.100.9"},
		{"n1 port=80", "wan", "10.9.9.9"},
	} {
		o := Options{Config: Config{TaggedAddress: test.tag}}.withDefaults()
		got := o.build("web", instances(test.line), nil)
		if len(got.service.Backends) != 1 || got.service.Backends[0].ID() != test.want {
			t.Errorf("%s of %s: %v %v, not %s", test.tag, test.line, got.service.Backends, got.problems, test.want)
		}
	}
}

// Every build ends, and its result does not depend on the order of instances.
func FuzzBuild(f *testing.F) {
	f.Add("port", "80,443", "web=80/udp", "10.0.0.1", 80)
	f.Add("labels", "a=b", "", "::1", 70000)
	f.Fuzz(func(t *testing.T, key, one, other, address string, number int) {
		a, b := inst("n1 10.0.0.1:80"), inst("n2 10.0.0.2:80")
		a.Service.Meta[metaPrefix+key], b.Service.Meta[metaPrefix+key] = one, other
		b.Service.Address, b.Service.Port = address, number
		o := Options{}.withDefaults()
		got, again := o.build("web", []instance{a, b}, nil), o.build("web", []instance{b, a}, nil)
		if described(got.service) != described(again.service) || texts(got.problems) != texts(again.problems) {
			t.Errorf("%s %s\n%s %s", described(got.service), texts(got.problems), described(again.service), texts(again.problems))
		}
	})
}

// The reason of a drained backend names the check. Only the first line of a critical check's output
// is kept. Other checks have no text.
func TestReasonOfACriticalCheck(t *testing.T) {
	var all []instance
	text := `[{"Node": {"Node": "n1"}, "Service": {"ID": "web-1", "Address": "10.0.0.1", "Port": 80}, "Checks": [
		{"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing", "Output": "Agent alive"},
		{"CheckID": "service:web", "Name": "web http", "Status": "critical", "Output": "HTTP GET http://10.0.0.1/: 500\nbody"}]},
	{"Node": {"Node": "n2"}, "Service": {"ID": "web-2", "Address": "10.0.0.2", "Port": 80}, "Checks": [{"CheckID": "c", "Status": "critical", "Output": "` + strings.Repeat("x", 500) + `"}]},
	{"Node": {"Node": "n3"}, "Service": {"ID": "web-3", "Address": "10.0.0.3", "Port": 80}, "Checks": [{"CheckID": "c", "Status": "warning", "Output": "slow"}]}]`
	must.Succeed(t, json.Unmarshal([]byte(text), &all))
	expect.Equal(t, all[0].Checks[0].Critical, "", "text of a passing check is kept: critical")
	o := Options{}.withDefaults()
	got := o.build("web", all, nil)
	want := []string{"Consul check critical: web http: HTTP GET http://10.0.0.1/: 500", "Consul check critical: c: " + strings.Repeat("x", 120) + "...", ""}
	for i, b := range got.service.Backends {
		if text := b.Reason.Text(time.Now()); text != want[i] {
			t.Errorf("%s: reason %q, want %q", b.ID(), text, want[i])
		}
	}
	expect.Equal(t, len(got.service.Backends), 3, "backends")
}

// A server does not decide how long a problem is: names of its objects are shortened.
func TestLongNames(t *testing.T) {
	o := Options{}.withDefaults()
	long := strings.Repeat("n", 5000)
	for what, change := range map[string]func(*instance){
		"node":     func(i *instance) { i.Node.Node = long },
		"ID":       func(i *instance) { i.Service.ID, i.Service.Address = long, "10.0.0.2" },
		"address":  func(i *instance) { i.Service.Address = long },
		"key":      func(i *instance) { i.Service.Meta[metaPrefix+long] = "x" },
		"value":    func(i *instance) { i.Service.Meta[metaPrefix+"scheduler"] = long },
		"disagree": func(i *instance) { i.Service.ID, i.Service.Meta[metaPrefix+"pool"] = long, long },
		"service":  nil,
	} {
		all, name := instances("n1 10.0.0.1:80", "n2 10.0.0.2:80"), "web"
		if change == nil {
			name = long
		} else {
			change(&all[0])
		}
		got := o.build(name, all, nil)
		expect.True(t, len(got.problems) > 0, "%s: no problem", what)
		for _, p := range got.problems {
			expect.AtMost(t, len(p.Error())+len(p.Hint), 1500, "%s: bytes of a problem", what)
		}
	}
}
