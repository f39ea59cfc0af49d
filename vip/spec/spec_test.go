package spec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// services draws services in the form that Build returns.
func services(t *rapid.T) vip.Service {
	label := rapid.StringMatching(`[a-z]([a-z0-9-]{0,8}[a-z0-9])?`)
	s := vip.Service{
		Key: vip.ServiceKey{Namespace: label.Draw(t, "namespace"), Name: label.Draw(t, "name")}, Source: "static", Origin: "a.toml:1",
		Settings: vip.Settings{
			Scheduler:       rapid.SampledFrom(vip.Schedulers()).Draw(t, "scheduler"),
			Forward:         rapid.SampledFrom([]vip.Forward{vip.ForwardNAT, vip.ForwardDirect, vip.ForwardTunnel}).Draw(t, "forward"),
			InternalTraffic: rapid.SampledFrom([]vip.TrafficPolicy{vip.Cluster, vip.Local}).Draw(t, "internal traffic"),
			ExternalTraffic: rapid.SampledFrom([]vip.TrafficPolicy{vip.Cluster, vip.Local}).Draw(t, "external traffic"),
			Distribution:    rapid.SampledFrom([]vip.TrafficDistribution{vip.DistributeAny, vip.PreferSameZone, vip.PreferSameNode}).Draw(t, "distribution"),
			Masquerade:      rapid.SampledFrom([]vip.Masquerade{vip.MasqueradeAuto, vip.MasqueradeAlways, vip.MasqueradeNever}).Draw(t, "masquerade"),
			DrainTimeout:    time.Duration(rapid.Int64Range(0, int64(vip.MaxDrainTimeout)).Draw(t, "drain")),
			Affinity:        time.Duration(rapid.IntRange(0, 86400).Draw(t, "affinity")) * time.Second,
		},
		Relay: vip.RelayOf(vip.ProxySettings{
			ConnectTimeout:   time.Duration(rapid.Int64Range(int64(vip.MinConnectTimeout), int64(vip.MaxConnectTimeout)).Draw(t, "connect")),
			IdleTimeout:      time.Duration(rapid.Int64Range(int64(vip.MinIdleTimeout), int64(vip.MaxIdleTimeout)).Draw(t, "idle")),
			MaxConnections:   rapid.Uint32Range(0, vip.MaxMaxConnections).Draw(t, "max connections"),
			MaxQueue:         rapid.Uint32Range(0, vip.MaxMaxQueue).Draw(t, "max queue"),
			QueueTimeout:     time.Duration(rapid.Int64Range(int64(vip.MinQueueTimeout), int64(vip.MaxQueueTimeout)).Draw(t, "queue")),
			HalfCloseTimeout: time.Duration(rapid.Int64Range(int64(vip.MinIdleTimeout), int64(vip.MaxIdleTimeout)).Draw(t, "half-close")),
		}),
		Labels:   rapid.MapOfN(rapid.StringMatching(`[ -~]{1,9}`), rapid.StringMatching(`[ -~é]{0,9}`), 0, 3).Draw(t, "labels"),
		Backends: []vip.Backend{},
	}
	if len(s.Labels) == 0 {
		s.Labels = nil
	}
	if s.Scheduler == vip.MaglevHash {
		s.SchedulerFallback, s.SchedulerPort = rapid.Bool().Draw(t, "fallback"), rapid.Bool().Draw(t, "port flag")
	}
	if rapid.Bool().Draw(t, "shared") {
		s.Pool, s.ShareKey = label.Draw(t, "pool"), label.Draw(t, "share key")
	}
	if rapid.Bool().Draw(t, "names") {
		s.Hostnames = vip.HostnamesOf(rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9]{1,9}\.([a-z0-9]{1,9}\.)?example`), 0, vip.MaxHostnames, rapid.ID).Draw(t, "hostnames")...)
	}
	if rapid.Bool().Draw(t, "requested") {
		s.Families = vip.FamiliesOf(vip.IPv4)
		s.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	}
	if s.ExternalTraffic == vip.Local {
		s.HealthPort = rapid.SampledFrom([]vip.NodePort{{}, {Auto: true}, {Number: 29999}}).Draw(t, "health port")
	}
	nat := s.Forward == vip.ForwardNAT
	if !nat && s.Masquerade == vip.MasqueradeAlways {
		s.Masquerade = vip.MasqueradeNever
	}
	protocols := []vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}
	if !nat && s.Affinity == 0 {
		if s.OnePacket = rapid.Bool().Draw(t, "one-packet"); s.OnePacket {
			protocols = []vip.Protocol{vip.UDP}
		}
	}
	seen := map[netip.Prefix]bool{}
	for i := range rapid.IntRange(0, 4).Draw(t, "source ranges") {
		bits := rapid.IntRange(0, 32).Draw(t, "source bits")
		if p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i), 2, 3, 4}), bits).Masked(); !seen[p] {
			seen[p] = true
			s.SourceRanges = append(s.SourceRanges, p)
		}
	}
	slices.SortFunc(s.SourceRanges, netip.Prefix.Compare)
	for i := range rapid.IntRange(1, 4).Draw(t, "ports") {
		p := vip.Port{Protocol: rapid.SampledFrom(protocols).Draw(t, "protocol"), Port: uint16(80 + 10*i)}
		p.TargetPort = p.Port
		if nat {
			p.TargetPort = rapid.Uint16Range(1, 65535).Draw(t, "target")
		}
		if rapid.Bool().Draw(t, "range") {
			p.LastPort = p.Port + rapid.Uint16Range(1, 9).Draw(t, "more")
			if !nat || rapid.Bool().Draw(t, "same ports") {
				p.TargetPort = 0
			}
		}
		p.Name = p.Key().String()
		if rapid.Bool().Draw(t, "named") {
			p.Name = fmt.Sprint("p", i)
		}
		if !nat || p.LastPort != 0 {
			s.Ports = append(s.Ports, p)
			continue
		}
		switch rapid.IntRange(0, 2).Draw(t, "node port") {
		case 1:
			p.NodePort.Auto = true
		case 2:
			p.NodePort.Number = uint16(30000 + i)
		}
		s.Ports = append(s.Ports, p)
	}
	if nat && slices.ContainsFunc(s.Ports, func(p vip.Port) bool { return p.Protocol == vip.TCP }) {
		relay := s.Relay.Get()
		relay.ProxyProtocol = rapid.SampledFrom([]vip.ProxyVersion{0, vip.ProxyV1, vip.ProxyV2}).Draw(t, "proxy protocol")
		if rapid.Bool().Draw(t, "balancers") {
			relay.AcceptProxyFrom = s.SourceRanges
		}
		s.Relay = vip.RelayOf(relay)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "backends") {
		port := uint16(0)
		if nat {
			port = rapid.Uint16().Draw(t, "port")
		}
		s.Backends = append(s.Backends, vip.Backend{Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: port,
			Weight: rapid.Uint32Range(0, vip.MaxWeight).Draw(t, "weight"), State: rapid.SampledFrom([]vip.State{vip.Ready, vip.Drain, vip.Maint, vip.Terminating}).Draw(t, "state"),
			Backup: rapid.Bool().Draw(t, "backup"),
			Node:   rapid.SampledFrom([]string{"", "n1"}).Draw(t, "node"), Zone: rapid.SampledFrom([]string{"", "z"}).Draw(t, "zone"),
			MaxConnections: rapid.Uint32Range(0, vip.MaxMaxConnections).Draw(t, "max connections"),

			Ports:    vip.NamesOf(rapid.SliceOfDistinct(rapid.SampledFrom(portNames(s.Ports)), rapid.ID).Draw(t, "served ports")...),
			ForZones: vip.NamesOf(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"z", "y", "x-é"}), 0, 3, rapid.ID).Draw(t, "for zones")...),
			ForNodes: vip.NamesOf(rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"n1", "n2"}), 0, 2, rapid.ID).Draw(t, "for nodes")...)})
	}
	sharing := []vip.Scheduler{vip.WeightedRoundRobin, vip.WeightedLeastConnection, vip.ShortestExpectedDelay, vip.SourceHash, vip.MaglevHash}
	if slices.Contains(sharing, s.Scheduler) && rapid.Bool().Draw(t, "grouped") {
		for _, name := range []string{"stable", "canary"} {
			s.Groups = append(s.Groups, vip.Group{Name: name, Weight: rapid.Uint32Range(0, vip.MaxWeight).Draw(t, "group weight")})
		}
		for i := range s.Backends {
			s.Backends[i].Group = rapid.SampledFrom([]string{"stable", "canary"}).Draw(t, "group")
		}
	}
	s.PanicThreshold, s.ResetUnhealthy = rapid.Uint8Range(0, 100).Draw(t, "panic threshold"), rapid.Bool().Draw(t, "reset")
	s.SynProxy = rapid.Bool().Draw(t, "SYN proxy")
	s.SourceLimits = vip.SourceLimits{MaxConnectionsPerSource: rapid.Uint16().Draw(t, "connections of a client"), MaxRatePerSource: rapid.Uint16().Draw(t, "rate of a client")}
	if weighted := []vip.Scheduler{vip.WeightedRoundRobin, vip.WeightedLeastConnection, vip.ShortestExpectedDelay, vip.NeverQueue}; slices.Contains(weighted, s.Scheduler) {
		s.SlowStart = rapid.SampledFrom([]vip.Seconds{0, 1, 90, 3600}).Draw(t, "slow start")
	}
	if rapid.Bool().Draw(t, "checked") {
		s.Check = checks(t)
	}
	return s
}

// checks draws health checks with a port of their own, so that they fit every service.
func checks(t *rapid.T) *vip.HealthCheck {
	c := &vip.HealthCheck{Type: rapid.SampledFrom(append(slices.Clone(probes), vip.CheckNone)).Draw(t, "check type")}
	if c.Type == vip.CheckNone {
		return c
	}
	millis := func(least, most time.Duration, what string) time.Duration {
		return time.Duration(rapid.Int64Range(least.Milliseconds(), most.Milliseconds()).Draw(t, what)) * time.Millisecond
	}
	text := rapid.StringMatching(`[ -~é\n]{1,9}`)
	c.Port = rapid.Uint16Range(1, 65535).Draw(t, "check port")
	c.Interval = millis(vip.MinCheckInterval, vip.MaxCheckInterval, "interval")
	c.FastInterval = millis(vip.MinCheckInterval, c.Interval, "fast interval")
	c.Timeout = millis(vip.MinCheckInterval, vip.MaxCheckTimeout, "timeout")
	c.Rise, c.Fall = rapid.Uint8Range(1, vip.MaxRiseFall).Draw(t, "rise"), rapid.Uint8Range(1, vip.MaxRiseFall).Draw(t, "fall")
	switch c.Type {
	case vip.CheckHTTP, vip.CheckHTTPS:
		c.Method = rapid.SampledFrom([]string{"GET", "HEAD", "OPTIONS"}).Draw(t, "method")
		c.Path = rapid.StringMatching(`/[!-~]{0,9}`).Draw(t, "path")
		c.Host = rapid.StringMatching(`[a-z.:0-9]{0,9}`).Draw(t, "host")
		c.Status = rapid.SampledFrom([]string{"200", "200-299,404", "100-599"}).Draw(t, "status")
		if c.Method == "GET" {
			c.Body = text.Draw(t, "body")
		}
		c.SkipVerify = c.Type == vip.CheckHTTPS && rapid.Bool().Draw(t, "skip verify")
	case vip.CheckGRPC:
		c.Host, c.Service = rapid.StringMatching(`[a-z.:0-9]{0,9}`).Draw(t, "host"), text.Draw(t, "service")
		c.TLS = rapid.Bool().Draw(t, "tls")
		c.SkipVerify = c.TLS && rapid.Bool().Draw(t, "skip verify")
	case vip.CheckTCP, vip.CheckUDP:
		c.Send, c.Expect = text.Draw(t, "send"), text.Draw(t, "expect")
	case vip.CheckExec:
		c.Command = "/" + strings.Join(rapid.SliceOfN(text, 1, 3).Draw(t, "command"), "\x00")
	}
	return c
}

func portNames(ports []vip.Port) (out []string) {
	for i := range ports {
		out = append(out, ports[i].Name)
	}
	return out
}

// A written service reads back as the same service, in both formats.
func TestWrittenServicesReadAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := services(t)
		written := FromService(want)
		check := func(format, text string, read Service, problems []vip.Problem) {
			got, more := read.Build(want.Source, want.Origin)
			if problems = append(problems, more...); len(problems) > 0 {
				t.Fatalf("%s is refused: %v\n%s", format, problems, text)
			}
			if diff := cmp.Diff(want, got, cmpAddrs, cmpPrefixes); diff != "" {
				t.Fatalf("%s reads otherwise: %s\n%s", format, diff, text)
			}
		}
		check("the shape", "", written, nil)

		asJSON, err := json.Marshal(written)
		if err != nil {
			t.Fatal(err)
		}
		read, problems := DecodeJSON(asJSON)
		check("JSON", string(asJSON), read, problems)
		var plain Service // as a Go client reads it
		if err := json.Unmarshal(asJSON, &plain); err != nil {
			t.Fatal(err)
		}
		check("JSON by encoding/json", string(asJSON), plain, nil)

		asTOML, err := toml.Marshal(written)
		if err != nil {
			t.Fatal(err)
		}
		tree := map[string]any{}
		if err := toml.Unmarshal(asTOML, &tree); err != nil {
			t.Fatalf("%v\n%s", err, asTOML)
		}
		var fromTOML Service
		problems = strict.Decode(tree, &fromTOML, "")
		check("TOML", string(asTOML), fromTOML, problems)
	})
}

// The random services set every field of a service, a port, a backend and a health check, so that the round trip
// above tests a new field, too.
func TestRandomServicesSetEveryField(t *testing.T) {
	// Sources set these; the spec has none of them.
	set := map[string]bool{"Service.Preferred": true, "Settings.Assigned": true, "Settings.NotHere": true, "Backend.Health": true, "Backend.Reason": true, "Service.Groups": true, "Backend.Group": true}
	note := func(of any) {
		v := reflect.ValueOf(of)
		for f, value := range v.Fields() {
			if !value.IsZero() {
				set[v.Type().Name()+"."+f.Name] = true
			}
		}
	}
	random := rapid.Custom(services)
	for seed := range 300 {
		s := random.Example(seed)
		note(s)
		note(s.Settings)
		note(s.Relay.Get())
		if s.Check != nil {
			note(*s.Check)
		}
		for _, p := range s.Ports {
			note(p)
		}
		for _, b := range s.Backends {
			note(b)
		}
		for _, g := range s.Groups {
			note(g)
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[vip.Service](), reflect.TypeFor[vip.Settings](), reflect.TypeFor[vip.ProxySettings](), reflect.TypeFor[vip.Port](), reflect.TypeFor[vip.Backend](), reflect.TypeFor[vip.Group](), reflect.TypeFor[vip.HealthCheck]()} {
		for f := range typ.Fields() {
			if name := typ.Name() + "." + f.Name; !set[name] {
				t.Errorf("no random service sets %s: add it to services", name)
			}
		}
	}
}

// A row shows the fields that differ from their defaults, and every row of a field exists.
func TestRows(t *testing.T) {
	for i := range Fields {
		if f := &Fields[i]; f.Row != "" && !slices.Contains(Rows, f.Row) {
			t.Errorf("%s is in no row", f.Key)
		}
	}
	for _, test := range []struct {
		doc  string
		want map[string]string
	}{
		{`"namespace": "default"`, map[string]string{"balance": "wrr, nat, drain 1m"}},
		{`"scheduler": "mh", "scheduler_flags": ["port"], "affinity": {}, "drain_timeout": "90s", "idle_timeout": "5m", "connect_timeout": "3s", "queue_timeout": "1s", "half_close_timeout": "5s",
			"max_connections": 100, "max_queue": 50, "max_connections_per_source": 9, "max_rate_per_source": 5, "external_traffic": "local", "internal_traffic": "cluster", "masquerade": "never", "traffic_distribution": "same-zone",
			"health": {"type": "http", "path": "/x", "port": 81}, "on_unhealthy": "reset", "panic_threshold": 30,
			"source_ranges": ["10.0.0.0/8", "192.0.2.0/24"], "proxy_protocol": "v2", "accept_proxy_from": ["10.0.0.1"]`,
			map[string]string{"balance": "mh (port), nat, affinity 3h, drain 1m30s", "timeouts": "idle 5m, half-close 5s, queue 1s", "limits": "connections up to 100, queue of 50, 9 of a client, 5 new of a client per second",
				"traffic": "external local, prefers same-zone, masquerade never", "health": "http /x at port 81 every 2s, unhealthy backends reset connections, panic below 30%",
				"clients": "10.0.0.0/8+192.0.2.0/24", "proxy protocol": "v2 to backends, accepted from 10.0.0.1/32"}},
		{`"slow_start": "30s"`, map[string]string{"balance": "wrr, nat, drain 1m", "health": "slow start 30s"}},
	} {
		built, problems := build(t, `{"name": "a", "ports": [{"port": 80}], `+test.doc+`}`)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		s := FromService(built)
		for _, row := range Rows {
			if got := s.Row(row, func(items []string) string { return strings.Join(items, "+") }); got != test.want[row] {
				t.Errorf("%s of %s: %q, want %q", row, test.doc, got, test.want[row])
			}
		}
	}
}

func TestBackendAlone(t *testing.T) {
	b, problems := decodeJSON[Backend]([]byte(`{"address": "10.0.0.1", "port": 80}`))
	built, more := b.Build()
	want := vip.Backend{Address: netip.MustParseAddr("10.0.0.1"), Port: 80, Weight: 1, State: vip.Ready}
	if len(problems)+len(more) > 0 || built != want {
		t.Errorf("%+v, %v, %v", built, problems, more)
	}
	b, problems = decodeJSON[Backend]([]byte(`{"adress": "10.0.0.1", "weight": "x"}`))
	_, more = b.Build()
	var fields []string
	for _, p := range Merge(problems, more) {
		fields = append(fields, p.Field)
	}
	if diff := cmp.Diff([]string{"adress", "weight", "address"}, fields); diff != "" {
		t.Error(diff)
	}
}

func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", time.Second: "1s", 90 * time.Second: "1m30s", time.Minute: "1m", time.Hour: "1h",
		3*time.Hour + time.Second: "3h0m1s", 10 * time.Minute: "10m", 20 * time.Hour: "20h", 1500 * time.Millisecond: "1.5s"} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%s is written %q, want %q", d, got, want)
		}
		var back Duration
		if err := back.UnmarshalText([]byte(want)); err != nil || back != Duration(d) {
			t.Errorf("%q is read as %v, %v", want, back, err)
		}
	}
}

// The time to build a service of 10,000 backends is linear in their number.
func TestBuildIsLinear(t *testing.T) {
	s := Service{Name: "a", Ports: []Port{{Port: PortRange{First: 80}}}}
	for i := range MaxBackends {
		s.Backends = append(s.Backends, Backend{Address: "10.0.0.1", Port: PortNumber(1000 + i)})
	}
	start := time.Now()
	if out, problems := s.Build("rest", ""); len(problems) > 0 || len(out.Backends) != MaxBackends {
		t.Errorf("%d backends, %v", len(out.Backends), problems)
	}
	if took := time.Since(start); took > 5*time.Second { // it takes milliseconds; quadratic, minutes
		t.Errorf("took %s", took)
	}
	s.Backends = append(s.Backends, Backend{Address: "10.0.0.2"})
	if _, problems := s.Build("rest", ""); len(problems) != 1 || problems[0].Field != "backends" {
		t.Errorf("of one more: %v", problems)
	}
}

// The product of ports and backends has a limit below that of both, which names both fields.
func TestPortsTimesBackends(t *testing.T) {
	s := Service{Name: "a"}
	for i := range MaxPorts {
		s.Ports = append(s.Ports, Port{Port: PortRange{First: 1 + i}})
	}
	for i := range MaxEndpoints / MaxPorts {
		s.Backends = append(s.Backends, Backend{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String()})
	}
	if _, problems := s.Build("rest", ""); len(problems) > 0 {
		t.Errorf("at the limit: %v", problems)
	}
	s.Backends = append(s.Backends, Backend{Address: "10.1.0.1"})
	const want = "backends: 391 backends x 256 ports are 100096, more than 100000 | split the service, or use ranges of ports"
	_, problems := s.Build("rest", "")
	if len(problems) != 1 || problems[0].Field+": "+problems[0].Message+" | "+problems[0].Hint != want {
		t.Errorf("one more: %v, want %s", problems, want)
	}
}

func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"name": "web", "ports": [{"port": 80, "node_port": "auto", "name": "x"}], "backends": [{"address": "10.0.0.1", "weight": 0}], "affinity": {"timeout": "3h"}, "labels": {"a": "b"}}`))
	f.Add([]byte(`{"name": "a", "name": 1, "ports": {"port": "1-2"}, "x": [[{}]], "vips": [null], "drain_timeout": 1e400}`))
	f.Add([]byte(`{"name": "a", "ports": [{"port": 80, "protocol": "SCTP"}], "families": ["ipv6"], "source_ranges": ["x"], "scheduler": "mh", "scheduler_flags": ["port"]}`))
	f.Add([]byte(`{"name": "a", "ports": [{"port": "10000-10099", "target_port": 80}, {"port": "all", "protocol": "sctp"}], "source_ranges": ["10.0.0.0/8", "10.0.0.1", "::/0"], "external_traffic": "local", "health_check_node_port": 30000, "traffic_distribution": "same-zone"}`))
	f.Add([]byte(`{"name": "a", "ports": [{"port": 53, "protocol": "udp"}], "forward": "dr", "scheduler": "sed", "scheduler_flags": ["one-packet"], "internal_traffic": "local", "backends": [{"address": "10.0.0.1", "state": "terminating"}]}`))
	f.Add([]byte(`{"name": "a", "ports": [{"port": 53, "name": "dns"}, {"port": 80}], "backends": [{"address": "10.0.0.1", "ports": ["dns", "80/tcp"], "for_zones": ["b", "a"], "for_nodes": ["n"]}, {"address": "10.0.0.2", "ports": ["dsn", "", "a b"], "for_zones": [" "]}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		s, problems := DecodeJSON(doc)
		built, more := s.Build("rest", "")
		problems = Merge(problems, more)
		for _, p := range problems {
			if p.Code == "" || p.Message == "" {
				t.Errorf("problem without a code or message: %+v", p)
			}
		}
		if len(problems) > 0 {
			return
		}
		again := FromService(built)
		back, problems := again.Build("rest", "")
		if diff := cmp.Diff(built, back, cmpAddrs, cmpPrefixes); len(problems) > 0 || diff != "" {
			t.Errorf("written back: %v %s", problems, diff)
		}
	})
}

func FuzzParseServiceKey(f *testing.F) {
	f.Add("web")
	f.Add("shop/web")
	f.Add("a/b/c")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := vip.ParseServiceKey(s)
		if err != nil {
			return
		}
		if back, err := vip.ParseServiceKey(k.String()); err != nil || back != k {
			t.Errorf("%q is read as %+v, which as %q is %+v, %v", s, k, k, back, err)
		}
	})
}

func FuzzParseBackendID(f *testing.F) {
	for _, s := range []string{"10.1.0.11:8080", "10.1.0.11", "[2001:db8::1]:80", "2001:db8::1", "[2001:db8::1]", "[::ffff:10.0.0.1]:1", "fe80::1%eth0", "[fe80::1%eth0]:1", "]10.0.0.1[", "[10.0.0.1]", "10.0.0.1:0", "[2001:db8::1]:00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, port, err := vip.ParseBackendID(s)
		if err != nil {
			return
		}
		if a.Zone() != "" || a.Is4In6() {
			t.Errorf("%q is read as %s", s, a)
		}
		id := vip.Backend{Address: a, Port: port}.ID()
		if back, backPort, err := vip.ParseBackendID(id); err != nil || back != a || backPort != port {
			t.Errorf("%q is read as %s, which is read as %s %d, %v", s, id, back, backPort, err)
		}
	})
}

// The spec of a service is written once, in its size: a cache writes it for every service of a fleet.
func TestFromServiceDoesNotGrow(t *testing.T) {
	allocations := func(backends int) float64 {
		s := vip.Service{Backends: make([]vip.Backend, backends)}
		return testing.AllocsPerRun(10, func() { FromService(s) })
	}
	one := allocations(1)
	if more, want := allocations(16)-one, 15*(allocations(2)-one); more != want {
		t.Errorf("15 more backends cost %v allocations, and one more %v", more, want/15)
	}
}
