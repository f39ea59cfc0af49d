package configs

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources/consul"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/test/problemtest"
	"github.com/ironvip/ironvip/vip/spec"
)

var cmpPrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

var cmpListen = cmp.Comparer(func(a, b ListenAddress) bool { return a == b })

func TestParseReadsEverything(t *testing.T) {
	c, problems := Parse("/etc/ironvip/ironvip.toml", []byte(`
[node]
name = "lb1"
zone = "rack-7"
state_dir = "/srv/state"
[api]
socket = ""
socket_mode = "0600"
listen = "[::1]:7480"
rate_limit = 50
[dataplane]
mode = "ipvs"
role = "real-server"
node_port_addresses = ["192.0.2.1", "198.51.100.0/24"]
resync_interval = "10s"
device = "vips"
namespaces = ["shop", "pay"]
labels = ["tier=web"]
sk_lookup = "never"
connect = "auto"
connect_namespaces = "all"
hard_stop_after = "1m"
[ipam]
store = "consul"
pod_cidrs = ["10.244.0.0/16", "fd00::/48"]
reuse_delay = "1h"
orphan_grace = "2m"
node_ports = "31000-31999"
[[pool]]
name = "public"
cidrs = ["203.0.113.0/24", "2001:db8::/64"]
exclude = ["203.0.113.0/28"]
[[pool]]
name = "spare"
cidrs = ["127.96.0.0/24"]
auto_assign = false
[[source]]
type = "static"
path = "more.d"
[[source]]
type = "static"
name = "second"
path = "/srv/services"
[[source]]
type = "consul"
datacenter = "east"
[[source]]
type = "consul"
name = "west"
address = "unix:///run/consul.sock"
services = ["web", "db"]
pool = "spare"
service_namespace = "west"
tagged_address = "wan"
allow_stale = true
shrink_guard = "0s"
[etcd]
endpoints = ["https://etcd1.example:2379", "https://[2001:db8::7]:2379"]
prefix = "edge"
username = "ironvip"
password_file = "tls/etcd-password"
ca_file = "tls/etcd-ca.pem"
cert_file = "/srv/tls/etcd.pem"
key_file = "/srv/tls/etcd-key.pem"
server_name = "etcd.example"

[consul]
address = "https://consul.example:8501"
token_file = "$CREDENTIALS_DIRECTORY/consul-token"
ca_file = "tls/ca.pem"
cert_file = "/srv/tls/cert.pem"
key_file = "/srv/tls/key.pem"
server_name = "server.dc1.consul"
prefix = "edge/lbs"
[health]
default = "none"
exec = true
probers = 5
[metrics]
backends = ["shop/*", "default/web-?"]
[dns]
domain = "lb.example.com"
listen = ["127.0.0.1:53", "[2001:db8:53::1]:53"]
allow = ["10.0.0.0/8", "2001:db8::1"]
ttl = "1m"
negative_ttl = "5s"
reverse = false
short_names = false
resolver = "resolved"
rate_limit = 10
[log]
level = "debug"
format = "json"
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	prefix := netip.MustParsePrefix
	server := consulclient.Config{Address: "https://consul.example:8501", TokenFile: "$CREDENTIALS_DIRECTORY/consul-token", CAFile: "/etc/ironvip/tls/ca.pem",
		CertFile: "/srv/tls/cert.pem", KeyFile: "/srv/tls/key.pem", ServerName: "server.dc1.consul"}
	east := server
	east.Datacenter = "east"
	want := &Config{
		Node: Node{Name: "lb1", Zone: "rack-7", StateDir: "/srv/state"},
		API:  API{SocketMode: 0o600, Listen: "[::1]:7480", RateLimit: 50},
		Dataplane: Dataplane{Mode: ModeIPVS, Role: RoleRealServer, ResyncInterval: spec.Duration(10 * time.Second), Device: "vips", SkLookup: "never", Connect: ConnectAuto, ConnectNamespaces: ConnectAll, HardStopAfter: spec.Duration(time.Minute),
			Namespaces: []string{"shop", "pay"}, Labels: []string{"tier=web"},
			NodePortAddresses: []AddressRange{{prefix("192.0.2.1/32")}, {prefix("198.51.100.0/24")}}},
		IPAM: IPAM{Store: "consul", ReuseDelay: spec.Duration(time.Hour), OrphanGrace: spec.Duration(2 * time.Minute), NodePorts: PortRange{31000, 31999},
			PodCIDRs: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00::/48")}},
		Pools: []Pool{
			{Name: "public", CIDRs: []netip.Prefix{prefix("203.0.113.0/24"), prefix("2001:db8::/64")}, Exclude: []netip.Prefix{prefix("203.0.113.0/28")}, AutoAssign: true},
			{Name: "spare", CIDRs: []netip.Prefix{prefix("127.96.0.0/24")}},
		},
		Health: Health{Default: "none", Exec: true, Probers: "5"}, Metrics: Metrics{Backends: []string{"shop/*", "default/web-?"}}, Announce: newAnnounce(),
		DNS: DNS{Domain: "lb.example.com", Listen: []ListenAddress{{netip.MustParseAddrPort("127.0.0.1:53")}, {netip.MustParseAddrPort("[2001:db8:53::1]:53")}},
			Allow: []AddressRange{{prefix("10.0.0.0/8")}, {prefix("2001:db8::1/128")}}, TTL: spec.Duration(time.Minute), NegativeTTL: spec.Duration(5 * time.Second), Resolver: ResolverResolved, RateLimit: 10},
		Consul: Consul{server, "edge/lbs"},
		Etcd: Etcd{Endpoints: []string{"https://etcd1.example:2379", "https://[2001:db8::7]:2379"}, Prefix: "edge", Username: "ironvip", PasswordFile: "/etc/ironvip/tls/etcd-password",
			CAFile: "/etc/ironvip/tls/etcd-ca.pem", CertFile: "/srv/tls/etcd.pem", KeyFile: "/srv/tls/etcd-key.pem", ServerName: "etcd.example"},
		Sources: []Source{{"static", "static", &static.Config{Path: "/etc/ironvip/more.d"}}, {"static", "second", &static.Config{Path: "/srv/services"}},
			{"consul", "consul", &consul.Config{Tag: "ironvip", ShrinkGuard: spec.Duration(30 * time.Second), Config: east}},
			{"consul", "west", &consul.Config{Services: []string{"web", "db"}, Pool: "spare", ServiceNamespace: "west", TaggedAddress: "wan", AllowStale: true, Config: consulclient.Config{Address: "unix:///run/consul.sock"}}}},
		Log:  Log{Level: "debug", Format: "json"},
		Path: "/etc/ironvip/ironvip.toml",
	}
	if diff := cmp.Diff(want, c, cmpPrefixes, cmpListen, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Error(diff)
	}
}

func TestParseRefuses(t *testing.T) {
	var patterns []string
	for i := range 101 {
		patterns = append(patterns, fmt.Sprintf("'a%d/*'", i))
	}
	tests := []struct {
		what, doc string
		want      []string
	}{
		{"unknown section", "\n[dataplan]\nmode = 'ipvs'", []string{`c.toml:2: dataplan: unknown key | did you mean "dataplane"?`}},
		{"unknown key", "[api]\n\nsocket_mod = '0600'", []string{`c.toml:3: api.socket_mod: unknown key | did you mean "socket_mode"?`}},
		{"unknown key of a pool", "[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\n[[pool]]\nname = 'b'\ncidr = ['198.51.100.0/24']", []string{
			`c.toml:4: pool[1].cidrs: pool "b" has no ranges | add a range: cidrs`, `c.toml:6: pool[1].cidr: unknown key | did you mean "cidrs"?`}},
		{"quotas", "[[quota]]\nnamespace = 'shop'\n[[quota]]\nnamespace = 'shop'\nservices = 3", []string{
			`c.toml:1: quota[0].addresses: the quota bounds nothing | state addresses, services, or both`,
			`c.toml:4: quota[1].namespace: "shop" has a quota in c.toml:1, too | keep one of the two`}},
		{"the rate of the API", "[api]\nrate_limit = 0", []string{`c.toml:2: api.rate_limit: 0 is out of bounds | use 1 to 1000000`}},
		{"store", "[ipam]\nstore = 'consol'", []string{`c.toml:2: ipam.store: "consol" is not a known value | did you mean "consul"?`}},
		{"an address without a port", "[ipam]\nstore = 'consul'\n[consul]\naddress = '127.0.0.1'", []string{`c.toml:4: consul.address: "127.0.0.1" is not a host and a port | write "127.0.0.1:8500"`}},
		{"consul's address", "[consul]\naddress = 'ftp://a:1'\n[[source]]\ntype = 'consul'\naddress = 'https://user:secret@a:1/x'\n[[source]]\ntype = 'consul'\nname = 'b'\naddress = 'a:99999'\n[[source]]\ntype = 'consul'\nname = 'c'\naddress = 'unix://run'", []string{
			`c.toml:2: consul.address: ftp:// is not a way to reach Consul | write`, `c.toml:5: source[0].address: "https://user:secret@a:1/x" has more than a host and a port`,
			`c.toml:9: source[1].address: "99999" is not a port`, `c.toml:13: source[2].address: "run" is not an absolute path`}},
		{"etcd's endpoints", "[ipam]\nstore = 'etcd'\n[etcd]\nendpoints = ['10.0.0.5:2379', 'https://a:2379', 'http://b:2379']", []string{
			`c.toml:4: etcd.endpoints[0]: "10.0.0.5:2379" is not an endpoint of etcd | write "http://127.0.0.1:2379" or "https://etcd1.example:2379"`,
			`c.toml:4: etcd.endpoints[2]: "http://b:2379" is without TLS, which another endpoint uses | write https:// for all of them`}},
		{"no endpoint of etcd", "[ipam]\nstore = 'etcd'", []string{`c.toml:1: etcd.endpoints: is required for the store etcd | write endpoints = ["http://127.0.0.1:2379"]`}},
		{"etcd's files", "[etcd]\nendpoints = ['http://a:2379']\nprefix = 'a b'\nusername = 'x'\ncert_file = '/x'", []string{
			`c.toml:3: etcd.prefix: "a b" is not a prefix: up to 128 of a-z A-Z 0-9 . _ -, in parts with a single "/" between | use "ironvip"`,
			`c.toml:4: etcd.username: has no password_file | add password_file`,
			`c.toml:5: etcd.cert_file: is for TLS, which the endpoints do not use | write the endpoints as https://HOST:PORT`,
			`c.toml:5: etcd.cert_file: has no key_file | add key_file`}},
		{"consul's prefix", "[consul]\nprefix = '/ironvip/'", []string{`c.toml:2: consul.prefix: "/ironvip/" is not a prefix: up to 128 of a-z A-Z 0-9 . _ -, in parts with a single "/" between | use "ironvip"`}},
		{"consul's files", "[consul]\nca_file = 'ca.pem'\nserver_name = 'a b'\ntoken_file = '$HOME/token'\n[[source]]\ntype = 'consul'\naddress = 'https://a:8501'\ncert_file = '/x'\ntoken_file = '$CREDENTIALS_DIRECTORY/'\n[[source]]\ntype = 'consul'\nname = 'b'\naddress = 'https://b:8501'\nkey_file = '/x'", []string{
			`c.toml:2: consul.ca_file: is for TLS, which "127.0.0.1:8500" does not use | write the address as https://HOST:PORT`,
			`c.toml:3: consul.server_name: wants up to 253 printable characters without spaces`, `c.toml:3: consul.server_name: is for TLS`,
			`c.toml:4: consul.token_file: "$HOME/token": no variable but CREDENTIALS_DIRECTORY is known here | use a path, or "$CREDENTIALS_DIRECTORY/NAME"`,
			`c.toml:8: source[0].cert_file: has no key_file | add key_file`, `c.toml:9: source[0].token_file: "$CREDENTIALS_DIRECTORY/" names no credential`,
			`c.toml:14: source[1].key_file: has no cert_file`}},
		{"a consul token in the file", "[consul]\ntoken = 'secret'", []string{`c.toml:2: consul.token: unknown key | `}},
		{"keys of another type of source", "[[source]]\ntype = 'consul'\npath = '/x'\n[[source]]\ntype = 'static'\npath = '/x'\ntag = 'y'\naddress = ''", []string{
			`c.toml:3: source[0].path: is for sources of type "static", and this one is of type "consul" | remove it`,
			`c.toml:7: source[1].tag: is for sources of type "consul"`, `c.toml:8: source[1].address: is for sources of type "consul"`}},
		{"a source of consul's services", "[[source]]\ntype = 'consul'\npool = 'public'\nservice_namespace = 'A'\ntagged_address = 'a b'\nshrink_guard = '-1s'", []string{
			`c.toml:3: source[0].pool: there is no pool "public" | name one of`, `c.toml:4: source[0].service_namespace: "A" is not a DNS label`,
			`c.toml:5: source[0].tagged_address: wants up to 253`, `c.toml:6: source[0].shrink_guard: -1s is out of bounds | use "0s"`}},
		{"a source of consul", "[[source]]\ntype = 'consul'\nca_file = '/x'\ntag = 'a b'\n[[source]]\ntype = 'consul'\ntag = 'x'\nservices = ['web', '', 'web']", []string{
			`c.toml:3: source[0].ca_file: belongs to an address, and this source uses the address of [consul] | write it in [consul]`,
			`c.toml:4: source[0].tag: wants up to 253 printable characters without spaces`,
			`c.toml:5: source[1].name: "consul" is the name of the source at c.toml:1, too`,
			`c.toml:7: source[1].tag: services are listed at c.toml:8: those are used whatever their tags | keep one of the two`,
			`c.toml:8: source[1].services[1]: is empty`, `c.toml:8: source[1].services[2]: "web" is defined twice`}},
		{"announcing", "[announce]\nmode = 'vrrp'\ninterfaces = ['eth0', 'eth0', 'ironvip0']\npeers = ['10.0.0', '0.0.0.0']\nlisten = '7481'\nweight = 0\nheartbeat = '1ms'\nmissed = 1\nsettle = '2h'\nhold = '-1s'", []string{
			`c.toml:2: announce.mode: "vrrp" is not a known value | use off`, `c.toml:3: announce.interfaces[1]: "eth0" is defined twice`,
			`c.toml:3: announce.interfaces[2]: "ironvip0" has the VIPs, and no network`, `c.toml:4: announce.peers[0]: "10.0.0" is not the address of a host | write "10.0.0.2"`,
			`c.toml:4: announce.peers[1]: "0.0.0.0" is not the address of a host`, `c.toml:5: announce.listen: "7481" is not an address with a port | write ":7481"`,
			`c.toml:6: announce.weight: 0 is out of bounds | use 1 to 1000`, `c.toml:7: announce.heartbeat: 1ms is out of bounds | use "10ms" to "10s"`,
			`c.toml:8: announce.missed: 1 is out of bounds`, `c.toml:9: announce.settle: 2h is out of bounds`, `c.toml:10: announce.hold: -1s is out of bounds`}},
		{"a pair without a secret", "[announce]\nmode = 'l2'\npeers = ['10.0.0.2']\n[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']", []string{`c.toml:1: announce.key_file: is required with peers | write a secret to a file`}},
		{"a pool that is announced by no router", "[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\nannounce = 'bgp'\n[[pool]]\nname = 'b'\ncidrs = ['198.51.100.0/24']\nannounce = 'l3'", []string{
			`c.toml:1: announce.bgp: mode bgp needs a router | add [[announce.bgp]]`, `c.toml:8: pool[1].announce: "l3" is not a known value`}},
		{"routers", "[announce]\n[[announce.bgp]]\nasn = 0\nlocal_asn = 65010\nbfd = '100ms'\ncommunities = ['65010']\n[[announce.bgp]]\npeer = '10.0.0.1'\ninterface = 'eth1'\nasn = 65000\nlocal_asn = 65010\nmultihop = 300", []string{
			`c.toml:2: announce.bgp[0]: names no router | add peer`, `c.toml:3: announce.bgp[0].asn: 0 is out of bounds`, `c.toml:5: announce.bgp[0].bfd: "100ms" is not the detection of a session | write "3x100ms"`,
			`c.toml:6: announce.bgp[0].communities[0]: "65010" is not a community`, `c.toml:9: announce.bgp[1].interface: peer and interface exclude each other`, `c.toml:12: announce.bgp[1].multihop: 300 is out of bounds`,
			`c.toml:12: announce.bgp[1].multihop: the router is on the same link | remove it`}},
		{"settings of a router that exclude each other", "[announce]\n[[announce.bgp]]\npeer = 'fe80::1'\nasn = 23456\nlocal_asn = 65010\nlocal_pref = 1\nmultihop = 2", []string{
			`c.toml:3: announce.bgp[0].peer: fe80::1 is link-local and has no zone | add the interface`, `c.toml:4: announce.bgp[0].asn: 23456 is reserved`,
			`c.toml:6: announce.bgp[0].local_pref: is for a router of the same AS, and asn and local_asn differ | remove it`, `c.toml:7: announce.bgp[0].multihop: the router is on the same link`}},
		{"interfaces of a pool", "[[pool]]\nname = 'a'\ncidrs = ['10.0.0.0/24']\nannounce_interfaces = ['eth0', 'all', 'eth0', 'ironvip0']", []string{
			`c.toml:4: pool[0].announce_interfaces[1]: "all" is not a name for an interface | write a name such as "eth0"`, `c.toml:4: pool[0].announce_interfaces[2]: "eth0" is defined twice`,
			`c.toml:4: pool[0].announce_interfaces[3]: "ironvip0" has the VIPs, and no network`}},
		{"roles", "[[api.role]]\nuser = 'a'\n[[api.role]]\nrole = 'opertor'\nuser = 'a'\n[[api.role]]\nrole = 1\nuser = 'b'\n[[api.role]]\nrole = 'viewer'\nbackends = ['10.0.0.0/8']", []string{
			`c.toml:1: api.role[0].role: is required | use viewer, registrar, operator or admin`, `c.toml:4: api.role[1].role: "opertor" is not a role | did you mean "operator"? use viewer, registrar, operator, admin`,
			`c.toml:7: api.role[2].role: wants a string, has the number 1 | use viewer, registrar`, `c.toml:9: api.role[3]: names nobody who gets the role | add user`, `c.toml:11: api.role[3].backends: only a registrar is limited to backends`}},
		{"routers without AS numbers", "[announce]\nbgp = [{ peer = '10.0.0.1', asn = 1 },\n{ peer = '10.0.0.2', asn = 1, local_asn = 2, port = 0 }]", []string{
			`c.toml:2: announce.bgp[0].local_asn: is required | write the AS number`, `c.toml:3: announce.bgp[1].port: 0 is out of bounds | use 1 to 65535`}},
		{"a router twice", "[announce]\n[[announce.bgp]]\npeer = '10.0.0.1'\nasn = 65000\nlocal_asn = 65010\n[[announce.bgp]]\npeer = '10.0.0.1'\nasn = 65000\nlocal_asn = 65010", []string{
			`c.toml:6: announce.bgp[1]: is the same router as announce.bgp[0] | remove one of them`}},
		{"connections of routers", "[announce]\n[[announce.bgp]]\npeer = '10.0.0.1'\nasn = 65000\nlocal_asn = 65010\nsource = 'fd00::1'\nvrf = 'a/b'\nport = 0\npeer_limit = 3\n" +
			"[[announce.bgp]]\npeer_range = '10.0.0.7/24'\nasn = 65000\nlocal_asn = 65010\nsource = '0.0.0.0'\npeer_limit = 0\n" +
			"[[announce.bgp]]\ninterface = 'eth1'\npeer_range = 'fe80::/10'\npassive = true\nvrf = 'red'\nsource = 'fd00::1'\nasn = 65000\nlocal_asn = 65010", []string{
			`c.toml:6: announce.bgp[0].source: fd00::1 is of another family than the router`, `c.toml:7: announce.bgp[0].vrf: "a/b" is not a name for an interface`,
			`c.toml:8: announce.bgp[0].port: 0 is out of bounds`, `c.toml:9: announce.bgp[0].peer_limit: is for peer_range`,
			`c.toml:11: announce.bgp[1].peer_range: 10.0.0.7/24 is not the first address of its range | write 10.0.0.0/24`, `c.toml:14: announce.bgp[1].source: 0.0.0.0 is not the address of a host`,
			`c.toml:15: announce.bgp[1].peer_limit: 0 is out of bounds`, `c.toml:18: announce.bgp[2].peer_range: peer, interface and peer_range exclude each other`,
			`c.toml:19: announce.bgp[2].passive: an unnumbered session is opened by this host`, `c.toml:20: announce.bgp[2].vrf: a session of link-local addresses is bound to its interface`,
			`c.toml:21: announce.bgp[2].source: a session of link-local addresses has that of its interface`}},
		{"too many communities", "[announce]\n[[announce.bgp]]\npeer = '10.0.0.1'\nasn = 65000\nlocal_asn = 65010\ncommunities = ['65010:1'" + strings.Repeat(", '65010:1'", 64) + "]", []string{
			`c.toml:6: announce.bgp[0].communities: 65 communities are more than 64 | remove some`}},
		{"a real server that announces", "[dataplane]\nrole = 'real-server'\n[announce]\nmode = 'l2'\n[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']", []string{`c.toml:4: announce.mode: a real server announces no VIPs`}},
		{"dns", "[dns]\ndomain = 'Vip.internal'\nlisten = ['127.0.0.1', ':53', '0.0.0.0:53', '[fe80::1]:53', '127.0.0.1:53', '127.0.0.1:53', 53]\nallow = ['10.0.0.1/8']\nttl = '25h'\nnegative_ttl = '1500ms'\nrate_limit = 0\nresolve = true\nresolver = 'dnsmasq'", []string{
			`c.toml:2: dns.domain: "Vip.internal" is not a DNS name: use labels of a-z, 0-9 and inner "-" with dots between them | use a name below "internal"`,
			`c.toml:3: dns.listen[0]: "127.0.0.1" is not an address with a port | write an address and a port: "127.0.0.1:8653"`, `c.toml:3: dns.listen[1]: ":53" is not an address with a port`,
			`c.toml:3: dns.listen[2]: "0.0.0.0:53" is every address of this host, also the VIPs | write each address`, `c.toml:3: dns.listen[3]: "[fe80::1]:53" is not an address that clients can query`,
			`c.toml:3: dns.listen[6]: wants a string, has the number 53`, `c.toml:3: dns.listen[5]: 127.0.0.1:53 is defined twice`,
			`c.toml:4: dns.allow[0]: 10.0.0.1/8 is not the first address of its range`, `c.toml:5: dns.ttl: 25h is out of bounds`, `c.toml:5: dns.ttl: 25h is longer than ipam.reuse_delay`,
			`c.toml:6: dns.negative_ttl: 1.5s has parts of a second`, `c.toml:7: dns.rate_limit: 0 is out of bounds | use 1 to 1000000`, `c.toml:8: dns.resolve: unknown key | `, `c.toml:9: dns.resolver: "dnsmasq" is not a known value | use none, resolved`}},
		{"dns where others listen", "[api]\nlisten = 'localhost:53'\n[dns]\nlisten = ['127.0.0.1:53', '[::1]:53', '10.9.0.1:53', '10.9.0.1:7481']\nallow = ['10.0.0.0/8']\n" +
			"[announce]\nmode = 'routes'\n[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']", []string{
			`c.toml:4: dns.listen[0]: 127.0.0.1:53 is needed for api.listen, too | use another port`, `c.toml:4: dns.listen[3]: 10.9.0.1:7481 is needed for announce.listen, too`}},
		{"a domain that is not looked up by DNS", "[dns]\ndomain = 'vip.local'", []string{`c.toml:2: dns.domain: resolvers do not look up names below "local" by DNS | use a name below "internal"`}},
		{"a long domain", "[dns]\ndomain = '" + strings.Repeat("x", 42) + ".internal'", []string{`c.toml:2: dns.domain: ` + strings.Repeat("x", 42) + `.internal is longer than 50 characters`}},
		{"dns for other hosts", "[dns]\nlisten = ['127.0.0.1:53', '192.0.2.1:53']", []string{`c.toml:1: dns.allow: is required, because other hosts can reach an address of dns.listen | write the ranges`}},
		{"dns at a VIP", "[dns]\nlisten = ['127.96.0.1:53']\n[[pool]]\nname = 'a'\ncidrs = ['127.96.0.0/24']", []string{`c.toml:2: dns.listen[0]: 127.96.0.1 is in pool "a" and can be a VIP | use an address of this host`}},
		{"dns caches for longer than an address rests", "[ipam]\nreuse_delay = '10s'\n[dns]\nlisten = ['127.0.0.1:53']", []string{
			`c.toml:3: dns.ttl: 30s is longer than ipam.reuse_delay: clients could use an address that belongs to another service | use "10s" or less`}},
		{"source type", "[[source]]\ntype = 'statc'", []string{`c.toml:2: source[0].type: "statc" is not a known value | did you mean "static"?`}},
		{"source without type", "[[source]]\npath = '/x'", []string{`c.toml:1: source[0].type: a source needs a type`}},
		{"source without path", "[[source]]\ntype = 'static'", []string{`c.toml:1: source[0].path: a static source needs the directory`}},
		{"source twice", "[[source]]\ntype = 'static'\npath = '/x'\n[[source]]\ntype = 'static'\npath = '/x/'", []string{
			`c.toml:4: source[1].name: "static" is the name of the source at c.toml:1, too`, `c.toml:6: source[1].path: /x is read by the source at c.toml:1, too`}},
		{"source named as the API's", "[[source]]\ntype = 'static'\nname = 'rest'\npath = '/x'", []string{`c.toml:3: source[0].name: "rest" is the name of the API's own source`}},
		{"wrong types", "[node]\nname = 1\n[api]\nlisten = true\n[[pool]]\nname = 'a'\ncidrs = '192.0.2.0/24'\nauto_assign = 'yes'\n[ipam]\nreuse_delay = 300\nnode_ports = 30000", []string{
			`c.toml:2: node.name: wants a string, has the number 1`, `c.toml:4: api.listen: wants a string, has true`,
			`c.toml:7: pool[0].cidrs: wants a list, has the string "192.0.2.0/24" | write it in brackets`, `c.toml:8: pool[0].auto_assign: wants true or false, has the string "yes"`,
			`c.toml:10: ipam.reuse_delay: wants a duration, has the number 300`, `c.toml:11: ipam.node_ports: wants a string, has the number 30000 | write it as "30000-32767"`}},
		{"section of a wrong type", "pool = 1\nnode = 'x'", []string{`c.toml:1: pool: wants a list, has the number 1`, `c.toml:2: node: wants a table`}},
		{"relative state_dir", "[node]\nstate_dir = 'state'", []string{`c.toml:2: node.state_dir: "state" is not an absolute path`}},
		{"no way in", "[api]\nsocket = ''", []string{`c.toml:1: api: has neither a socket nor an address`}},
		{"long socket", "[api]\nsocket = '/" + strings.Repeat("x", 107) + "'", []string{`c.toml:2: api.socket: has 108 bytes, a socket's path has up to 107`}},
		{"socket mode", "[api]\nsocket_mode = '0999'", []string{`c.toml:2: api.socket_mode: "0999" is not a file mode | write it in octal`}},
		{"listen on all", "[api]\nlisten = ':7480'", []string{`c.toml:2: api.listen: :7480 can be reached from other hosts, which needs TLS`}},
		{"listen beyond loopback", "[api]\nlisten = '192.0.2.1:7480'", []string{`c.toml:2: api.listen: 192.0.2.1:7480 can be reached from other hosts`}},
		{"listen without port", "[api]\nlisten = '127.0.0.1'", []string{`c.toml:2: api.listen: "127.0.0.1" is not an address with a port`}},
		{"listen on a large port", "[api]\nlisten = '127.0.0.1:70000'", []string{`c.toml:2: api.listen: "70000" is not a port`}},
		{"mode", "[dataplane]\nmode = 'ipv'", []string{`c.toml:2: dataplane.mode: "ipv" is not a known value | did you mean "ipvs"?`}},
		{"role", "[dataplane]\nrole = 'realserver'", []string{`c.toml:2: dataplane.role: "realserver" is not a known value | did you mean "real-server"?`}},
		{"role without a kernel", "[dataplane]\nmode = 'proxy'\nrole = 'real-server'", []string{
			`c.toml:3: dataplane.role: a real server needs the kernel: dataplane.mode "proxy" has no part in direct routing and tunnels | set dataplane.mode to`}},
		{"connect", "[dataplane]\nconnect = 'of'", []string{`c.toml:2: dataplane.connect: "of" is not a known value | did you mean "off"?`}},
		{"connect without a dataplane", "[dataplane]\nconnect = 'auto'\nmode = 'off'", []string{`c.toml:2: dataplane.connect: a host with dataplane.mode "off" balances nothing | set dataplane.connect to "off"`}},
		{"connect on a real server", "[dataplane]\nconnect = 'on'\nrole = 'real-server'", []string{`c.toml:2: dataplane.connect: a real server balances nothing | set dataplane.connect to "off"`}},
		{"zone", "[node]\nzone = 'rack 7'", []string{`c.toml:2: node.zone: wants up to 253 printable characters without spaces`}},
		{"resync", "[dataplane]\nresync_interval = '10ms'", []string{`c.toml:2: dataplane.resync_interval: 10ms is out of bounds | use "1s" to "24h"`}},
		{"device", "[dataplane]\ndevice = 'an-interface-too-long'", []string{`c.toml:2: dataplane.device: "an-interface-too-long" is not a name for an interface`}},
		{"device of no interface", "[dataplane]\ndevice = 'all'", []string{`c.toml:2: dataplane.device: "all" is not a name for an interface`}},
		{"device lo", "[dataplane]\ndevice = 'lo'", []string{`c.toml:2: dataplane.device: "lo" is the host's own`}},
		{"node port address", "[dataplane]\nnode_port_addresses = ['eth0', '10.0.0.1/8']", []string{
			`c.toml:2: dataplane.node_port_addresses[0]: "eth0" is not a range of addresses`, `c.toml:2: dataplane.node_port_addresses[1]: 10.0.0.1/8 is not the first address of its range | write 10.0.0.0/8, or 10.0.0.1/32`}},
		{"reuse delay", "[ipam]\nreuse_delay = '-1s'", []string{`c.toml:2: ipam.reuse_delay: -1s is out of bounds | use "0s" to "168h"`}},
		{"orphan grace", "[ipam]\norphan_grace = '0s'", []string{`c.toml:2: ipam.orphan_grace: 0s is out of bounds | use "1s" to "168h"`}},
		{"node ports", "[ipam]\nnode_ports = '32767-30000'", []string{`c.toml:2: ipam.node_ports: "32767-30000" is not a range of ports`}},
		{"pool without anything", "[[pool]]", []string{`c.toml:1: pool[0].name: pool name: a name is needed`, `c.toml:1: pool[0].cidrs: pool "" has no ranges`}},
		{"pool name", "[[pool]]\nname = 'A B'\ncidrs = ['192.0.2.0/24']", []string{`c.toml:2: pool[0].name: pool name: "A B" is not a DNS label`}},
		{"pool twice", "[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\n[[pool]]\nname = 'a'\ncidrs = ['198.51.100.0/24']", []string{`c.toml:5: pool[1].name: pool "a" is defined twice: c.toml:1 and c.toml:4 | give one`}},
		{"a source of a document", "[[source]]\ntype = 'http'\nurl = 'http://u:p@a/x'\n[[source]]\ntype = 'http'\nname = 'b'\nurl = 'http://a/x'\nca_file = '/x'\ninterval = '2h'\n[[source]]\ntype = 'http'\nname = 'c'", []string{
			`c.toml:3: source[0].url: is not the address of a document | write url = "https://HOST/PATH", without a password`,
			`c.toml:8: source[1].ca_file: is for TLS, which "http://a/x" does not use | write the url as https://HOST/PATH`,
			`c.toml:9: source[1].interval: 2h is out of bounds`, `c.toml:10: source[2].url: an http source needs the address of its services`}},
		{"a source of names", "[[source]]\ntype = 'dns'\nservers = ['ns.example.com']\n[[source.service]]\nname = 'web'\nports = [{port = 80, target_port = 81}]\nsrv = '_http._tcp.example.com'\nbackends = [{address = '10.0.0.1'}]\n[[source.service]]\nname = 'web'\nports = [{port = 0}]\nhost = '10.0.0.1'\nsrc = 'x'\n[[source.service]]\nname = 'api'\nports = [{port = 80}]\n[[source]]\ntype = 'dns'\nname = 'b'", []string{
			`c.toml:3: source[0].servers[0]: "ns.example.com" is not the address of a server | write "10.0.0.53" or "10.0.0.53:5353"`,
			`c.toml:6: source[0].service[0].ports: SRV records have the port of each backend | write one port without target_port`,
			`c.toml:8: source[0].service[0].backends: the backends are those of the name | remove them`,
			`c.toml:10: source[0].service[1].name: "web" is the name of the service at c.toml:4, too`, `c.toml:11: source[0].service[1].ports[0].port:`,
			`c.toml:12: source[0].service[1].host: "10.0.0.1" is not a DNS name`, `c.toml:13: source[0].service[1].src: unknown key | did you mean "srv"?`,
			`c.toml:14: source[0].service[2]: a service of a dns source needs the name of its backends | add srv =`, `c.toml:17: source[1].service: a dns source needs services`}},
		{"pool ranges", "[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0',\n'192.0.2.1/24', 'x',\n'10.0.0.9-10.0.0.8']", []string{
			`c.toml:3: pool[0].cidrs[0]: "192.0.2.0" is not a range of addresses | for this one address write 192.0.2.0/32`,
			`c.toml:4: pool[0].cidrs[1]: 192.0.2.1/24 is not the first address of its range | write 192.0.2.0/24, or 192.0.2.1/32`,
			`c.toml:4: pool[0].cidrs[2]: "x" is not a range of addresses`, `c.toml:5: pool[0].cidrs[3]: "10.0.0.9-10.0.0.8" is not a range of addresses | write its first and its last`}},
		{"pool addresses", "[[pool]]\nname = 'a'\ncidrs = ['0.0.0.0/0',\n'224.0.0.0/8', '::ffff:10.0.0.0/104', 'fe80::/10', '192.0.2.7-192.0.2.9', '192.0.2.8/32']", []string{
			`c.toml:3: pool[0].cidrs: pool "a" 0.0.0.0/0 reaches into`, `c.toml:3: pool[0].cidrs: pool "a" 224.0.0.0/8 reaches`, `c.toml:3: pool[0].cidrs: pool "a" ::ffff:10.0.0.0/104 reaches`,
			`c.toml:3: pool[0].cidrs: pool "a" fe80::/10 reaches`, `c.toml:3: pool[0].cidrs: pool "a" 192.0.2.8/32 overlaps 192.0.2.8/31 of the same pool`}},
		{"policy", "[announce]\npriority = 256\nmin_backends = 0\nstandby = 1\n[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\nannounce_priority = -1\nannounce_min_backends = '101%'", []string{
			`c.toml:2: announce.priority: 256 is out of bounds | use 0 to 255`, `c.toml:3: announce.min_backends: must be a number or a share of backends | use 1 to 10000, or "1%" to "100%"`,
			`c.toml:4: announce.standby: wants true or false, has the number 1`, `c.toml:8: pool[0].announce_priority: -1 is out of bounds`, `c.toml:9: pool[0].announce_min_backends: "101%" is not a share of backends`}},
		{"exclude", "[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\nexclude = ['192.0.2.1/28']", []string{`c.toml:4: pool[0].exclude[0]: 192.0.2.1/28 is not the first address of its range`}},
		{"pod ranges", "[ipam]\npod_cidrs = ['0.0.0.0/0', 'ff00::/8']", []string{`c.toml:2: ipam.pod_cidrs[0]: 0.0.0.0/0 has addresses that no pod`, `c.toml:2: ipam.pod_cidrs[1]: ff00::/8 has`}},
		{"health", "[health]\ndefault = 'http'\nexec = 1\nmetrics = false", []string{`c.toml:2: health.default: "http" is not a known value | use tcp, none`,
			`c.toml:3: health.exec: wants true or false, has the number 1`, `c.toml:4: health.metrics: unknown key | `}},
		{"probers", "[health]\nprobers = 0", []string{`c.toml:2: health.probers: "0" is not a number of probers | use "auto", "all", or a number from 1 to 100`}},
		{"probers, a word", "[health]\nprobers = 'some'", []string{`c.toml:2: health.probers: "some" is not a number of probers | use "auto"`}},
		{"probers, a list", "[health]\nprobers = [3]", []string{`c.toml:2: health.probers: must be a text or a number | use "auto"`}},
		{"scope", "[dataplane]\nnamespaces = ['shop',\n'', 'A', 'shop']\nlabels = ['tier=web',\n'', '=web', 'tier=web']", []string{
			`c.toml:3: dataplane.namespaces[1]: a name is needed | use 1 to 63`, `c.toml:3: dataplane.namespaces[2]: "A" is not a DNS label`, `c.toml:3: dataplane.namespaces[3]: "shop" is defined twice`,
			`c.toml:5: dataplane.labels[1]: "" is not a label | write "tier=web"`, `c.toml:5: dataplane.labels[2]: "=web" is not a label`, `c.toml:5: dataplane.labels[3]: "tier=web" is defined twice`}},
		{"metrics", "[metrics]\nbackends = ['web', 'shop/*',\n'*', 'a/b/c', 'shop/*', 'x/[', 'X/y', '/', '']", []string{
			`c.toml:2: metrics.backends[0]: "web" is not a namespace and a name | write "shop/web", "shop/*" for a namespace, or "*/*" for every service`,
			`c.toml:3: metrics.backends[2]: "*" is not a namespace`, `c.toml:3: metrics.backends[3]: "a/b/c" is not`, `c.toml:3: metrics.backends[4]: "shop/*" is defined twice`,
			`c.toml:3: metrics.backends[5]: "x/[" is not`, `c.toml:3: metrics.backends[6]: "X/y" is not`, `c.toml:3: metrics.backends[7]: "/" is not`, `c.toml:3: metrics.backends[8]: "" is not`}},
		{"too many patterns", "[metrics]\nbackends = [" + strings.Join(patterns, ",") + "]", []string{`c.toml:2: metrics.backends: 101 patterns are more than 100 | use wildcards`}},
		{"log", "[log]\nlevel = 'warning'\nformat = 'xml'", []string{`c.toml:2: log.level: "warning" is not a known value | did you mean "warn"?`, `c.toml:3: log.format: "xml" is not a known value | use text, json`}},
		{"cut off", "[node]\nname = \"l", []string{`c.toml:2: not valid TOML: unexpected EOF`}},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			c, problems := Parse("c.toml", []byte(test.doc))
			problemtest.Expect(t, problems, test.want...)
			if c != nil {
				t.Error("there is a Config all the same")
			}
		})
	}
}

