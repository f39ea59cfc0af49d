package spec

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Field is one field of a service or of a health check. Fields and CheckFields have all of them, each
// once: a row has the type, the bounds, the default and the documentation of a field, and joins its
// key with the Go field of the same name in package vip. Everything that lists fields follows from the
// rows: Build and FromService, the keys of Consul and Kubernetes, JSON Schemas and the OpenAPI
// document, the tables in docs and manual pages, and `ironvip service get`.
type Field struct {
	Key     string   // as in TOML and JSON
	Type    Type     // nil if Build reads the field by itself
	Meaning string   // Markdown, like Values and Default
	Values  string   // in place of the values that Type states
	Only    string   // where it may be set, if not everywhere
	Host    bool     // it has an effect with forward host
	Words   []string // of a list, if Type is nil
	Default string   // in place of the default that Type states; Required if there is none

	// Row is the row of `ironvip service get` that shows the field unless it has its default, and Shown
	// the text there, with %s for the value. A text that begins with a space continues the one before.
	Row, Shown string
	Always     bool // Row shows the default, too

	For  []vip.CheckType // the types of health checks that have the field; nil: all
	Name string          // the Go field in package vip, if its name differs from that in this package

	in, out []int // the two Go fields, as arguments of FieldByIndex
}

// Required is the default of a field that every service or health check has.
const Required = "required"

