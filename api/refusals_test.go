package api

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/metrictest"
	"github.com/ironvip/ironvip/vip"
)

func TestRefusedClients(t *testing.T) {
	at := time.Date(2026, 11, 8, 12, 1, 7, 0, time.UTC)
	refused := []reconcile.Refusal{{Reason: "reserve", Meaning: "the rest is reserved", Count: 3, Last: at}, {Reason: "unreachable", Meaning: "no backend answered", Count: 1, Last: at}}
	r := newRig(t, func(d *Deps) {
		d.Services.Proxy = func() *balance.Report {
			return &balance.Report{Refusals: append([]reconcile.Refusal{{Reason: "capacity"}}, refused...),
				Services: map[vip.ServiceKey]balance.ServiceReport{{Namespace: "default", Name: "web"}: {Refusals: refused, Waiting: 2, Most: 50, Full: true}}}
		}
	})
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":80}],"backends":[{"address":"10.0.0.1"}],"max_connections":50}`, "Prefer: wait=60")
	decode[v1.Service](r, "PUT", v1.ServicePath("default", "db"), `{"ports":[{"port":81}],"backends":[{"address":"10.0.0.1"}],"max_connections":50}`, "Prefer: wait=60")
	decode[v1.Service](r, "PUT", v1.ServicePath("default", "api"), `{"ports":[{"port":82}],"backends":[{"address":"10.0.0.1"}]}`, "Prefer: wait=60")
	full := map[string]bool{}
	for _, s := range decode[v1.ServiceList](r, "GET", v1.PathServices, "").Items {
		full[s.Spec.Name] = s.Status.Full
	}
	if !full["web"] || full["db"] || full["api"] || len(full) != 4 {
		t.Errorf("full: %v", full)
	}

	lines := strings.Join(decode[v1.Explanation](r, "GET", webPath+"/explain", "").Lines, "\n")
	for _, want := range []string{
		"The dataplane has refused 3 clients since the agent's start, last at 2026-11-08T12:01:07Z: the rest is reserved (reserve).",
		"The dataplane has refused 1 client since the agent's start, last at 2026-11-08T12:01:07Z: no backend answered (unreachable).",
		"It is full: new clients find no place, and wait in its queue or are refused (max_connections).",
		"2 of at most 50 clients wait in its queue, because the service or its backends have reached max_connections.",
	} {
		expect.Contains(t, lines, want, "explain without %q:\n", want)
	}

	metrics := r.ask("GET", v1.PathMetrics, "").body
	for _, want := range []string{
		`ironvip_dataplane_refused_total{reason="capacity"} 0`,
		`ironvip_dataplane_refused_total{reason="reserve"} 3`,
		`ironvip_service_refused_total{reason="reserve",service="web"} 3`,
		`ironvip_service_refused_total{reason="unreachable",service="web"} 1`,
		`ironvip_service_queued_clients{service="web"} 2`,
		`ironvip_service_full{service="web"} 1`,
		`ironvip_api_refused_total{kind="connections"} 0`,
		`ironvip_api_refused_total{kind="streams"} 0`,
	} {
		expect.True(t, bytes.Contains(metrics, []byte(want)), "no %s", want)
	}
	expect.Equal(t, bytes.Count(metrics, []byte("ironvip_service_refused_total{")), 2, "series of services")
	expect.Equal(t, bytes.Count(metrics, []byte("ironvip_service_full{")), 1, "series of full services")
	metrictest.Check(t, string(metrics), "ironvip_")
}

// The host answers with 503 to an event stream that is one too many, and counts it.
func TestStreamsBeyondTheLimit(t *testing.T) {
	r := newRig(t, func(d *Deps) { d.Connections = 2 })
	open := r.send("GET", v1.PathEvents, "", "Accept: application/x-ndjson")
	defer open.Body.Close()
	a := r.ask("GET", v1.PathEvents, "", "Accept: application/x-ndjson")
	if a.StatusCode != 503 || a.Header.Get("Retry-After") != "5" || a.problem(t).Code != v1.CodeOverloaded {
		t.Errorf("a stream beyond the limit: %d, %v, %s", a.StatusCode, a.Header, a.body)
	}
	status := decode[v1.NodeStatus](r, "GET", v1.PathStatus, "")
	i := slices.IndexFunc(status.Checks, func(c v1.Check) bool { return c.Name == "api" })
	if i < 0 || status.Checks[i].Level != v1.LevelWarn || status.Checks[i].Message != "1 stream refused since the start: at most 1 may be open" {
		t.Errorf("status: %+v", status.Checks)
	}
	if a := r.ask("GET", v1.PathEvents, ""); a.StatusCode != 200 {
		t.Errorf("a list of events: %d, %s", a.StatusCode, a.body)
	}
	metrics := r.ask("GET", v1.PathMetrics, "").body
	expect.True(t, bytes.Contains(metrics, []byte(`ironvip_api_refused_total{kind="streams"} 1`)), "not counted")
}

// A blocking read keeps its connection as a stream does, and counts as one while it waits.
func TestBlockingReadsBeyondTheLimit(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
		r.eventually(webPath, "web.vip.internal") // its names come last
		for _, path := range []string{webPath, v1.PathServices} {
			wait := path + "?wait=10s&revision=1000000"
			ended := make(chan answer)
			go func() { ended <- r.ask("GET", wait, "") }()
			synctest.Wait()
			if a := r.ask("GET", wait, ""); a.StatusCode != 503 || a.Header.Get("Retry-After") != "5" || a.problem(t).Code != v1.CodeOverloaded {
				t.Errorf("%s beyond the limit: %d, %v, %s", wait, a.StatusCode, a.Header, a.body)
			}
			for _, query := range []string{"", "?wait=10s&revision=1", "?wait=0s&revision=1000000"} {
				if a := r.ask("GET", path+query, ""); a.StatusCode != 200 {
					t.Errorf("%s%s waits for nothing: %d, %s", path, query, a.StatusCode, a.body)
				}
			}
			if a := <-ended; a.StatusCode != 200 {
				t.Errorf("%s: %d, %s", wait, a.StatusCode, a.body)
			}
			if a := r.ask("GET", wait, ""); a.StatusCode != 200 {
				t.Errorf("%s after another one: %d, %s", wait, a.StatusCode, a.body)
			}
		}
	}, func(d *Deps) { d.Connections = 2 })
}
