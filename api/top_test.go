package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/reconciletest"
)

// A line is sent after an interval, with one read of the counters for each.
func TestTop(t *testing.T) {
	stats, edit := counting(everything)
	inRig(t, func(t *testing.T, r *rig) {
		decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
		for _, key := range r.frontends("web") {
			stats.Set(key, reconcile.Breakdown{Traffic: carried(10)})
		}
		a := r.ask("GET", v1.PathTop+"?interval=1s&count=1", "")
		var line v1.Top
		if err := json.Unmarshal(a.body, &line); err != nil || bytes.Count(a.body, []byte("\n")) != 1 || a.Header.Get("Content-Type") != request.Ndjson {
			t.Fatalf("%v: %s", err, a.body)
		}
		if len(line.Items) != 2 || line.Items[0] != (v1.TopService{Service: "web", Active: 12}) || line.Items[1] != (v1.TopService{Service: "from-file"}) || line.Seconds < 1 {
			t.Errorf("%+v", line)
		}
		totals, _ := stats.Readings()
		expect.Equal(t, totals, 2, "reads of the counters")
		for _, query := range []string{"?interval=10ms", "?interval=2m", "?interval=x", "?by=name", "?limit=0"} {
			if a := r.ask("GET", v1.PathTop+query, ""); a.StatusCode != 400 && a.StatusCode != 422 {
				t.Errorf("%s: %s", query, a.Status)
			}
		}
	}, edit)
}

// All callers share the reads of the counters.
func TestTopSharesReads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := statustest.New()
		stats := &reconciletest.Statistics{}
		d := depsOf(w)
		d.Forwarding.Statistics = stats
		for i := range 30 {
			w.Healthy(i)
			stats.Set(statustest.FrontendNo(i), reconcile.Breakdown{Traffic: carried(uint64(i))})
		}
		handler := New(d).Handler()
		ctx, cancel := context.WithCancel(t.Context())
		const callers, seconds = 20, 10
		queries := []string{"?interval=1s", "?interval=1s&by=active&limit=3"}
		answers := make([]*httptest.ResponseRecorder, 0, 2*callers)
		for range callers {
			for _, query := range queries {
				a := httptest.NewRecorder()
				answers = append(answers, a)
				go handler.ServeHTTP(a, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+v1.PathTop+query, nil))
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(seconds * time.Second)
		totals, _ := stats.Readings()
		expect.Equal(t, totals, 1+seconds, "%d reads of the counters in %d s", totals, seconds)
		cancel()
		synctest.Wait()
		for i, a := range answers {
			if n := bytes.Count(a.Body.Bytes(), []byte("\n")); n != seconds || !bytes.Equal(a.Body.Bytes(), answers[i%2].Body.Bytes()) {
				t.Errorf("caller %d got %d lines: %s", i, n, a.Body)
			}
		}
	})
}
