package api

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/vip"
)

func serviceKey(name string) vip.ServiceKey {
	return vip.ServiceKey{Namespace: vip.DefaultNamespace, Name: name}
}

// Rates are differences of counters per second, also after a counter has restarted at 0.
func TestTopRates(t *testing.T) {
	last := map[vip.ServiceKey]reconcile.Traffic{
		serviceKey("steady"): {Connections: 100, In: reconcile.Volume{Bytes: 1000}, Out: reconcile.Volume{Bytes: 5000}},
		serviceKey("again"):  {Connections: 900, In: reconcile.Volume{Bytes: 900}},
		serviceKey("idle"):   {Connections: 7, Active: 3},
	}
	now := map[vip.ServiceKey]reconcile.Traffic{
		serviceKey("steady"): {Connections: 110, Active: 2, In: reconcile.Volume{Bytes: 3000}, Out: reconcile.Volume{Bytes: 15000}},
		serviceKey("again"):  {Connections: 40, In: reconcile.Volume{Bytes: 100}},
		serviceKey("idle"):   {Connections: 7, Active: 3},
		serviceKey("new"):    {Connections: 1, In: reconcile.Volume{Bytes: 10}},
	}
	for by, want := range map[string][]string{
		"connections": {"again", "steady", "new", "idle"}, "active": {"idle", "steady", "again", "new"}, "in": {"steady", "again", "new", "idle"},
		"out": {"steady", "idle", "again", "new"}, "bytes": {"steady", "again", "new", "idle"},
	} {
		got := top(v1.Top{}, last, now, 2*time.Second, &topInput{By: by, Limit: 10})
		for i, s := range got.Items {
			if len(got.Items) != 4 || s.Service != want[i] {
				t.Errorf("by %s: %+v, want %q", by, got.Items, want)
				break
			}
		}
		if got.Services != 4 || got.Seconds != 2 || got.Sum != (v1.TopService{Active: 5, Connections: 25.5, In: 1055, Out: 5000}) {
			t.Errorf("by %s: %+v", by, got)
		}
	}
	got := top(v1.Top{}, last, now, 2*time.Second, &topInput{By: "connections", Limit: 1})
	if len(got.Items) != 1 || got.Items[0] != (v1.TopService{Service: "again", Connections: 20, In: 50}) || got.Services != 4 {
		t.Errorf("%+v", got)
	}
}

// A line is sent after an interval, with one read of the counters for each.
func TestTop(t *testing.T) {
	stats, edit := counting(everything)
	r := newRig(t, edit)
	must[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	for _, key := range r.frontends("web") {
		stats.Set(key, reconcile.Breakdown{Traffic: carried(10)})
	}
	a := r.ask("GET", v1.PathTop+"?interval=1s&count=1", "")
	var line v1.Top
	if err := json.Unmarshal(a.body, &line); err != nil || bytes.Count(a.body, []byte("\n")) != 1 || a.Header.Get("Content-Type") != ndjson {
		t.Fatalf("%v: %s", err, a.body)
	}
	if len(line.Items) != 1 || line.Items[0] != (v1.TopService{Service: "web", Active: 12}) || line.Seconds < 1 {
		t.Errorf("%+v", line)
	}
	if totals, _ := stats.Readings(); totals != 2 {
		t.Errorf("%d reads of the counters, want 2", totals)
	}
	for _, query := range []string{"?interval=10ms", "?interval=2m", "?interval=x", "?by=name", "?limit=0"} {
		if a := r.ask("GET", v1.PathTop+query, ""); a.StatusCode != 400 && a.StatusCode != 422 {
			t.Errorf("%s: %s", query, a.Status)
		}
	}
}

// Many callers cost one read of the counters per half an interval.
func TestTopSharesReads(t *testing.T) {
	stats, edit := counting(everything)
	r := newRig(t, edit)
	must[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	begin := time.Now()
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			var line v1.Top
			if a := r.ask("GET", v1.PathTop+"?interval=1s&count=1", ""); json.Unmarshal(a.body, &line) != nil || line.Seconds < 0.5 {
				t.Errorf("%s", a.body)
			}
		})
	}
	callers.Wait()
	if totals, _ := stats.Readings(); totals > 2+2*int(time.Since(begin)/time.Second) {
		t.Errorf("%d reads of the counters by 20 callers in %s", totals, time.Since(begin))
	}
}