// Fields are the fields of a service. A field with a point is part of another.
var Fields = bind[Service, vip.Service]([]Field{
	{Key: "name", Host: true, Default: Required, Meaning: "the service's name, unique in its namespace", Values: "DNS label: 1 to 63 of `a-z`, `0-9` and inner `-`"},
	{Key: "namespace", Host: true, Meaning: "a prefix of the name", Values: "DNS label", Default: "`default`"},
	{Key: "labels", Host: true, Type: kind[map[string]string, map[string]string]{read: (*builder).labels, show: maps.Clone[map[string]string]}, Meaning: "free text for people and filters", Values: "up to 64; names of 1 to 253, values of up to 1024 printable bytes", Default: "none"},
	{Key: "pool", Host: true, Type: label, Meaning: "the pool that provides the VIPs", Values: "a pool's name", Default: "the first with `auto_assign`"},
	{Key: "families", Host: true, Type: kind[[]string, vip.Families]{words: []string{"ipv4", "ipv6"}, read: (*builder).readFamilies, show: func(f vip.Families) []string { return texts(f.List()) }}, Meaning: "address families of the VIPs", Values: "`[\"ipv4\"]`, `[\"ipv6\"]`, or both", Default: "as `vips`, else as the pool"},
	{Key: "vips", Host: true, Type: kind[[]string, []netip.Addr]{read: (*builder).vips, show: texts[netip.Addr]}, Meaning: "requested addresses", Values: "at most one per family, each in the pool", Default: "automatic"},
	{Key: "share_key", Type: label, Meaning: "services of one namespace with the same key may share a VIP, on different ports", Default: "not shared"},
	{Key: "hostnames", Host: true, Type: kind[[]string, vip.Hostnames]{read: (*builder).hostnames, show: func(h vip.Hostnames) []string { return slices.Clone(h.List()) }}, Meaning: "more [DNS names](dns.md#names)", Default: "none", Values: "up to 16 full names in lower case without a trailing dot, up to 253 characters each: `[\"shop.example.com\"]`"},
	{Key: "ports", Host: true, Meaning: "the [ports](#fields-of-a-port) of the VIP", Values: "1 to 256", Default: Required},
	{Key: "backends", Meaning: "the [servers](#fields-of-a-backend)", Default: "none: connections are refused", Values: "up to 10,000; ports x backends up to 100,000, a range counts as one port"},
	{Key: "groups", Default: "none", Meaning: "the servers in [groups](#canary-groups) with a share of the new connections each, in place of `backends`", Values: "up to 16", Only: "with the schedulers `wrr`, `wlc`, `sed`, `sh` and `mh`"},
	{Key: "scheduler", Type: word(vip.DefaultScheduler, vip.Schedulers()...), Row: "balance", Always: true, Meaning: "how a backend is chosen"},
	{Key: "scheduler_flags", Words: []string{flagFallback, flagPort, flagOnePacket}, Row: "balance", Shown: " (%s)", Meaning: "for `sh` and `mh`: `fallback` skips backends with weight 0 (always on), `port` also hashes the client's port; for UDP with `dr` or `tunnel` and without `affinity`: `one-packet` schedules each datagram", Values: "a list of `fallback`, `port`, `one-packet`", Default: "none"},
	{Key: "forward", Host: true, Type: word(vip.ForwardNAT, vip.ForwardNAT, vip.ForwardDirect, vip.ForwardTunnel, vip.ForwardHost), Row: "balance", Always: true, Meaning: "how packets travel to a backend ([`dr`, `tunnel`](#direct-routing-and-tunnels)); `host`: the VIP is for [programs of the host](#floating-addresses)"},
	{Key: "affinity", Type: affinity, Row: "balance", Shown: "affinity %s", Meaning: "keeps a client on its backend, `{ timeout = \"3h\" }`", Values: "`{}` or a timeout", Default: "none"},
	{Key: "affinity.timeout", Meaning: "the time since the client's last connection", Values: affinityTimes.values(), Default: quoted(vip.DefaultAffinity)},
	{Key: "internal_traffic", Type: word(vip.Cluster, vip.Cluster, vip.Local), Row: "traffic", Shown: "internal %s", Meaning: "the [backends](#traffic-policies) for this host and pods"},
	{Key: "external_traffic", Type: word(vip.Cluster, vip.Cluster, vip.Local), Row: "traffic", Shown: "external %s", Meaning: "the [backends](#traffic-policies) for other clients, and for node ports"},
	{Key: "traffic_distribution", Type: word(vip.DistributeAny, vip.DistributeAny, vip.PreferSameZone, vip.PreferSameNode), Row: "traffic", Shown: "prefers %s", Meaning: "the preferred [backends](#topology-hints) under `cluster`"},
	{Key: "health_check_node_port", Type: kind[NodePort, vip.NodePort]{read: (*builder).nodePort, show: writeNodePort}, Default: "`\"off\"`", Meaning: "a TCP port of the host that [reports by HTTP](#health-port) whether this node has a backend", Values: "`\"off\"`, `\"auto\"`, or a number from `ipam.node_ports`", Only: "with `external_traffic = \"local\"`"},
	{Key: "masquerade", Type: word(vip.MasqueradeAuto, vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever), Row: "traffic", Shown: "masquerade %s", Meaning: "when this host's address replaces the client's", Values: "`auto` (where a reply would otherwise bypass this host), `always` (not with `dr` and `tunnel`), `never`"},
	{Key: "source_ranges", Type: prefixes, Row: "clients", Default: "all", Meaning: "[clients](#source-ranges) that may reach the VIP"},
	{Key: "proxy_protocol", Type: word(0, vip.ProxyV1, vip.ProxyV2), Row: "proxy protocol", Shown: "%s to backends", Only: "with `nat`", Meaning: "the [PROXY header](#proxy-protocol) of TCP connections to backends"},
	{Key: "accept_proxy_from", Type: prefixes, Only: "with `nat`", Row: "proxy protocol", Shown: "accepted from %s", Meaning: "balancers in front, whose TCP connections must begin with a [PROXY header](#proxy-protocol)"},
	{Key: "drain_timeout", Type: span(times{0, vip.MaxDrainTimeout, vip.DefaultDrainTimeout, 1}), Row: "balance", Shown: "drain %s", Always: true, Meaning: "how long a removed backend may keep its connections"},
	{Key: "connect_timeout", Type: span(times{vip.MinConnectTimeout, vip.MaxConnectTimeout, vip.DefaultConnectTimeout, 1}), Row: "timeouts", Shown: "connect %s", Meaning: "how long the userspace proxy waits for a backend's accept; it [tries another one](proxy.md#features) meanwhile"},
	{Key: "idle_timeout", Type: span(times{vip.MinIdleTimeout, vip.MaxIdleTimeout, vip.DefaultIdleTimeout, 1}), Row: "timeouts", Shown: "idle %s", Meaning: "how long a TCP connection stays open without a byte in either direction ([more](#timeouts))"},
	{Key: "half_close_timeout", Type: span(times{vip.MinIdleTimeout, vip.MaxIdleTimeout, vip.DefaultHalfCloseTimeout, 1}), Row: "timeouts", Shown: "half-close %s", Meaning: "the same, after one side has closed its direction"},
	{Key: "max_connections", Type: limit[uint32](vip.MaxMaxConnections, oneOrNone), Row: "limits", Shown: "connections up to %s", Meaning: "open connections and UDP sessions of the service ([more](#connection-limits))"},
	{Key: "max_queue", Type: limit[uint32](vip.MaxMaxQueue, oneOrNone), Row: "limits", Shown: "queue of %s", Meaning: "TCP clients that wait when a limit is reached"},
	{Key: "queue_timeout", Type: span(times{vip.MinQueueTimeout, vip.MaxQueueTimeout, vip.DefaultQueueTimeout, 1}), Row: "timeouts", Shown: "queue %s", Meaning: "how long these clients wait"},
	{Key: "max_connections_per_source", Type: limit[uint16](math.MaxUint16, oneOrNone), Row: "limits", Shown: "%s of a client", Meaning: "open connections and UDP sessions of one client at each address and port ([more](#limits-for-each-client))"},
	{Key: "max_rate_per_source", Type: limit[uint16](math.MaxUint16, oneOrNone), Row: "limits", Shown: "%s new of a client per second", Meaning: "new connections and UDP sessions of one client per second, at each address and port"},
	{Key: "syn_proxy", Type: flag, Row: "limits", Shown: "SYN proxy %s", Meaning: "the host completes the handshakes of TCP clients itself [in a flood of SYNs](#floods-of-syns)"},
	{Key: "health", Host: true, Name: "Check", Type: kind[*HealthCheck, *vip.HealthCheck]{read: (*builder).healthCheck, show: fromCheck}, Row: "health", Meaning: "how backends are [checked](#health)", Values: "a [health check](health.md#fields-of-a-health-check)", Default: "the [default check](health.md#default-checks)"},
	{Key: "on_unhealthy", Name: "ResetUnhealthy", Type: onUnhealthy, Row: "health", Shown: "unhealthy backends %s connections", Meaning: "the open connections of a backend that becomes unhealthy", Values: "`drain`: they continue; `reset`: they end"},
	{Key: "panic_threshold", Host: true, Type: limit[uint8](100, "0 to %d, in percent; 0 is off"), Row: "health", Shown: "panic below %s%%", Meaning: "health has no effect while fewer backends than this are healthy, of the ready ones"},
	{Key: "slow_start", Type: slowStart, Values: slowStarts.values() + ", or `\"0s\"` for off", Default: "off", Only: "with the schedulers `wrr`, `wlc`, `sed` and `nq`", Row: "health", Shown: "slow start %s", Meaning: "how long the weight of a backend [grows](health.md#slow-start) after it begins to take new connections"},
})

