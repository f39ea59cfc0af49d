package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// A server registers for some of the service's ports. The same address with another port is a
// separate backend with its own state.
func TestBackendOfSomePorts(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":80,"name":"http"},{"port":81,"name":"admin"}]}`, "Prefer: wait=60")
	bad := r.ask("PUT", webPath+"/backends/10.0.0.2", `{"ports":["amdin"]}`)
	if text := string(bad.body); bad.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(text, `did you mean \"admin\"?`) {
		t.Errorf("a port that isn't there: %s\n%s", bad.Status, text)
	}
	b := decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.2", `{"ports":["http"],"for_zones":["b","a"],"for_nodes":["n1"]}`, "Prefer: wait=60")
	expect.Equal(t, fmt.Sprint(b.Ports, b.ForZones, b.ForNodes), "[http] [a b] [n1]", "%+v", b)
	decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.2:80", `{"ports":["admin"]}`, "Prefer: wait=60")
	a := r.ask("PUT", webPath+"/backends/10.0.0.2:80/state?force=true", `{"state":"drain"}`, "Prefer: wait=2")
	expect.True(t, a.Header.Get("Preference-Applied") != "", "not applied: %s\n%s", a.Status, a.body)
	got := map[string]string{}
	for _, f := range decode[v1.FrontendList](r, "GET", v1.PathDataplaneFrontends+"?service=web", "").Items {
		got[f.Port] = fmt.Sprint(f.Backends)
	}
	want := map[string]string{"http": "[{10.0.0.2:80 1 0 <nil>}]", "admin": "[{10.0.0.2:80 0 0 <nil>}]"}
	expect.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "%v, want %v", got, want)
}

// A UDP frontend in the dataplane contains only backends that accept new clients. A wait for a
// backend's return ends when it is in the dataplane again.
func TestStateOfUDPBackend(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":53,"protocol":"udp"}],"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2"}]}`, "Prefer: wait=60")
	for range 20 {
		for state, want := range map[string]string{"drain": "[{10.0.0.2:53 1 0 <nil>}]", "ready": "[{10.0.0.1:53 1 0 <nil>} {10.0.0.2:53 1 0 <nil>}]"} {
			decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1/state", `{"state":"`+state+`"}`, "Prefer: wait=60")
			for _, f := range decode[v1.FrontendList](r, "GET", v1.PathDataplaneFrontends+"?service=web", "").Items {
				expect.Equal(t, fmt.Sprint(f.Backends), want, "%s: %s has", state, f.Address)
			}
		}
	}
}

func TestBackendLife(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	const path = webPath + "/backends/10.0.0.2:9090"
	a := r.ask("PUT", path, `{"weight":5,"zone":"a","ttl":"30s","max_connections":7}`, "Prefer: wait=60")
	var b v1.Backend
	if err := json.Unmarshal(a.body, &b); err != nil || a.StatusCode != http.StatusCreated || a.Header.Get("Location") != path || a.Header.Get("Preference-Applied") == "" {
		t.Fatalf("register: %s %v\n%s", a.Status, err, a.body)
	}
	if b.ID != "10.0.0.2:9090" || b.Service != "web" || b.Weight != 5 || b.MaxConnections != 7 || b.Zone != "a" || b.TTL != "30s" || b.ExpiresAt == nil || b.RemovedAt == nil || !b.Usable {
		t.Errorf("%+v", b)
	}
	if again := r.ask("PUT", path, `{"weight":5,"zone":"a","ttl":"30s","max_connections":7}`); again.StatusCode != http.StatusOK {
		t.Errorf("again: %s", again.Status)
	}
	if beat := r.ask("PUT", path+"/heartbeat", ""); beat.StatusCode != http.StatusNoContent || len(beat.body) != 0 {
		t.Errorf("heartbeat: %s %q", beat.Status, beat.body)
	}
	got := decode[v1.Backend](r, "GET", path, "")
	expect.Equal(t, got.ID, b.ID, "get: %+v", got)
	list := decode[v1.BackendList](r, "GET", webPath+"/backends", "")
	expect.Equal(t, len(list.Items), 2, "list: %+v", list)
	decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.3", "") // no body: weight 1, no TTL
	weight := func(address string) (w uint32, found bool) {
		for _, f := range decode[v1.FrontendList](r, "GET", v1.PathDataplaneFrontends+"?service=web", "").Items {
			for _, e := range f.Backends {
				if e.Address == address {
					expect.Equal(t, e.MaxConnections, 7, "the dataplane gives it %d connections", e.MaxConnections)
					return e.Weight, true
				}
			}
		}
		return 0, false
	}
	drained := decode[v1.Backend](r, "PUT", path+"/state", `{"state":"maint"}`, "Prefer: wait=60")
	if drained.State != "maint" || drained.SourceState != "ready" || drained.Usable {
		t.Errorf("maint: %+v", drained)
	}
	if w, found := weight("10.0.0.2:9090"); found && w != 0 {
		t.Errorf("the dataplane still gives it weight %d", w)
	}
	ready := decode[v1.Backend](r, "PUT", path+"/state", `{"state":"ready"}`, "Prefer: wait=60")
	if w, _ := weight("10.0.0.2:9090"); w != 5 || ready.State != "ready" || ready.SourceState != "" {
		t.Errorf("ready again: weight %d, %+v", w, ready)
	}
	decode[v1.Backend](r, "PUT", "/v1/services/default/from-file/backends/10.9.0.1/state?force=true", `{"state":"drain"}`, "Prefer: wait=60")

	deleted := decode[v1.Deleted](r, "DELETE", path, "", "Prefer: wait=60")
	if deleted.Backend != "10.0.0.2:9090" || !deleted.Applied {
		t.Errorf("deleted: %+v", deleted)
	}
	if again := r.ask("DELETE", path, ""); again.problem(t).Code != v1.CodeNotFound {
		t.Errorf("once more: %s", again.body)
	}
	if beat := r.ask("PUT", path+"/heartbeat", ""); beat.StatusCode != http.StatusNotFound || !strings.Contains(beat.problem(t).Hint, "register") {
		t.Errorf("heartbeat of the deleted: %s", beat.body)
	}
}