func TestParseFindsOverlaps(t *testing.T) {
	_, problems := Parse("c.toml", []byte(`[ipam]
pod_cidrs = ["10.244.0.0/16"]
[[pool]]
name = "a"
cidrs = ["192.0.2.0/24", "10.244.7.0/24"]
[[pool]]
name = "b"
cidrs = ["192.0.2.128/25"]
`))
	if len(problems) != 2 {
		t.Fatalf("%v", problemtest.Text(problems))
	}
	all := strings.Join(problemtest.Text(problems), "\n")
	for _, part := range []string{"c.toml:5", `"a"`, `"b"`, "192.0.2.0/24", "192.0.2.128/25", "10.244.7.0/24", "10.244.0.0/16"} {
		if !strings.Contains(all, part) {
			t.Errorf("%s is not named in\n%s", part, all)
		}
	}
	for _, p := range problems {
		if p.Code != "overlap" || p.Hint == "" {
			t.Errorf("%+v", p)
		}
	}
}

// The sample changes no default until its comments are taken off, and then works.
func TestSampleEqualsTheDefaults(t *testing.T) {
	text, err := os.ReadFile("ironvip.toml")
	if err != nil {
		t.Fatal(err)
	}
	sample, problems := Parse("/nowhere/ironvip.toml", text)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	empty, problems := Parse("/nowhere/ironvip.toml", nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if live, restart := Diff(empty, sample); len(live)+len(restart) > 0 {
		t.Errorf("the sample differs from the defaults in %v %v", live, restart)
	}
	for _, block := range []string{"pool", "source", "source.service", "announce.bgp", "api.role", "hook"} {
		text = []byte(strings.ReplaceAll(string(text), "# [["+block+"]]", "[["+block+"]]"))
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if _, _, found := strings.Cut(line, " = "); found {
			lines[i] = strings.TrimPrefix(line, "# ")
		}
	}
	c, problems := Parse("/nowhere/ironvip.toml", []byte(strings.Join(lines, "\n")))
	if newKubernetes == nil {
		if got := problemtest.Text(problems); len(got) != 1 || !strings.Contains(got[0], "source[2].type: this build does not support the kubernetes source") {
			t.Errorf("with its comments taken off, in a build without such sources: %v", problems)
		}
		return
	}
	if len(problems) > 0 || len(c.Pools) != 1 || len(c.Sources) != 5 || len(c.Hooks) != 2 {
		t.Errorf("with its comments taken off: %v", problems)
	}
}

// The example does nothing until its comments are removed, and then works.
func TestExampleOfServices(t *testing.T) {
	text, err := os.ReadFile("services.d/example.toml")
	if err != nil {
		t.Fatal(err)
	}
	f := static.ParseServices("example.toml", text, "static", nil)
	if len(f.Problems)+len(f.Services) > 0 || f.Empty {
		t.Errorf("as it is: %v, %s", f.Problems, names(f.Services))
	}
	_, blocks, _ := strings.Cut(string(text), "#\n# [[service]]")
	f = static.ParseServices("example.toml", []byte(strings.ReplaceAll("\n# [[service]]"+blocks, "\n# ", "\n")), "static", nil)
	if names(f.Services) != "web dns" || len(f.Problems) > 0 {
		t.Errorf("without comments: %v, %s", f.Problems, names(f.Services))
	}
}

func TestLoadFindsTheFile(t *testing.T) {
	dir := t.TempDir()
	c, problems := Load(dir)
	if len(problems) > 0 || c.Path != filepath.Join(dir, "ironvip.toml") || len(c.Sources) != 1 || !c.Sources[0].Config.(*static.Config).Optional || c.Node.Name == "" {
		t.Fatalf("of an empty directory: %+v, %v", c, problems)
	}
	if services, problems := c.Services(); len(services)+len(problems) > 0 {
		t.Errorf("without a services.d: %v %v", services, problems)
	}
	if err := os.Mkdir(filepath.Join(dir, "services.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "ironvip.toml"), "")
	want := []Source{{"static", "static", &static.Config{Path: filepath.Join(dir, "services.d"), Optional: true}}}
	for _, path := range []string{dir, filepath.Join(dir, "ironvip.toml")} {
		c, problems := Load(path)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if diff := cmp.Diff(want, c.Sources); diff != "" {
			t.Error(diff)
		}
	}
	gone := filepath.Join(dir, "gone")
	_, problems = Load(filepath.Join(gone, "ironvip.toml"))
	problemtest.Expect(t, problems, gone+"/ironvip.toml: the directory "+gone+": no such file or directory | make it")
	_, problems = Load(gone) // a directory, not a file with a services.d beside it
	problemtest.Expect(t, problems, gone+"/ironvip.toml: the directory "+gone+": no such file or directory | make it")
	write(t, filepath.Join(dir, "ironvip.toml"), strings.Repeat("#", MaxSize+1))
	_, problems = Load(dir)
	problemtest.Expect(t, problems, filepath.Join(dir, "ironvip.toml")+": has 1048577 bytes, more than the 1 MiB that are read")
	if err := os.Remove(filepath.Join(dir, "ironvip.toml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, "ironvip.toml")); err != nil {
		t.Fatal(err)
	}
	_, problems = Load(dir)
	problemtest.Expect(t, problems, filepath.Join(dir, "ironvip.toml")+": no such file or directory | it is a link to elsewhere")
}

func TestLastGoodCounts(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "ironvip.toml")
	set := func(text string) { write(t, file, "[node]\nstate_dir = '"+state+"'\n"+text) }

	set("name = 1")
	if c, problems := LoadOrLastGood(dir, ""); c != nil || len(problems) != 1 {
		t.Fatalf("nothing is saved, yet %+v, %v", c, problems)
	}
	set("name = 'z1'")
	if c, problems := LoadOrLastGood(dir, ""); c == nil || c.IsLastGood || len(problems) > 0 {
		t.Fatalf("%+v, %v", c, problems)
	}
	if left, _ := os.ReadDir(state); len(left) != 0 {
		t.Errorf("saved before an agent started with it: %v", left)
	}
	c, _ := LoadOrLastGood(dir, "")
	if err := c.SaveLastGood(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(state); len(left) != 1 {
		t.Errorf("the state directory has %v", left)
	}

	set("name = 2")
	c, problems := LoadOrLastGood(dir, "")
	if c == nil || !c.IsLastGood || c.Node.Name != "z1" || c.Path != file {
		t.Fatalf("%+v, %v", c, problems)
	}
	problemtest.Expect(t, problems, file+":3: node.name: wants a string")

	// The directory with all its files is missing, as after a failed mount.
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	c, problems = LoadOrLastGood(dir, state)
	if c == nil || !c.IsLastGood || c.Node.Name != "z1" || c.Path != file || c.Sources[0].Config.(*static.Config).Path != filepath.Join(dir, ServicesDir) {
		t.Errorf("%+v, %v", c, problems)
	}
	problemtest.Expect(t, problems, file+": the directory "+dir+": no such file or directory")
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}

	// The file is not TOML, so its state_dir is unknown: the caller's applies.
	write(t, file, "[node")
	if c, _ := LoadOrLastGood(dir, state); c == nil || !c.IsLastGood || c.Node.StateDir != state {
		t.Errorf("%+v", c)
	}

	// A file with a syntax error isn't parsed, but the line of its state_dir is found.
	for _, broken := range []string{
		"[node]\n# state_dir = '/elsewhere'\n  state_dir = '" + state + "' # here\nzone = \n",
		"zone = \n[node]\nstate_dir = \"" + state + "\"\n",
		"node = { name = 'z1', state_dir = '" + state + "'\n[api]\n",
		"[node]\nstate_dir = '" + state + "\nname = 'z1'\n",
	} {
		write(t, file, broken)
		if c, problems := LoadOrLastGood(dir, ""); c == nil || !c.IsLastGood || c.Node.Name != "z1" || len(problems) != 1 || !strings.Contains(problems[0].Message, "not valid TOML") {
			t.Errorf("%s%+v, %v", broken, c, problems)
		}
	}

	set("[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24', '192.0.2.0/25']")
	if c, problems := LoadOrLastGood(dir, state); c != nil || len(problems) == 0 {
		t.Errorf("pools overlap, yet %+v, %v", c, problems)
	}

	// An unreadable copy isn't used, and the problems report it.
	set("name = 2")
	write(t, filepath.Join(state, lastGoodName), "\nx = 1")
	c, problems = LoadOrLastGood(dir, "")
	if c != nil {
		t.Errorf("%+v", c)
	}
	problemtest.Expect(t, problems, file+":3: node.name", filepath.Join(state, lastGoodName)+":2: x: unknown key")
}

func TestUnwritableStateDirIsNoObstacle(t *testing.T) {
	dir := t.TempDir()
	blocker := filepath.Join(dir, "file")
	write(t, blocker, "")
	c, problems := LoadOrLastGood(dir, filepath.Join(blocker, "state"))
	if c == nil || len(problems) > 0 {
		t.Fatalf("%+v, %v", c, problems)
	}
	if err := c.SaveLastGood(); err == nil || !strings.Contains(err.Error(), "save the last good configuration") {
		t.Errorf("%v", err)
	}
}

func TestDiff(t *testing.T) {
	parse := func(text string) *Config {
		c, problems := Parse("/nowhere/ironvip.toml", []byte(text))
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		return c
	}
	old := parse("[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\nexclude = []")
	same := parse("[[pool]]\nname = 'a'\ncidrs = ['192.0.2.0/24']\n[log]\nlevel = 'info'")
	if live, restart := Diff(old, same); len(live)+len(restart) > 0 {
		t.Errorf("alike, yet %v %v", live, restart)
	}
	changed := parse("[node]\nname = 'z'\nzone = 'a'\n[api]\nlisten = '127.0.0.1:1'\n[dataplane]\nmode = 'ipvs'\nrole = 'real-server'\nnode_port_addresses = ['192.0.2.1']\n" +
		"[ipam]\npod_cidrs = ['10.0.0.0/8']\nreuse_delay = '1s'\norphan_grace = '1s'\nnode_ports = '1-2'\n[log]\nlevel = 'warn'\nformat = 'json'\n[[source]]\ntype = 'static'\npath = '/x'")
	live, restart := Diff(old, changed)
	if diff := cmp.Diff([]string{"ipam.node_ports", "ipam.orphan_grace", "ipam.pod_cidrs", "ipam.reuse_delay", "log.level", "pool"}, live); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"api.listen", "dataplane.mode", "dataplane.node_port_addresses", "dataplane.role", "log.format", "node.name", "node.zone", "source"}, restart); diff != "" {
		t.Error(diff)
	}
}

func FuzzParse(f *testing.F) {
	sample, err := os.ReadFile("ironvip.toml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sample)
	f.Add([]byte("[[pool]]\nname='a'\ncidrs=['192.0.2.0/24','::/1']\nexclude=['192.0.2.1/32']\n[[source]]\ntype='static'\npath='x'"))
	f.Add([]byte("[api]\nlisten='[::1]:80'\nsocket_mode='1'\n[ipam]\npod_cidrs=['10.0.0.0/8']\nnode_ports='1-2'"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		c, problems := Parse("/nowhere/c.toml", doc)
		if (c == nil) == (len(problems) == 0) {
			t.Fatalf("config %v with problems %v", c, problems)
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Place, "/nowhere/c.toml:") || p.Code == "" || p.Message == "" {
				t.Errorf("problem without a place, code or message: %+v", p)
			}
		}
	})
}

// Sources use the address of [consul], and paths may be systemd credentials.
func TestConsulAddress(t *testing.T) {
	c, problems := Parse("/etc/ironvip/ironvip.toml", []byte("[ipam]\nstore = 'consul'\n[consul]\naddress = 'unix:///run/consul.sock'\n[[source]]\ntype = 'consul'\n"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if c.Consul.Address != "unix:///run/consul.sock" || c.Sources[0].Config.(*consul.Config).Address != c.Consul.Address || !c.UsesConsul() {
		t.Errorf("%+v", c)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := tomlfile.ResolvePath("$CREDENTIALS_DIRECTORY/token"); err == nil || !strings.Contains(err.Error(), "no credentials of systemd") {
		t.Errorf("without a directory: %v", err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials/ironvip.service")
	if path, err := tomlfile.ResolvePath("$CREDENTIALS_DIRECTORY/token"); err != nil || path != "/run/credentials/ironvip.service/token" {
		t.Errorf("%s %v", path, err)
	}
}

// The files that a configuration with errors names are known, but the configuration can't be run.
func TestDraftNamesFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "ironvip.toml")
	write(t, file, `
[consul]
address = "https://a:8501"
token_file = "no-such-token"
ca_file = 5
[ipam]
store = "consul"
[dataplane]
mode = "magic"
[[pool]]
cidr = "x"
[[source]]
type = "consul"
name = 7
address = "b:8500"
token_file = "no-such-token-either"
`)
	if c, problems := Load(dir); c != nil || len(problems) < 3 {
		t.Errorf("%v, %v", c, problems)
	}
	c := Draft(dir)
	problemtest.Expect(t, c.CheckFiles(),
		file+":4: consul.token_file: "+dir+"/no-such-token: no such file or directory",
		file+":16: source[0].token_file: "+dir+"/no-such-token-either: no such file or directory",
	)
	write(t, file, "[consul\n")
	if c := Draft(dir); c != nil {
		t.Errorf("of what is no TOML: %+v", c)
	}
	if c := Draft(filepath.Join(dir, "none.toml")); c != nil {
		t.Errorf("of no file: %+v", c)
	}
}

// Missing files are reported by name. A process without systemd's credentials doesn't look for
// those.
func TestCheckFiles(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "token"), "x")
	c, problems := Parse(filepath.Join(dir, "c.toml"), []byte(`
[consul]
address = "https://a:8501"
token_file = "token"
ca_file = "no-such-ca"
[ipam]
store = "consul"
[[source]]
type = "consul"
[[source]]
type = "consul"
name = "b"
address = "b:8500"
token_file = "no-such-token"
[[source]]
type = "consul"
name = "c"
token_file = "$CREDENTIALS_DIRECTORY/token"
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	problemtest.Expect(t, c.CheckFiles(),
		c.Path+":5: consul.ca_file: "+dir+"/no-such-ca: no such file or directory",
		c.Path+":14: source[1].token_file: "+dir+"/no-such-token: no such file or directory",
	)
}
