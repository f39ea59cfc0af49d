package spec

import (
	"net/netip"
	"reflect"
	"slices"
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
		Settings: vip.Settings{Scheduler: vip.WeightedRoundRobin, Forward: vip.ForwardNAT, Affinity: 3 * time.Hour, InternalTraffic: vip.Cluster, ExternalTraffic: vip.Cluster,
			Distribution: vip.DistributeAny, Masquerade: vip.MasqueradeAuto, DrainTimeout: time.Minute},
	}
	if diff := cmp.Diff(want, got, cmpAddrs); diff != "" {
		t.Error(diff)
	}
}

// Each row has one error in a valid service. The only problem must be "field: message | hint".
func TestBuildRefuses(t *testing.T) {
	const ports, backends = `"ports": [{"port": 80}]`, `"backends": [{"address": "10.1.0.11"}]`
	long := strings.Repeat("x", 70)
	tests := []struct{ what, doc, want string }{
		{"unknown key", `{"name": "a", "ports": [{"port": 80, "prot": "tcp"}]}`, `ports[0].prot: unknown key | did you mean "protocol"?`},
		{"check without a type", `{"name": "a", "health": {}, ` + ports + `}`, `health.type: a health check needs a type | use tcp, http, https, grpc, udp, exec or none`},
		{"check as a word", `{"name": "a", "health": "http", ` + ports + `}`, `health: wants a table, has the string "http"`},
		{"check type", `{"name": "a", "health": {"type": "htpp"}, ` + ports + `}`, `health.type: "htpp" is not a known value | did you mean "http"? use tcp, http, https, grpc, udp, exec, none`},
		{"check key", `{"name": "a", "health": {"type": "http", "pth": "/"}, ` + ports + `}`, `health.pth: unknown key | did you mean "path"?`},
		{"check port", `{"name": "a", "health": {"type": "http", "port": 65536}, ` + ports + `}`, `health.port: invalid port 65536: must be 1 to 65535`},
		{"check interval below", `{"name": "a", "health": {"type": "tcp", "interval": "99ms"}, ` + ports + `}`, `health.interval: 99ms is out of bounds | use "100ms" to "1h" in whole milliseconds`},
		{"check interval above", `{"name": "a", "health": {"type": "tcp", "interval": "1h1ms"}, ` + ports + `}`, `health.interval: 1h0m0.001s is out of bounds`},
		{"check interval fraction", `{"name": "a", "health": {"type": "tcp", "interval": "100500us"}, ` + ports + `}`, `health.interval: 100.5ms is out of bounds`},
		{"check interval bare", `{"name": "a", "health": {"type": "tcp", "interval": 2}, ` + ports + `}`, `health.interval: wants a duration, has the number 2`},
		{"check fast interval below", `{"name": "a", "health": {"type": "tcp", "fast_interval": "0s"}, ` + ports + `}`, `health.fast_interval: 0s is out of bounds`},
		{"check fast interval above the interval", `{"name": "a", "health": {"type": "tcp", "interval": "1s", "fast_interval": "2s"}, ` + ports + `}`, `health.fast_interval: 2s is longer than the interval, 1s | use at most the interval`},
		{"check fast interval above the default interval", `{"name": "a", "health": {"type": "tcp", "fast_interval": "3s"}, ` + ports + `}`, `health.fast_interval: 3s is longer than the interval, 2s`},
		{"check timeout below", `{"name": "a", "health": {"type": "tcp", "timeout": "99ms"}, ` + ports + `}`, `health.timeout: 99ms is out of bounds | use "100ms" to "1m"`},
		{"check timeout above", `{"name": "a", "health": {"type": "tcp", "timeout": "61s"}, ` + ports + `}`, `health.timeout: 1m1s is out of bounds`},
		{"check rise below", `{"name": "a", "health": {"type": "tcp", "rise": 0}, ` + ports + `}`, `health.rise: 0 is out of bounds | use 1 to 255`},
		{"check fall above", `{"name": "a", "health": {"type": "tcp", "fall": 256}, ` + ports + `}`, `health.fall: 256 is out of bounds | use 1 to 255`},
		{"method", `{"name": "a", "health": {"type": "http", "method": "POST"}, ` + ports + `}`, `health.method: "POST" is not a known value | use GET, HEAD, OPTIONS`},
		{"method in small letters", `{"name": "a", "health": {"type": "http", "method": "get"}, ` + ports + `}`, `health.method: "get" is not a known value | did you mean "GET"? use GET, HEAD, OPTIONS`},
		{"path without a slash", `{"name": "a", "health": {"type": "http", "path": "healthz"}, ` + ports + `}`, `health.path: "healthz" is not a path | use a path such as "/healthz?full=1", without spaces`},
		{"path with a space", `{"name": "a", "health": {"type": "https", "path": "/a b"}, ` + ports + `}`, `health.path: "/a b" is not a path`},
		{"path with a line break", `{"name": "a", "health": {"type": "http", "path": "/\r\nHost: x"}, ` + ports + `}`, `health.path: "/\r\nHost: x" is not a path`},
		{"long path", `{"name": "a", "health": {"type": "http", "path": "/` + strings.Repeat("x", maxCheckText) + `"}, ` + ports + `}`, `health.path: 1025 bytes are more than 1024`},
		{"host with a space", `{"name": "a", "health": {"type": "http", "host": "a b"}, ` + ports + `}`, `health.host: "a b" is not a host | use a name`},
		{"host as a URL", `{"name": "a", "health": {"type": "grpc", "host": "http://a"}, ` + ports + `}`, `health.host: "http://a" is not a host`},
		{"status", `{"name": "a", "health": {"type": "http", "status": "ok"}, ` + ports + `}`, `health.status: "ok" is not a status code or a range of them | use codes and ranges, such as "200" or "200-299,404"`},
		{"status below", `{"name": "a", "health": {"type": "http", "status": "200,99"}, ` + ports + `}`, `health.status: "99" is not a status code`},
		{"status above", `{"name": "a", "health": {"type": "http", "status": "500-600"}, ` + ports + `}`, `health.status: "500-600" is not a status code`},
		{"status reversed", `{"name": "a", "health": {"type": "http", "status": "299-200"}, ` + ports + `}`, `health.status: "299-200" is not a status code`},
		{"status without an end", `{"name": "a", "health": {"type": "http", "status": "200-"}, ` + ports + `}`, `health.status: "200-" is not a status code`},
		{"status as a number", `{"name": "a", "health": {"type": "http", "status": 200}, ` + ports + `}`, `health.status: wants a string, has the number 200`},
		{"body and an unknown method", `{"name": "a", "health": {"type": "http", "method": "POST", "body": "ok"}, ` + ports + `}`, `health.method: "POST" is not a known value | use GET, HEAD, OPTIONS`},
		{"body of HEAD", `{"name": "a", "health": {"type": "http", "method": "HEAD", "body": "ok"}, ` + ports + `}`, `health.body: an answer to HEAD has no body | remove it, or use method GET`},
		{"long body", `{"name": "a", "health": {"type": "http", "body": "` + strings.Repeat("x", maxCheckText+1) + `"}, ` + ports + `}`, `health.body: 1025 bytes are more than 1024`},
		{"udp check without a datagram", `{"name": "a", "health": {"type": "udp"}, "ports": [{"port": 53, "protocol": "udp"}]}`, `health.send: a udp check needs a datagram to send`},
		{"skip_verify without tls", `{"name": "a", "health": {"type": "grpc", "skip_verify": true}, ` + ports + `}`, `health.skip_verify: without tls there is no certificate to verify | add tls, or remove it`},
		{"command missing", `{"name": "a", "health": {"type": "exec"}, ` + ports + `}`, `health.command: an exec check needs a command | use a list: `},
		{"command as a line", `{"name": "a", "health": {"type": "exec", "command": "/bin/true"}, ` + ports + `}`, `health.command: wants a list, has the string "/bin/true"`},
		{"command without a path", `{"name": "a", "health": {"type": "exec", "command": ["curl", "x"]}, ` + ports + `}`, `health.command[0]: "curl" is not an absolute path | write its whole path`},
		{"command with NUL", `{"name": "a", "health": {"type": "exec", "command": ["/bin/x", "a\u0000b"]}, ` + ports + `}`, `health.command[1]: is longer than 1024 bytes or contains NUL`},
		{"long command", `{"name": "a", "health": {"type": "exec", "command": ["/bin/x"` + strings.Repeat(`, "x"`, maxCheckWords) + `]}, ` + ports + `}`, `health.command: 65 words are more than 64`},
		{"http check of udp", `{"name": "a", "health": {"type": "http"}, "ports": [{"port": 53, "protocol": "udp"}]}`, `health.type: a check of type http needs a single tcp port and the service has none | state the port to probe in health.port, or use another type`},
		{"grpc check of sctp", `{"name": "a", "health": {"type": "grpc"}, "ports": [{"port": 53, "protocol": "sctp"}]}`, `health.type: a check of type grpc needs a single tcp port`},
		{"udp check of tcp", `{"name": "a", "health": {"type": "udp", "send": "x"}, ` + ports + `}`, `health.type: a check of type udp needs a single udp port and the service has none`},
		{"tcp check of a range", `{"name": "a", "health": {"type": "tcp"}, "ports": [{"port": "80-90"}], "backends": [{"address": "10.1.0.1", "port": 80}, {"address": "10.1.0.2"}]}`, `health.type: a check of type tcp needs a single tcp port`},
		{"check of a bad port", `{"name": "a", "health": {"type": "udp", "send": "x"}, "ports": [{"port": 80, "protocol": "upd"}]}`, `ports[0].protocol: "upd" is not a protocol`},
		{"on_unhealthy", `{"name": "a", "on_unhealthy": "rest", ` + ports + `}`, `on_unhealthy: "rest" is not a known value | did you mean "reset"? use drain, reset`},
		{"panic threshold below", `{"name": "a", "panic_threshold": -1, ` + ports + `}`, `panic_threshold: -1 is out of bounds | use 0 to 100, in percent`},
		{"panic threshold above", `{"name": "a", "panic_threshold": 101, ` + ports + `}`, `panic_threshold: 101 is out of bounds`},
		{"panic threshold as text", `{"name": "a", "panic_threshold": "50%", ` + ports + `}`, `panic_threshold: wants a whole number, has the string "50%"`},
		{"bad scheduler with a flag of another", `{"name": "a", "scheduler": "hm", "scheduler_flags": ["port"], ` + ports + `}`, `scheduler: "hm" is not a known value`},
		{"slow start below", `{"name": "a", "slow_start": "500ms", ` + ports + `}`, `slow_start: 500ms is out of bounds | use "1s" to "1h" in whole seconds`},
		{"slow start in parts of a second", `{"name": "a", "slow_start": "1500ms", ` + ports + `}`, `slow_start: 1.5s is out of bounds`},
		{"slow start above", `{"name": "a", "slow_start": "2h", ` + ports + `}`, `slow_start: 2h is out of bounds`},
		{"slow start without weights", `{"name": "a", "slow_start": "30s", "scheduler": "rr", ` + ports + `}`, `slow_start: scheduler rr has no weights | use scheduler wrr, wlc, sed or nq, or remove it`},
		{"slow start of lc", `{"name": "a", "slow_start": "30s", "scheduler": "lc", ` + ports + `}`, `slow_start: scheduler lc has no weights`},
		{"slow start of a hash", `{"name": "a", "slow_start": "30s", "scheduler": "mh", ` + ports + `}`, `slow_start: scheduler mh would move clients with each step`},
		{"slow start of fo", `{"name": "a", "slow_start": "30s", "scheduler": "fo", ` + ports + `}`, `slow_start: scheduler fo uses only the backend with the greatest weight`},
		{"backup as text", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "backup": "yes"}]}`, `backends[0].backup: wants true or false, has the string "yes"`},
		{"health of a backend", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "health": "healthy"}]}`, `backends[0].health: unknown key`},
		{"unknown key far from all", `{"name": "a", "zzzzzz": 1, ` + ports + `}`, `zzzzzz: unknown key | remove it; known keys: accept_proxy_from, affinity, `},
		{"groups without weights", `{"name": "a", "scheduler": "rr", "groups": [{"name": "x"}], ` + ports + `}`, `groups: scheduler rr has no weights | use scheduler wrr, wlc, sed, sh or mh`},
		{"groups of fo", `{"name": "a", "scheduler": "fo", "groups": [{"name": "x"}], ` + ports + `}`, `groups: scheduler fo uses only the backend with the greatest weight`},
		{"groups of nq", `{"name": "a", "scheduler": "nq", "groups": [{"name": "x"}], ` + ports + `}`, `groups: scheduler nq prefers an idle backend to any weight`},
		{"groups and backends", `{"name": "a", "groups": [{"name": "x", ` + backends + `}], ` + ports + `, "backends": [{"address": "10.1.0.12"}]}`, `backends: a service has either backends or groups, and this one has both | move them into a group`},
		{"group without a name", `{"name": "a", "groups": [{"weight": 1}], ` + ports + `}`, `groups[0].name: a name is needed`},
		{"group with a bad name", `{"name": "a", "groups": [{"name": "Canary"}], ` + ports + `}`, `groups[0].name: "Canary" is not a DNS label`},
		{"group twice", `{"name": "a", "groups": [{"name": "x"}, {"name": "x"}], ` + ports + `}`, `groups[1].name: "x" comes twice | give each group its own name`},
		{"group weight", `{"name": "a", "groups": [{"name": "x", "weight": 65536}], ` + ports + `}`, `groups[0].weight: 65536 is out of bounds | use 0 to 65535`},
		{"key of a group", `{"name": "a", "groups": [{"name": "x", "wieght": 1}], ` + ports + `}`, `groups[0].wieght: unknown key | did you mean "weight"?`},
		{"groups with forward host", `{"name": "a", "forward": "host", "groups": [{"name": "x"}], ` + ports + `}`, `groups: has no effect with forward host`},
		{"17 groups", `{"name": "a", "groups": [` + strings.Repeat(`{"name": "x"}, `, 16) + `{"name": "y"}], ` + ports + `}`, `groups: 17 groups are more than 16 | split the service`},
		{"backend of two groups", `{"name": "a", ` + ports + `, "groups": [{"name": "x", "backends": [{"address": "10.1.0.12"}, {"address": "10.1.0.11"}]}, {"name": "y"}, {"name": "z", ` + backends + `}]}`,
			`groups[2].backends[0]: 10.1.0.11 is that of groups[0].backends[1], too | keep one`},
		{"weight in a group", `{"name": "a", ` + ports + `, "groups": [{"name": "x", ` + backends + `}, {"name": "y", "backends": [{"address": "10.1.0.12", "weight": -1}]}]}`, `groups[1].backends[0].weight: -1 is out of bounds`},
		{"ports of a backend in a group", `{"name": "a", ` + ports + `, "groups": [{"name": "x", "backends": [{"address": "10.1.0.12", "ports": ["http"]}]}]}`, `groups[0].backends[0].ports[0]: the service has no port "http"`},
		{"key twice", `{"name": "a", "pool": "x", "pool": "y", ` + ports + `}`, `pool: comes twice | keep one of them`},
		{"wrong type", `{"name": 7, ` + ports + `}`, `name: wants a string, has the number 7 | put it in quotes`},
		{"port in quotes", `{"name": "a", "ports": [{"port": "80"}]}`, `ports[0].port: wants a whole number, has the string "80" | write 80, without quotes`},
		{"port with a fraction", `{"name": "a", "ports": [{"port": 80.5}]}`, `ports[0].port: wants a whole number, has the number 80.5`},
		{"list wanted", `{"name": "a", "ports": {"port": 80}}`, `ports: wants a list, has a table | write it in brackets`},
		{"no name", `{` + ports + `}`, `name: a name is needed | use 1 to 63`},
		{"bad name", `{"name": "Web_1", ` + ports + `}`, `name: "Web_1" is not a DNS label`},
		{"long name", `{"name": "` + long + `", ` + ports + `}`, `name: "xxxxxxxxxxxxxxxxxxxx"... is longer than 63 characters`},
		{"bad namespace", `{"name": "a", "namespace": "-", ` + ports + `}`, `namespace: "-" is not a DNS label`},
		{"no ports", `{"name": "a"}`, `ports: a service needs a port | write at least one in ports`},
		{"empty ports", `{"name": "a", "ports": []}`, `ports: a service needs a port`},
		{"port missing", `{"name": "a", "ports": [{}]}`, `ports[0].port: a port number is needed`},
		{"port zero", `{"name": "a", "ports": [{"port": 0}]}`, `ports[0].port: invalid port 0: must be 1 to 65535`},
		{"port above", `{"name": "a", "ports": [{"port": 65536}]}`, `ports[0].port: invalid port 65536: must be 1 to 65535`},
		{"port far above", `{"name": "a", "ports": [{"port": 99999999999999999999}]}`, `ports[0].port: wants a whole number`},
		{"target above", `{"name": "a", "ports": [{"port": 80, "target_port": -1}]}`, `ports[0].target_port: invalid port -1: must be 1 to 65535`},
		{"same port", `{"name": "a", "ports": [{"port": 80}, {"port": 80, "protocol": "udp"}, {"port": 80, "protocol": "tcp"}]}`, `ports[2].port: 80/tcp is that of ports[0], too | change one`},
		{"same port name", `{"name": "a", "ports": [{"port": 80, "name": "x"}, {"port": 81, "name": "x"}]}`, `ports[1].name: "x" is the name of ports[0], too`},
		{"protocol", `{"name": "a", "ports": [{"port": 80, "protocol": "tpc"}]}`, `ports[0].protocol: "tpc" is not a protocol | did you mean "tcp"?`},
		{"node port", `{"name": "a", "ports": [{"port": 80, "node_port": "yes"}]}`, `ports[0].node_port: invalid node port: the string "yes" | use "off", "auto" or a number`},
		{"node port above", `{"name": "a", "ports": [{"port": 80, "node_port": 70000}]}`, `ports[0].node_port: invalid port 70000: must be 1 to 65535`},
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
		{"backend twice for two ports", `{"name": "a", "ports": [{"port": 80, "name": "x"}, {"port": 81, "name": "y"}], "backends": [{"address": "10.1.0.1", "port": 80, "ports": ["x"]}, {"address": "10.1.0.1", "port": 80, "ports": ["y"]}]}`, `backends[1]: 10.1.0.1:80 is that of backends[0], too`},
		{"backend twice by target port of one port", `{"name": "a", "ports": [{"port": 80, "name": "x"}, {"port": 81, "name": "y"}], "backends": [{"address": "10.1.0.1", "ports": ["x"]}, {"address": "10.1.0.1", "port": 80}]}`, `backends[1]: 10.1.0.1:80 is the same server as backends[0] on port 80/tcp`},
		{"port that isn't there", `{"name": "a", "ports": [{"port": 80, "name": "http"}, {"port": 81}], "backends": [{"address": "10.1.0.1", "ports": ["81/tcp", "htpp"]}]}`, `backends[0].ports[1]: the service has no port "htpp" | did you mean "http"? the service's ports are http, 81/tcp`},
		{"port that is far from all", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "ports": ["metrics"]}]}`, `backends[0].ports[0]: the service has no port "metrics" | the service's ports are 80/tcp`},
		{"port of a backend twice", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "ports": ["80/tcp", "80/tcp"]}]}`, `backends[0].ports[1]: "80/tcp" comes twice | remove it`},
		{"ports of a bad service", `{"name": "a", "ports": [{"port": 0}], "backends": [{"address": "10.1.0.1", "ports": ["80/tcp"]}]}`, `ports[0].port: invalid port 0: must be 1 to 65535`},
		{"port of a backend by number", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "ports": [80]}]}`, `backends[0].ports[0]: wants a string, has the number 80`},
		{"empty hint", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "for_zones": ["za", ""]}]}`, `backends[0].for_zones[1]: wants up to 253 printable characters without spaces`},
		{"hint with a space", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "for_nodes": ["node one"]}]}`, `backends[0].for_nodes[0]: wants up to 253 printable`},
		{"too many hints", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "for_nodes": [` + strings.Repeat(`"n", `, MaxHints) + `"n"]}]}`, `backends[0].for_nodes: 65 names are more than 64`},
		{"zone with a space", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "zone": "a b"}]}`, `backends[0].zone: wants up to 253 printable`},
		{"assigned", `{"name": "a", "assigned": true, ` + ports + `}`, `assigned: unknown key`},
		{"dr backend port of a port it serves", `{"name": "a", "forward": "dr", "ports": [{"port": 80}, {"port": 443}], "backends": [{"address": "10.1.0.2", "port": 80, "ports": ["443/tcp"]}]}`, `backends[0].port: forward dr does not change the port: 80 is not that of ports[1], 443/tcp`},
		{"nat family", `{"name": "a", "families": ["ipv4"], ` + ports + `, "backends": [{"address": "2001:db8::1"}]}`, `backends[0].address: 2001:db8::1 is ipv6 and the service's VIP is ipv4: nat does not translate`},
		{"nat family by vip", `{"name": "a", "vips": ["2001:db8::9"], ` + ports + `, "backends": [{"address": "10.1.0.1"}]}`, `backends[0].address: 10.1.0.1 is ipv4 and the service's VIP is ipv6`},
		{"two vips of a family", `{"name": "a", "vips": ["192.0.2.1", "192.0.2.2"], ` + ports + `}`, `vips[1]: 192.0.2.2 is the second ipv4 address`},
		{"vip outside families", `{"name": "a", "families": ["ipv4"], "vips": ["2001:db8::1"], ` + ports + `}`, `vips[0]: 2001:db8::1 is ipv6, which families leaves out`},
		{"vip is a prefix", `{"name": "a", "vips": ["192.0.2.1/32"], ` + ports + `}`, `vips[0]: "192.0.2.1/32" is not an address | write the address alone: 192.0.2.1`},
		{"family", `{"name": "a", "families": ["v4"], ` + ports + `}`, `families[0]: "v4" is not an address family | use ipv4 or ipv6`},
		{"family twice", `{"name": "a", "families": ["ipv4", "ipv4"], ` + ports + `}`, `families[1]: ipv4 comes twice`},
		{"scheduler", `{"name": "a", "scheduler": "wlcc", ` + ports + `}`, `scheduler: "wlcc" is not a known value | did you mean "wlc"? use rr, wrr, lc, wlc, sh, mh, sed, nq, fo, dh`},
		{"flag without mh", `{"name": "a", "scheduler_flags": ["port"], ` + ports + `}`, `scheduler_flags[0]: scheduler wrr has no flag "port"`},
		{"unknown flag", `{"name": "a", "scheduler": "mh", "scheduler_flags": ["fall"], ` + ports + `}`, `scheduler_flags[0]: "fall" is not a scheduler flag | did you mean "fallback"?`},
		{"masquerade", `{"name": "a", "masquerade": "alway", ` + ports + `}`, `masquerade: "alway" is not a known value | did you mean "always"?`},
		{"range reversed", `{"name": "a", "ports": [{"port": "10099-10000"}]}`, `ports[0].port: "10099-10000" ends before it begins | write "10000-10099"`},
		{"range of one", `{"name": "a", "ports": [{"port": "80-80"}]}`, `ports[0].port: "80-80" is one port | write 80 alone`},
		{"range above", `{"name": "a", "ports": [{"port": "65000-65536"}]}`, `ports[0].port: "65000-65536" reaches out of 1 to 65535`},
		{"range from 0", `{"name": "a", "ports": [{"port": "0-10"}]}`, `ports[0].port: "0-10" reaches out of 1 to 65535`},
		{"range of many digits", `{"name": "a", "ports": [{"port": "1-99999999999999999999"}]}`, `ports[0].port: "1-99999999999999999999" reaches out of 1 to 65535`},
		{"range with a colon", `{"name": "a", "ports": [{"port": "10000:10099"}]}`, `ports[0].port: "10000:10099" is not how a range of ports is written | write "10000-10099"`},
		{"range with spaces", `{"name": "a", "ports": [{"port": "10000 - 10099"}]}`, `ports[0].port: "10000 - 10099" is not how a range of ports is written | write "10000-10099"`},
		{"a word as port", `{"name": "a", "ports": [{"port": "any"}]}`, `ports[0].port: invalid port "any" | use a number, a range such as "10000-10099", or "all"`},
		{"target of a range as a range", `{"name": "a", "ports": [{"port": "10000-10099", "target_port": "20000-20099"}]}`, `ports[0].target_port: "20000-20099" is more than one port | write one, or leave it out`},
		{"backend's port as a range", `{"name": "a", "ports": [{"port": "all"}], "backends": [{"address": "10.1.0.1", "port": "all"}]}`, `backends[0].port: "all" is more than one port`},
		{"range and port", `{"name": "a", "ports": [{"port": "10000-10099"}, {"port": 10099, "protocol": "udp"}, {"port": 10099}]}`, `ports[2].port: 10099/tcp overlaps 10000-10099/tcp of ports[0] | change one`},
		{"range and range", `{"name": "a", "ports": [{"port": "10000-10099"}, {"port": "all"}]}`, `ports[1].port: 1-65535/tcp overlaps 10000-10099/tcp of ports[0]`},
		{"same range", `{"name": "a", "ports": [{"port": "1-9"}, {"port": "1-9"}]}`, `ports[1].port: 1-9/tcp is that of ports[0], too`},
		{"node port of a range", `{"name": "a", "ports": [{"port": "1-9", "node_port": "auto"}]}`, `ports[0].node_port: 1-9/tcp is a range, which can't have a node port | remove it`},
		{"node port number of a range", `{"name": "a", "ports": [{"port": "1-9", "node_port": 30080}]}`, `ports[0].node_port: 1-9/tcp is a range`},
		{"node port of a range under dr", `{"name": "a", "forward": "dr", "ports": [{"port": "1-9", "node_port": 30080}]}`, `ports[0].node_port: 1-9/tcp is a range`},
		{"dr target port", `{"name": "a", "forward": "dr", "ports": [{"port": 80, "target_port": 80}, {"port": 81, "target_port": 8081}]}`, `ports[1].target_port: forward dr does not change the port: 8081 is not that of 81/tcp | remove it and let the backends listen on the VIP's port`},
		{"tunnel target port", `{"name": "a", "forward": "tunnel", "ports": [{"port": 80, "target_port": 8080}]}`, `ports[0].target_port: forward tunnel does not change the port: 8080`},
		{"dr target port of a range", `{"name": "a", "forward": "dr", "ports": [{"port": "80-90", "target_port": 80}]}`, `ports[0].target_port: forward dr does not change the port: 80 is not all of 80-90/tcp`},
		{"dr backend port", `{"name": "a", "forward": "dr", ` + ports + `, "backends": [{"address": "10.1.0.2", "port": 80}, {"address": "10.1.0.1", "port": 8080}]}`, `backends[1].port: forward dr does not change the port: 8080 is not that of ports[0], 80/tcp | remove it`},
		{"dr backend port of two ports", `{"name": "a", "forward": "tunnel", "ports": [{"port": 80}, {"port": 443}], "backends": [{"address": "10.1.0.2", "port": 80}]}`, `backends[0].port: forward tunnel does not change the port: 80 is not that of ports[1], 443/tcp`},
		{"dr backend port of a range", `{"name": "a", "forward": "dr", "ports": [{"port": "80-90"}], "backends": [{"address": "10.1.0.2", "port": 80}]}`, `backends[0].port: forward dr does not change the port: 80 is not that of ports[0], 80-90/tcp`},
		{"backends of this host", `{"name": "a", "forward": "host", ` + ports + `, ` + backends + `}`, `backends: has no effect with forward host: the programs of the host that has the VIP serve the clients | remove it`},
		{"a shared whole VIP", `{"name": "a", "forward": "host", "share_key": "k"}`, `share_key: has no effect with forward host`},
		{"idle timeout of this host", `{"name": "a", "forward": "host", "idle_timeout": "1m"}`, `idle_timeout: has no effect with forward host`},
		{"node port of this host", `{"name": "a", "forward": "host", "ports": [{"port": 80, "node_port": "auto"}]}`, `ports[0].node_port: forward host needs none`},
		{"target port of this host", `{"name": "a", "forward": "host", "ports": [{"port": 80, "target_port": 8080}]}`, `ports[0].target_port: forward host does not change the port: 8080 is not that of 80/tcp`},
		{"a check of this host without a port", `{"name": "a", "forward": "host", "health": {"type": "tcp"}}`, `health.type: a check of type tcp needs a single tcp port and the service has none | state the port to probe in health.port`},
		{"dr node port", `{"name": "a", "forward": "dr", "ports": [{"port": 80, "node_port": "auto"}]}`, `ports[0].node_port: forward dr does not change the address`},
		{"tunnel node port", `{"name": "a", "forward": "tunnel", "ports": [{"port": 80, "node_port": 30080}]}`, `ports[0].node_port: forward tunnel does not change the address`},
		{"dr masquerade", `{"name": "a", "forward": "dr", "masquerade": "always", ` + ports + `}`, `masquerade: forward dr does not change the client's address | remove it, or use forward nat`},
		{"dr family", `{"name": "a", "forward": "dr", "families": ["ipv4"], ` + ports + `, "backends": [{"address": "2001:db8::1"}]}`, `backends[0].address: 2001:db8::1 is ipv6 and the service's VIP is ipv4: dr does not translate`},
		{"tunnel family by vip", `{"name": "a", "forward": "tunnel", "vips": ["2001:db8::9"], ` + ports + `, "backends": [{"address": "10.1.0.1"}]}`, `backends[0].address: 10.1.0.1 is ipv4 and the service's VIP is ipv6: tunnel does not translate`},
		{"forward", `{"name": "a", "forward": "tunel", ` + ports + `}`, `forward: "tunel" is not a known value | did you mean "tunnel"? use nat, dr, tunnel`},
		{"one-packet with nat", `{"name": "a", "scheduler_flags": ["one-packet"], "ports": [{"port": 53, "protocol": "udp"}]}`, `scheduler_flags[0]: one-packet does not work with forward nat, which needs a connection to bring replies back | use forward dr or tunnel, or remove the flag`},
		{"one-packet with tcp", `{"name": "a", "forward": "dr", "scheduler": "mh", "scheduler_flags": ["port", "one-packet"], "ports": [{"port": 53, "protocol": "udp"}, {"port": 53}]}`, `scheduler_flags[1]: one-packet is for udp, and ports[1] is 53/tcp | give the udp ports`},
		{"one-packet with affinity", `{"name": "a", "forward": "dr", "affinity": {}, "scheduler_flags": ["one-packet"], "ports": [{"port": 53, "protocol": "udp"}]}`, `scheduler_flags[0]: one-packet selects a backend for every datagram, affinity keeps`},
		{"one-packet twice", `{"name": "a", "forward": "dr", "scheduler_flags": ["one-packet", "one-packet"], "ports": [{"port": 53, "protocol": "udp"}]}`, `scheduler_flags[1]: "one-packet" comes twice | remove it`},
		{"internal traffic", `{"name": "a", "internal_traffic": "node", ` + ports + `}`, `internal_traffic: "node" is not a known value | use cluster, local`},
		{"external traffic", `{"name": "a", "external_traffic": "lokal", ` + ports + `}`, `external_traffic: "lokal" is not a known value | did you mean "local"?`},
		{"traffic distribution", `{"name": "a", "traffic_distribution": "PreferClose", ` + ports + `}`, `traffic_distribution: "PreferClose" is not a known value | use any, same-zone, same-node`},
		{"health port of cluster", `{"name": "a", "health_check_node_port": "auto", ` + ports + `}`, `health_check_node_port: with external_traffic cluster every node takes traffic, and there is nothing to check | use external_traffic local, or remove it`},
		{"health port number of cluster", `{"name": "a", "internal_traffic": "local", "health_check_node_port": 32000, ` + ports + `}`, `health_check_node_port: with external_traffic cluster`},
		{"health port", `{"name": "a", "external_traffic": "local", "health_check_node_port": "on", ` + ports + `}`, `health_check_node_port: invalid node port: the string "on" | use "off", "auto" or a number`},
		{"health port above", `{"name": "a", "external_traffic": "local", "health_check_node_port": 65536, ` + ports + `}`, `health_check_node_port: invalid port 65536: must be 1 to 65535`},
		{"health port is a node port", `{"name": "a", "external_traffic": "local", "health_check_node_port": 30080, "ports": [{"port": 80, "protocol": "udp", "node_port": 30080}, {"port": 80, "node_port": 30080}]}`, `health_check_node_port: 30080/tcp is the node port of ports[1], too | change one of the two`},
		{"masquerade own", `{"name": "a", "masquerade": "own", ` + ports + `}`, `masquerade: "own" is not a known value`},
		{"source range", `{"name": "a", "source_ranges": ["10.0.0.0/33"], ` + ports + `}`, `source_ranges[0]: "10.0.0.0/33" is not a range of addresses | write it as 192.0.2.0/24`},
		{"source range with a zone", `{"name": "a", "source_ranges": ["fe80::1%eth0"], ` + ports + `}`, `source_ranges[0]: "fe80::1%eth0" is not a range of addresses`},
		{"source range with host bits", `{"name": "a", "source_ranges": ["10.1.0.0/16", "10.1.2.3/16"], ` + ports + `}`, `source_ranges[1]: 10.1.2.3/16 is not the first address of its range | write 10.1.0.0/16, or 10.1.2.3/32 for the one address`},
		{"source range mapped", `{"name": "a", "source_ranges": ["::ffff:10.0.0.0/104"], ` + ports + `}`, `source_ranges[0]: ::ffff:10.0.0.0/104 is an IPv4 range in IPv6 form | write it as 10.0.0.0/8`},
		{"source address mapped", `{"name": "a", "source_ranges": ["::ffff:10.0.0.1"], ` + ports + `}`, `source_ranges[0]: ::ffff:10.0.0.1 is an IPv4 range in IPv6 form | write it as 10.0.0.1/32`},
		{"source range of another family", `{"name": "a", "families": ["ipv4"], "source_ranges": ["10.0.0.0/8", "2001:db8::/32"], ` + ports + `}`, `source_ranges[1]: 2001:db8::/32 is ipv6 and the service's VIP is ipv4 | remove it`},
		{"source range of another family by vip", `{"name": "a", "vips": ["2001:db8::9"], "source_ranges": ["10.0.0.0/8"], ` + ports + `}`, `source_ranges[0]: 10.0.0.0/8 is ipv4 and the service's VIP is ipv6`},
		{"hostname in upper case", `{"name": "a", "hostnames": ["a.example", "Shop.Example.com."], ` + ports + `}`, `hostnames[1]: "Shop.Example.com." is not a DNS name: use labels of a-z, 0-9 and inner "-" with dots between them | write it as shop.example.com`},
		{"hostname without a domain", `{"name": "a", "hostnames": ["shop"], ` + ports + `}`, `hostnames[0]: "shop" has no domain | use a full name: "shop.example.com"`},
		{"hostname of an address", `{"name": "a", "hostnames": ["192.0.2.1"], ` + ports + `}`, `hostnames[0]: "192.0.2.1" ends in a number, as an address does`},
		{"hostname twice", `{"name": "a", "hostnames": ["a.example", "a.example"], ` + ports + `}`, `hostnames[1]: a.example comes twice | remove it`},
		{"too many hostnames", `{"name": "a", "hostnames": [` + strings.Repeat(`"a.example", `, vip.MaxHostnames) + `"a.example"], ` + ports + `}`, `hostnames: 17 hostnames are more than 16`},
		{"hostnames bare", `{"name": "a", "hostnames": "shop.example.com", ` + ports + `}`, `hostnames: wants a list, has the string "shop.example.com"`},
		{"proxy protocol", `{"name": "a", "proxy_protocol": "v3", ` + ports + `}`, `proxy_protocol: "v3" is not a known value | did you mean "v1"? use v1, v2`},
		{"proxy protocol with udp", `{"name": "a", "proxy_protocol": "v2", "ports": [{"port": 53, "protocol": "udp"}]}`, `proxy_protocol: the PROXY protocol is for tcp, and the service has no tcp port | remove it`},
		{"balancer with sctp", `{"name": "a", "accept_proxy_from": ["10.0.0.1"], "ports": [{"port": 53, "protocol": "sctp"}]}`, `accept_proxy_from: the PROXY protocol is for tcp, and the service has no tcp port | remove it`},
		{"proxy protocol with dr", `{"name": "a", "proxy_protocol": "v1", "forward": "dr", ` + ports + `}`, `proxy_protocol: with forward dr, connections end at the backends`},
		{"balancer", `{"name": "a", "accept_proxy_from": ["lb.example"], ` + ports + `}`, `accept_proxy_from[0]: "lb.example" is not a range of addresses`},
		{"balancer of another family", `{"name": "a", "families": ["ipv4"], "accept_proxy_from": ["2001:db8::/32"], ` + ports + `}`, `accept_proxy_from[0]: 2001:db8::/32 is ipv6 and the service's VIP is ipv4`},
		{"too many balancers", `{"name": "a", "accept_proxy_from": [` + strings.Repeat(`"10.0.0.1", `, MaxRanges) + `"10.0.0.1"], ` + ports + `}`, `accept_proxy_from: 1025 ranges are more than 1024`},
		{"too many source ranges", `{"name": "a", "source_ranges": [` + strings.Repeat(`"10.0.0.1", `, MaxRanges) + `"10.0.0.1"], ` + ports + `}`, `source_ranges: 1025 ranges are more than 1024`},
		{"state near", `{"name": "a", ` + ports + `, "backends": [{"address": "10.1.0.1", "state": "terminate"}]}`, `backends[0].state: "terminate" is not a state | did you mean "terminating"? use ready, drain, maint, terminating`},
		{"affinity bare", `{"name": "a", "affinity": "3h", ` + ports + `}`, `affinity: wants a table, has the string "3h"`},
		{"affinity unit", `{"name": "a", "affinity": {"timeout": "30"}, ` + ports + `}`, `affinity.timeout: "30" is not a duration | write it with a unit, in quotes: "90s"`},
		{"affinity below", `{"name": "a", "affinity": {"timeout": "0s"}, ` + ports + `}`, `affinity.timeout: 0s is out of bounds | use "1s" to "24h"`},
		{"affinity above", `{"name": "a", "affinity": {"timeout": "24h1s"}, ` + ports + `}`, `affinity.timeout: 24h0m1s is out of bounds`},
		{"affinity fraction", `{"name": "a", "affinity": {"timeout": "1500ms"}, ` + ports + `}`, `affinity.timeout: 1.5s is out of bounds`},
		{"drain number", `{"name": "a", "drain_timeout": 60, ` + ports + `}`, `drain_timeout: wants a duration, has the number 60`},
		{"drain below", `{"name": "a", "drain_timeout": "-1s", ` + ports + `}`, `drain_timeout: -1s is out of bounds | use "0s" to "24h"`},
		{"connect below", `{"name": "a", "connect_timeout": "1ms", ` + ports + `}`, `connect_timeout: 1ms is out of bounds | use "10ms" to "1m"`},
		{"connect above", `{"name": "a", "connect_timeout": "2m", ` + ports + `}`, `connect_timeout: 2m is out of bounds`},
		{"idle below", `{"name": "a", "idle_timeout": "0s", ` + ports + `}`, `idle_timeout: 0s is out of bounds | use "1s" to "168h"`},
		{"idle above", `{"name": "a", "idle_timeout": "169h", ` + ports + `}`, `idle_timeout: 169h is out of bounds`},
		{"half-close below", `{"name": "a", "half_close_timeout": "0s", ` + ports + `}`, `half_close_timeout: 0s is out of bounds | use "1s" to "168h"`},
		{"connections below", `{"name": "a", "max_connections": -1, ` + ports + `}`, `max_connections: -1 is out of bounds | use 1 to 10000000, or 0 for none`},
		{"connections above", `{"name": "a", "max_connections": 10000001, ` + ports + `}`, `max_connections: 10000001 is out of bounds`},
		{"connections of a backend", `{"name": "a", "backends": [{"address": "10.0.0.1", "max_connections": -1}], ` + ports + `}`, `backends[0].max_connections: -1 is out of bounds | use 1 to 10000000, or 0 for none`},
		{"queue above", `{"name": "a", "max_queue": 65536, ` + ports + `}`, `max_queue: 65536 is out of bounds | use 1 to 65535, or 0 for none`},
		{"queue timeout", `{"name": "a", "queue_timeout": "2m", ` + ports + `}`, `queue_timeout: 2m is out of bounds | use "10ms" to "1m"`},
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
			if strings.Contains(p.Hint, " = ") {
				t.Errorf("the hint %q is in the syntax of TOML, and who asked may write JSON", p.Hint)
			}
			if p.Code == "" {
				t.Error("no code")
			}
		})
	}
}