// probes are the types of health checks that probe.
var (
	probes = []vip.CheckType{vip.CheckTCP, vip.CheckHTTP, vip.CheckHTTPS, vip.CheckGRPC, vip.CheckUDP, vip.CheckExec}
	web    = []vip.CheckType{vip.CheckHTTP, vip.CheckHTTPS}
	talks  = []vip.CheckType{vip.CheckTCP, vip.CheckUDP}
)

// CheckFields are the fields of a health check. The type is the first, because it decides which of the
// others a check has.
var CheckFields = bind[HealthCheck, vip.HealthCheck]([]Field{
	{Key: "type", Type: word(0, append(slices.Clone(probes), vip.CheckNone)...), Default: Required, Meaning: "how a backend is probed, [see below](#types)"},
	{Key: "port", For: probes, Type: kind[PortNumber, uint16]{read: (*builder).portNumber, show: func(n uint16) PortNumber { return PortNumber(n) }}, Meaning: "the port to probe", Values: "1 to 65535", Default: "the backend's own"},
	{Key: "interval", For: probes, Type: span(times{vip.MinCheckInterval, vip.MaxCheckInterval, vip.DefaultCheckInterval, time.Millisecond}), Meaning: "the time between two probes; by chance, up to 20 % shorter"},
	{Key: "fast_interval", For: probes, Type: span(times{vip.MinCheckInterval, vip.MaxCheckInterval, 0, time.Millisecond}), Meaning: "the interval while the health is in doubt: after a result that contradicts it", Values: quoted(vip.MinCheckInterval) + " to `interval`", Default: quoted(vip.DefaultCheckFastInterval) + ", or `interval` if that is shorter"},
	{Key: "timeout", For: probes, Type: span(times{vip.MinCheckInterval, vip.MaxCheckTimeout, vip.DefaultCheckTimeout, time.Millisecond}), Meaning: "how long one probe may take"},
	{Key: "rise", For: probes, Type: count(vip.DefaultRise), Meaning: "successes in a row that make an unhealthy backend healthy"},
	{Key: "fall", For: probes, Type: count(vip.DefaultFall), Meaning: "failures in a row that make a healthy backend unhealthy"},
	{Key: "method", For: web, Type: word(http.MethodGet, http.MethodGet, http.MethodHead, http.MethodOptions), Meaning: "http, https: the method"},
	{Key: "path", For: web, Type: text(vip.DefaultCheckPath, `^/[!-~]*$`, "a path", `use a path such as "/healthz?full=1", without spaces`), Meaning: "http, https: the path, with a query if needed"},
	{Key: "host", For: append(slices.Clone(web), vip.CheckGRPC), Type: text("", `^[!-.0-~]*$`, "a host", `use a name or an address, such as "web.example", without spaces`), Values: "a name", Default: "the address", Meaning: "http, https: the `Host` header; https, grpc: also the name in the certificate"},
	{Key: "status", For: web, Type: status, Meaning: "http, https: the expected codes"},
	{Key: "body", For: web, Type: anyText, Default: "any", Meaning: "http, https: a text that the first 64 KiB of the answer must contain; only with `GET`"},
	{Key: "tls", For: []vip.CheckType{vip.CheckGRPC}, Type: flag, Meaning: "grpc: connect with TLS"},
	{Key: "skip_verify", For: []vip.CheckType{vip.CheckHTTPS, vip.CheckGRPC}, Type: flag, Meaning: "https, and grpc with `tls`: accept any certificate"},
	{Key: "service", For: []vip.CheckType{vip.CheckGRPC}, Type: anyText, Default: "the server as a whole", Meaning: "grpc: the service to ask for"},
	{Key: "send", For: talks, Type: anyText, Default: "required for udp; tcp: nothing", Meaning: "udp: the datagram; tcp: a text to send after connecting"},
	{Key: "expect", For: talks, Type: anyText, Default: "udp: any answer; tcp: none needed", Meaning: "udp, tcp: what the answer begins with"},
	{Key: "command", For: []vip.CheckType{vip.CheckExec}, Type: kind[[]string, string]{read: (*builder).command, show: writeCommand}, Default: "required for exec", Meaning: "exec: the program, by its absolute path, and its arguments", Values: "a list of up to 64 words"},
})

