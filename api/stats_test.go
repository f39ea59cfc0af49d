package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// counting makes Deps use a dataplane with counters.
func counting(counted reconcile.Counted) (*reconciletest.Statistics, func(*Deps)) {
	s := &reconciletest.Statistics{Parts: counted}
	return s, func(d *Deps) { d.Forwarding.Statistics = s }
}

var everything = reconcile.Counted{Packets: true, Inactive: true, Rates: true}

// carried returns traffic with a different value in each field.
func carried(n uint64) reconcile.Traffic {
	return reconcile.Traffic{Connections: n + 1, Active: n + 2, Inactive: n + 3,
		In: reconcile.Volume{Packets: n + 4, Bytes: n + 5}, Out: reconcile.Volume{Packets: n + 6, Bytes: n + 7},
		Rates: reconcile.Rates{Connections: n + 8, In: reconcile.Volume{Packets: n + 9, Bytes: n + 10}, Out: reconcile.Volume{Packets: n + 11, Bytes: n + 12}}}
}

func shown(n uint64) v1.Traffic { return shownSum(n, 1) }

// shownSum returns the API's form of a sum of carried(n): times is the number of terms, sum the sum
// of their n.
func shownSum(sum, times uint64) v1.Traffic {
	at := func(i uint64) *uint64 { v := sum + i*times; return &v }
	return v1.Traffic{Connections: *at(1), Active: *at(2), Inactive: at(3), In: v1.Volume{Packets: at(4), Bytes: *at(5)},
		Out:   v1.Volume{Packets: at(6), Bytes: *at(7)},
		Rates: &v1.Rates{Connections: *at(8), In: v1.Volume{Packets: at(9), Bytes: *at(10)}, Out: v1.Volume{Packets: at(11), Bytes: *at(12)}}}
}

// frontends returns the keys of a service's frontends by port.
func (r *rig) frontends(service string) map[uint16]vip.FrontendKey {
	out := map[uint16]vip.FrontendKey{}
	for key, f := range r.deps.Tables.Frontends.All() {
		if f.Service.String() == service {
			out[key.Port] = key
		}
	}
	return out
}