// A removed backend is listed while it drains. A request for it by name is not found.
func TestRemovedBackendIsListedWhileItDrains(t *testing.T) {
	r := newRig(t)
	body := func(backends string) string {
		return `{"ports":[{"port":80},{"port":81,"target_port":80}],"drain_timeout":"1h","backends":[` + backends + `]}`
	}
	decode[v1.Service](r, "PUT", webPath, body(`{"address":"10.0.0.1"},{"address":"10.0.0.2"}`), "Prefer: wait=60")
	decode[v1.Service](r, "PUT", webPath, body(`{"address":"10.0.0.1"}`), "Prefer: wait=60")
	list := decode[v1.BackendList](r, "GET", webPath+"/backends", "").Items
	if len(list) != 2 || list[0].Removed || list[1].ID != "10.0.0.2:80" || !list[1].Removed || list[1].LeavingAt == nil || list[1].Usable {
		t.Errorf("%+v", list)
	}
	got := r.ask("GET", webPath+"/backends/10.0.0.2:80", "")
	expect.Equal(t, got.StatusCode, 404, "the removed backend by name: %s", got.Status)
}

// Other endpoints at a backend's address don't delay the wait for its state: neither another
// backend with its own port, nor an endpoint that remains after a change of the target port.
func TestWaitForAStateLooksAtThatBackendAlone(t *testing.T) {
	r := newRig(t)
	body := func(target int) string {
		return fmt.Sprintf(`{"ports":[{"port":80,"target_port":%d}],"drain_timeout":"1h","backends":[{"address":"10.0.0.1"},{"address":"10.0.0.1","port":9090}]}`, target)
	}
	decode[v1.Service](r, "PUT", webPath, body(8080), "Prefer: wait=60")
	decode[v1.Service](r, "PUT", webPath, body(8081), "Prefer: wait=60") // 10.0.0.1:8080 drains for an hour
	decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1:9090/state", `{"state":"maint"}`, "Prefer: wait=60")
	decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1/state?force=true", `{"state":"drain"}`, "Prefer: wait=60")
	ready := decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.1/state", `{"state":"ready"}`, "Prefer: wait=60")
	if ready.State != "ready" || !ready.Usable {
		t.Errorf("%+v", ready)
	}
	want := map[string]uint32{"10.0.0.1:8080": 0, "10.0.0.1:8081": 1, "10.0.0.1:9090": 0}
	for _, f := range r.plane.Have() {
		for _, e := range f.Backends {
			if w, ours := want[e.Addr.String()]; ours && w != uint32(e.Weight) {
				t.Errorf("%s has weight %d, want %d", e.Addr, e.Weight, w)
			}
		}
	}
}