// A field that has no effect with the type of the check is refused, so that nobody relies on it.
func TestCheckRefusesFieldsOfOtherTypes(t *testing.T) {
	values := map[string]string{
		"port": `80`, "interval": `"2s"`, "fast_interval": `"1s"`, "timeout": `"1s"`, "rise": `2`, "fall": `2`,
		"method": `"GET"`, "path": `"/"`, "host": `"a"`, "status": `"200"`, "body": `"x"`, "tls": `true`, "skip_verify": `true`,
		"service": `"s"`, "send": `"x"`, "expect": `"x"`, "command": `["/bin/x"]`,
	}
	if n := reflect.TypeFor[HealthCheck]().NumField() - 1; n != len(values) {
		t.Errorf("%d fields beside the type, values of %d: add the others", n, len(values))
	}
	timing := []string{"port", "interval", "fast_interval", "timeout", "rise", "fall"}
	http := append([]string{"method", "path", "host", "status", "body"}, timing...)
	for name, takes := range map[string][]string{
		"none": nil, "tcp": append([]string{"send", "expect"}, timing...), "udp": append([]string{"send", "expect"}, timing...), "exec": append([]string{"command"}, timing...),
		"http": http, "https": append([]string{"skip_verify"}, http...), "grpc": append([]string{"host", "service", "tls", "skip_verify"}, timing...),
	} {
		required := map[string]string{"udp": `, "send": "x"`, "exec": `, "command": ["/bin/x"]`}[name]
		for field, value := range values {
			more := required
			if strings.Contains(required, `"`+field+`"`) {
				more = ""
			}
			if name == "grpc" && field == "skip_verify" {
				more = `, "tls": true`
			}
			_, problems := build(t, `{"name": "a", "ports": [{"port": 80}, {"port": 80, "protocol": "udp"}], "health": {"type": "`+name+`", "`+field+`": `+value+more+`}}`)
			want := ""
			if !slices.Contains(takes, field) {
				want = "health." + field + ": a check of type " + name + " has no " + field
			}
			got := ""
			for _, p := range problems {
				got += p.Field + ": " + p.Message
			}
			if got != want {
				t.Errorf("%s with %s: %q, want %q", name, field, got, want)
			}
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, problems := build(t, `{"name": "A", "nmae": "b", "ports": [{"port": 0}, {"port": "x"}], "backends": [{"address": "y", "weight": -1}], "forward": "tunel"}`)
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

// All mistakes of a health check are reported, also beside a key or a value that can't be decoded
// and without a valid type.
func TestAllProblemsOfAHealthCheck(t *testing.T) {
	for check, want := range map[string][]string{
		`{"type": "http", "pth": "/", "rise": "two", "timeout": "0s", "path": "x", "method": "POST"}`: {
			"health.pth", "health.rise", "health.timeout", "health.method", "health.path"},
		`{"type": "htp", "interval": "1us", "timeout": "2h", "rise": 0, "fall": 300, "host": "a b", "path": "x", "status": "ok", "command": ["x"], "port": 70000}`: {
			"health.port", "health.type", "health.interval", "health.timeout", "health.rise", "health.fall", "health.path", "health.host", "health.status", "health.command[0]"},
		`{"fall": 0, "body": "x", "method": "HEAD", "expect": "` + strings.Repeat("x", maxCheckText+1) + `"}`: {
			"health.fall", "health.expect", "health.type", "health.body"},
		`{"type": "tcp", "path": "x", "fall": 0}`: {"health.fall", "health.path"}, // of an unused field, only that
		`{"type": 1, "fall": 0}`:                  {"health.type", "health.fall"},
		`{"type": "none", "fall": 0}`:             {"health.fall"},
	} {
		_, problems := build(t, `{"name": "a", "ports": [{"port": 80}], "health": `+check+`}`)
		var fields []string
		for _, p := range problems {
			fields = append(fields, p.Field)
		}
		if diff := cmp.Diff(want, fields); diff != "" {
			t.Errorf("%s: %s", check, diff)
		}
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
		{"the allocator reports an unknown pool", "x", "10.1.0.1", ""},
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