// bind finds the Go fields of rows in a spec S and in V of package vip, and in the ProxySettings of a
// service. A row that fits no Go field is a programming error.
func bind[S, V any](rows []Field) []Field {
	spec, value := reflect.TypeFor[S](), reflect.TypeFor[V]()
	for i := range rows {
		f := &rows[i]
		for _, in := range reflect.VisibleFields(spec) {
			if name, _, _ := strings.Cut(in.Tag.Get("toml"), ","); name == f.Key {
				f.in, f.Name = in.Index, cmp.Or(f.Name, in.Name)
			}
		}
		if f.Type == nil {
			continue
		}
		out, found := value.FieldByName(f.Name)
		if proxy, has := value.FieldByName("Relay"); !found && has {
			out, found = reflect.TypeFor[vip.ProxySettings]().FieldByName(f.Name)
			out.Index = slices.Concat(proxy.Index, out.Index)
		}
		if !found || f.in == nil {
			panic("spec: no Go fields for " + f.Key)
		}
		f.out = out.Index
	}
	return rows
}

// build reads the fields of a spec that Type reads.
func (b *builder) build(f *Field, in, out reflect.Value) {
	if f.out != nil {
		f.Type.build(b, f.Key, in.FieldByIndex(f.in), out.FieldByIndex(f.out))
	}
}

// write states the field in a spec.
func (f *Field) write(out, in reflect.Value) {
	if f.out != nil {
		f.Type.write(out.FieldByIndex(f.out), in.FieldByIndex(f.in))
	}
}

// Of returns a pointer to the field in a service or a health check: a *string, for example. The field
// must not be a part of another.
func (f *Field) Of(spec any) any {
	return reflect.ValueOf(spec).Elem().FieldByIndex(f.in).Addr().Interface()
}

// Document returns the values and the default of the field in Markdown, and the words among which a
// text, or an item of a list, must be; nil for any.
func (f *Field) Document() (values, def string, words []string) {
	words = f.Words
	if f.Type != nil {
		values, def, words = f.Type.document()
	}
	if values = cmp.Or(f.Values, values); f.Only != "" {
		values += "; only " + f.Only
	}
	return values, cmp.Or(f.Default, def), words
}