func TestIPv6BackendInAPath(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":80}],"families":["ipv6"]}`)
	for _, id := range []string{"[2001:db8::1]:8080", "%5B2001:db8::2%5D:8080", "2001:db8::3"} {
		a := r.ask("PUT", webPath+"/backends/"+id, "")
		expect.Equal(t, a.StatusCode, http.StatusCreated, "%s: %s %s", id, a.Status, a.body)
	}
	if list := decode[v1.BackendList](r, "GET", webPath+"/backends", ""); len(list.Items) != 3 || list.Items[0].ID != "[2001:db8::1]:8080" || list.Items[2].ID != "2001:db8::3" {
		t.Errorf("%+v", list)
	}
}

// A backend shows its configured state and what was observed of it, each with its reason.
func TestObservedHealth(t *testing.T) {
	since := time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)
	until := since.Add(time.Second)
	result := func(ports vip.Names, health vip.Health, reason string) vip.CheckResult {
		return vip.CheckResult{Ports: ports, Type: vip.CheckHTTP, Port: 80, Health: health, Since: vip.InstantOf(since), Reason: reason}
	}
	held := result("", vip.Healthy, "timeout (3 of 3)")
	held.HeldUntil = vip.InstantOf(until)
	const hint = "see the log of the backend's server: it answers, but reports that it does not work"
	for _, tc := range []struct {
		name    string
		source  vip.Health
		checks  []vip.CheckResult
		passive vip.Health
		want    v1.BackendStatus
	}{
		{"nothing", 0, nil, 0, v1.BackendStatus{Health: "unchecked", Usable: true}},
		{"its source", vip.Healthy, nil, 0, v1.BackendStatus{Health: "healthy", Check: "source", Usable: true}},
		{"its source finds it unhealthy", vip.Unhealthy, nil, 0, v1.BackendStatus{Health: "unhealthy", Check: "source", HealthReason: "critical"}},
		{"its source finds it unhealthy, its check passes", vip.Unhealthy, []vip.CheckResult{result("", vip.Healthy, "")}, 0, v1.BackendStatus{Health: "unhealthy", Check: "source", HealthReason: "critical"}},
		{"pending", 0, []vip.CheckResult{result("", vip.Unknown, "")}, 0, v1.BackendStatus{Health: "unknown", Check: "http", HealthSince: &since, Usable: true}},
		{"healthy", vip.Healthy, []vip.CheckResult{result("", vip.Healthy, "")}, 0, v1.BackendStatus{Health: "healthy", Check: "http", HealthSince: &since, Usable: true}},
		{"unhealthy", vip.Healthy, []vip.CheckResult{result("", vip.Unhealthy, "status 500 (3 of 3)")}, 0, v1.BackendStatus{Health: "unhealthy", Check: "http", HealthSince: &since, HealthReason: "status 500 (3 of 3)", HealthHint: hint}},
		{"unhealthy at one port", 0, []vip.CheckResult{result("a", vip.Healthy, ""), result("b", vip.Unhealthy, "refused")}, 0, v1.BackendStatus{Health: "unhealthy", Check: "http", HealthSince: &since, HealthReason: "refused"}},
		{"held", 0, []vip.CheckResult{held}, 0, v1.BackendStatus{Health: "healthy", Check: "http", HealthSince: &since, HealthReason: "timeout (3 of 3)", Held: true, HeldUntil: &until, Usable: true}},
		{"answered clients", 0, nil, vip.Healthy, v1.BackendStatus{Health: "healthy", Check: "passive", HealthSince: &since, Usable: true}},
		{"answered clients, its source finds it healthy", vip.Healthy, nil, vip.Healthy, v1.BackendStatus{Health: "healthy", Check: "source", Usable: true}},
		{"ejected, its check passes", vip.Healthy, []vip.CheckResult{result("", vip.Healthy, "")}, vip.Ejected, v1.BackendStatus{Health: "ejected", Check: "passive", HealthSince: &since, HealthReason: "refused", EjectedUntil: &until}},
		{"ejected, its check fails", 0, []vip.CheckResult{result("", vip.Unhealthy, "status 500")}, vip.Ejected, v1.BackendStatus{Health: "unhealthy", Check: "http", HealthSince: &since, HealthReason: "status 500", HealthHint: hint}},
	} {
		w := statustest.New()
		w.Healthy(1)
		if tc.passive != 0 {
			p := vip.PassiveHealth{PassiveKey: statustest.PassiveKey(statustest.ServiceNo(1)), Health: tc.passive, Since: vip.InstantOf(since)}
			if tc.passive == vip.Ejected {
				p.Until, p.Reason = vip.InstantOf(until), "refused"
			}
			w.Passive.Set(p)
		}
		service, _, _ := w.Services.Get(statustest.ServiceNo(1))
		b := statustest.OneBackend
		b.Health = tc.source
		if b.Health == vip.Unhealthy {
			b.Reason = vip.ReasonText("critical")
		}
		service.Backends = []vip.Backend{b}
		w.Services.Set(service)
		if len(tc.checks) > 0 {
			w.Health.Set(vip.BackendHealth{Backend: b.Key(statustest.ServiceNo(1)), Checks: tc.checks})
		}
		row, ok := New(depsOf(w)).services.Service(statustest.ServiceNo(1))
		if !ok || len(row.Status.Backends) != 1 {
			t.Fatalf("%s: %+v", tc.name, row)
		}
		want := tc.want
		want.LastError = want.HealthReason
		want.Serving = tc.passive != vip.Ejected // the frontend of the test gives it a weight
		want.ID, want.Address, want.Port, want.Weight, want.State = "10.0.0.1:80", "10.0.0.1", 80, 1, "ready"
		expect.NoDiff(t, cmp.Diff(want, row.Status.Backends[0]), tc.name)
	}
}