func TestServiceStats(t *testing.T) {
	stats, edit := counting(everything)
	r := newRig(t, edit)
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"name":"http","port":80},{"name":"https","port":443},{"name":"new","port":8080}],
		"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2"}]}`, "Prefer: wait=60")
	keys := r.frontends("web")
	a, b, gone := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), netip.MustParseAddrPort("10.0.0.3:80")
	const huge = 1 << 60
	stats.Set(keys[80], reconcile.Breakdown{Traffic: carried(huge), Endpoints: map[netip.AddrPort]reconcile.Traffic{
		b: carried(200), a: carried(100), gone: carried(300)}})
	stats.Set(keys[443], reconcile.Breakdown{Traffic: carried(1000)})
	other := vip.FrontendKey{Addr: netip.MustParseAddr("198.51.100.1"), Port: 1, Protocol: vip.TCP}
	stats.Set(other, reconcile.Breakdown{Traffic: carried(5000)}) // foreign, in the same kernel

	got := decode[v1.ServiceStats](r, "GET", v1.ServiceStatsPath("default", "web"), "")
	one, two := shown(huge), shown(1000)
	want := v1.ServiceStats{Service: "web", Traffic: shownSum(huge+1000, 2), Frontends: []v1.FrontendStats{
		{Frontend: keys[80].String(), Kind: "vip", Port: "http", Traffic: &one, Backends: []v1.BackendStats{
			{Address: "10.0.0.1:80", Traffic: shown(100)}, {Address: "10.0.0.2:80", Traffic: shown(200)}, {Address: "10.0.0.3:80", Traffic: shown(300)}}},
		{Frontend: keys[443].String(), Kind: "vip", Port: "https", Traffic: &two, Backends: []v1.BackendStats{}},
		{Frontend: keys[8080].String(), Kind: "vip", Port: "new", Backends: []v1.BackendStats{}},
	}}
	expect.NoDiff(t, cmp.Diff(want, got))
	if totals, breakdowns := stats.Readings(); totals != 0 || breakdowns != 3 {
		t.Errorf("a service of three frontends took %d readings of all and %d of one", totals, breakdowns)
	}

	list := decode[v1.StatsList](r, "GET", v1.PathStats, "")
	all := v1.StatsList{Items: []v1.ServiceTotal{{Service: "from-file", Traffic: shownSum(0, 0)}, {Service: "web", Traffic: shownSum(huge+1000, 2)}}}
	expect.NoDiff(t, cmp.Diff(all, list))
	if totals, breakdowns := stats.Readings(); totals != 1 || breakdowns != 3 {
		t.Errorf("the list took %d readings of all and %d of one", totals, breakdowns-3)
	}
}

// Values that a dataplane doesn't count are absent, not 0.
func TestStatsOfADataplaneThatCountsLess(t *testing.T) {
	stats, edit := counting(reconcile.Counted{})
	r := newRig(t, edit)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	stats.Set(r.frontends("web")[80], reconcile.Breakdown{Traffic: carried(0)})
	for _, path := range []string{v1.PathStats, v1.ServiceStatsPath("default", "web"), v1.PathMetrics} {
		a := r.ask("GET", path, "")
		if a.StatusCode != 200 || !bytes.Contains(a.body, []byte("connections")) {
			t.Errorf("%s: %s", path, a.Status)
		}
		for _, absent := range []string{`"packets"`, `"inactive_connections"`, `"rates"`, "service_packets_total", "service_inactive_connections"} {
			expect.False(t, bytes.Contains(a.body, []byte(absent)), "%s has %s", path, absent)
		}
	}
}

func TestStatsRefusals(t *testing.T) {
	stats, edit := counting(everything)
	r := newRig(t, edit)
	stats.Fail(errors.New("the socket is gone"))
	for _, path := range []string{v1.PathStats, v1.ServiceStatsPath("default", "from-file")} {
		p := r.ask("GET", path, "").problem(t)
		if p.Status != http.StatusServiceUnavailable || p.Code != v1.CodeDataplane || !strings.Contains(p.Detail, "the socket is gone") {
			t.Errorf("%s of a dataplane that can't be read: %+v", path, p)
		}
	}
	if a := r.ask("GET", v1.PathMetrics, ""); a.StatusCode != 200 || !bytes.Contains(a.body, []byte("ironvip_statistics_up 0\n")) ||
		!bytes.Contains(a.body, []byte("ironvip_ready 1\n")) || bytes.Contains(a.body, []byte("service_connections_total")) {
		t.Errorf("metrics of a dataplane that can't be read: %s\n%s", a.Status, a.body)
	}
	if p := r.ask("GET", v1.ServiceStatsPath("default", "none"), "").problem(t); p.Status != http.StatusNotFound || p.Code != v1.CodeNotFound {
		t.Errorf("no such service: %+v", p)
	}
}

// A scrape reads the dataplane once for any number of frontends. It has a series for each of ours.
func TestStatsMetrics(t *testing.T) {
	stats, edit := counting(everything)
	r := newRig(t, edit)
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"name":"http","port":80},{"name":"https","port":443}],"backends":[{"address":"10.0.0.1"}]}`, "Prefer: wait=60")
	keys := r.frontends("web")
	first, second := carried(0), carried(1000)
	first.Refused, second.Refused = reconcile.Refused{Connections: 7}, reconcile.Refused{Connections: 6, Rate: 5}
	stats.Set(keys[80], reconcile.Breakdown{Traffic: first})
	stats.Set(keys[443], reconcile.Breakdown{Traffic: second})
	stats.Set(vip.FrontendKey{Addr: netip.MustParseAddr("198.51.100.1"), Port: 1, Protocol: vip.TCP}, reconcile.Breakdown{Traffic: carried(5000)})
	before, _ := stats.Readings()
	a := r.ask("GET", v1.PathMetrics, "")
	if after, one := stats.Readings(); after != before+1 || one != 0 {
		t.Errorf("a scrape took %d readings of all and %d of one", after-before, one)
	}
	http, https := `{frontend="`+keys[80].String()+`",port="http",service="web"}`, `{frontend="`+keys[443].String()+`",port="https",service="web"}`
	direction := func(labels, d string) string {
		return strings.Replace(labels, `{`, `{direction="`+d+`",`, 1)
	}
	for _, want := range []string{
		"ironvip_statistics_up 1",
		"ironvip_service_connections_total" + http + " 1", "ironvip_service_connections_total" + https + " 1001",
		"ironvip_service_active_connections" + http + " 2", "ironvip_service_inactive_connections" + http + " 3",
		"ironvip_service_packets_total" + direction(http, "in") + " 4", "ironvip_service_bytes_total" + direction(http, "in") + " 5",
		"ironvip_service_packets_total" + direction(http, "out") + " 6", "ironvip_service_bytes_total" + direction(https, "out") + " 1007",
		`ironvip_service_refused_total{reason="max_connections_per_source",service="web"} 13`, `ironvip_service_refused_total{reason="max_rate_per_source",service="web"} 5`,
	} {
		expect.Contains(t, string(a.body), want+"\n", "no %s", want)
	}
	expect.False(t, strings.Contains(string(a.body), "198.51.100.1"), "a series of what isn't ours")
	metrictest.Check(t, string(a.body), "ironvip_")
	if t.Failed() {
		t.Logf("%s", a.body)
	}
}