// The last error is the reason while a backend is unhealthy, else the newest failure of a probe or a
// connection while it is recent. An error of a source has no time.
func TestLastError(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) vip.Instant { return vip.InstantOf(now.Add(-d)) }
	unhealthy := []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: vip.Unhealthy, Since: ago(time.Hour), Reason: "timeout"}}
	for _, tc := range []struct {
		name       string
		source     vip.Health
		checks     []vip.CheckResult
		probe      string
		probed     vip.Instant
		connection reconcile.Failures
		want       string
		at         vip.Instant
	}{
		{name: "never"},
		{name: "a probe", probe: "refused", probed: ago(9 * time.Minute), want: "refused", at: ago(9 * time.Minute)},
		{name: "a probe, long ago", probe: "refused", probed: ago(11 * time.Minute)},
		{name: "a connection", connection: reconcile.Failures{Last: ago(time.Second), Reason: "reset"}, want: "reset", at: ago(time.Second)},
		{name: "a probe, a connection later", probe: "refused", probed: ago(2 * time.Second), connection: reconcile.Failures{Last: ago(time.Second), Reason: "reset"}, want: "reset", at: ago(time.Second)},
		{name: "a connection, a probe later", probe: "refused", probed: ago(time.Second), connection: reconcile.Failures{Last: ago(2 * time.Second), Reason: "reset"}, want: "refused", at: ago(time.Second)},
		{name: "unhealthy", checks: unhealthy, probe: "refused once", probed: ago(time.Second), want: "timeout", at: ago(time.Second)},
		{name: "unhealthy, by other hosts", checks: unhealthy, want: "timeout"},
		{name: "unhealthy by its source", source: vip.Unhealthy, probe: "refused", probed: ago(time.Second), want: "critical"},
	} {
		w := statustest.New()
		w.Healthy(1)
		service, _, _ := w.Services.Get(statustest.ServiceNo(1))
		b := statustest.OneBackend
		if b.Health = tc.source; b.Health == vip.Unhealthy {
			b.Reason = vip.ReasonText("critical")
		}
		service.Backends = []vip.Backend{b}
		w.Services.Set(service)
		if len(tc.checks) > 0 {
			w.Health.Set(vip.BackendHealth{Backend: b.Key(statustest.ServiceNo(1)), Checks: tc.checks})
		}
		d := depsOf(w)
		d.Services.Proxy = func() *balance.Report {
			return &balance.Report{Failures: map[vip.PassiveKey]reconcile.Failures{statustest.PassiveKey(statustest.ServiceNo(1)): tc.connection}}
		}
		d.Services.LastFailure = func(*vip.Service, *vip.Backend) (vip.Instant, string) { return tc.probed, tc.probe }
		row, _ := New(d).services.Service(statustest.ServiceNo(1))
		got := row.Status.Backends[0]
		if got.LastError != tc.want || (got.LastErrorAt == nil) != (tc.at == 0) || got.LastErrorAt != nil && !got.LastErrorAt.Equal(tc.at.Time()) {
			t.Errorf("%s: %q at %v, want %q at %v", tc.name, got.LastError, got.LastErrorAt, tc.want, tc.at.Time())
		}
	}
}