// planeOf is a dataplane with connections.
type planeOf map[vip.FrontendKey]map[netip.AddrPort]int

func (p planeOf) Connections(_ context.Context, key vip.FrontendKey) (map[netip.AddrPort]int, error) {
	open, ok := p[key]
	if !ok {
		return nil, errors.New("no such frontend")
	}
	return open, nil
}

// The connections of a backend are those at its own address and port: in any state, with weight 0,
// and of a removed one that drains.
func TestBackendConnections(t *testing.T) {
	open := planeOf{}
	r := newRig(t, func(d *Deps) { d.Forwarding.Connections = open })
	body := func(backends string) string {
		return `{"drain_timeout":"1h","ports":[{"name":"http","port":80,"target_port":8080},{"name":"https","port":443}],"backends":[` + backends + `]}`
	}
	const one, two, weightless = `{"address":"10.0.0.1"}`, `{"address":"10.0.0.1","port":9090}`, `{"address":"10.0.0.2","weight":0}`
	decode[v1.Service](r, "PUT", webPath, body(one+","+two+","+weightless), "Prefer: wait=60")
	decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1/state", `{"state":"drain"}`, "Prefer: wait=60")
	at := netip.MustParseAddrPort
	keys := r.frontends("web")
	open[keys[80]] = map[netip.AddrPort]int{at("10.0.0.1:8080"): 3, at("10.0.0.1:9090"): 10, at("10.0.0.2:8080"): 100}
	open[keys[443]] = map[netip.AddrPort]int{at("10.0.0.1:443"): 4, at("10.0.0.1:8080"): 1000}
	check := func(id, state string, want uint64, frontends int) {
		t.Helper()
		got := decode[v1.BackendConnections](r, "GET", v1.BackendConnectionsPath("default", "web", id), "")
		if got.Service != "web" || got.Backend != id || got.State != state || got.Connections != want || len(got.Frontends) != frontends {
			t.Errorf("%+v, want %s with %d", got, state, want)
		}
	}
	check("10.0.0.1", "drain", 7, 2)
	check("10.0.0.1:9090", "ready", 10, 1)
	check("10.0.0.2", "ready", 100, 1)
	decode[v1.Service](r, "PUT", webPath, body(two+","+weightless), "Prefer: wait=60")
	check("10.0.0.1:8080", "", 3, 1)
	check("10.0.0.1:443", "", 4, 1)
	for path, status := range map[string]int{webPath + "/backends/10.0.0.7": 404, webPath + "/backends/10.0.0.1": 200, "/v1/services/default/none/backends/10.0.0.1": 404} {
		if a := r.ask("GET", path+"/connections", ""); a.StatusCode != status {
			t.Errorf("%s: %s", path, a.Status)
		}
	}
	delete(open, keys[80])
	if a := r.ask("GET", webPath+"/backends/10.0.0.2/connections", ""); a.StatusCode != http.StatusServiceUnavailable || a.problem(t).Code != v1.CodeDataplane {
		t.Errorf("unreadable: %s %s", a.Status, a.body)
	}
}
