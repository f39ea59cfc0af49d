package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/forwarding"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// notBegun returns a server of an agent with a store that has not responded, and a function that
// makes the agent begin. The tables are empty.
func notBegun() (s *Server, begin func()) {
	clock := &table.Clock{}
	begun := make(chan struct{})
	tables := pipeline.NewTables(clock)
	tables.Services.Initializer()
	d := idle(tables)
	d.Begun, d.Awaits = begun, func() string { return "waiting for consul at 10.0.0.5:8500: connection refused" }
	d.Sources.(*table.Table[string, sources.Status]).Set(sources.Status{Name: "files", Type: "static"})
	d.Forwarding.Stats = func() reconcile.Stats { return reconcile.Stats{} }
	d.Forwarding.Repair = func(context.Context) ([]forwarding.Difference, error) {
		return nil, errors.New("the dataplane was touched")
	}
	return New(d), func() { close(begun) }
}

func askDirectly(t *testing.T, s *Server, method, path string) (int, http.Header, string) {
	t.Helper()
	var body io.Reader
	if method == http.MethodPut || method == http.MethodPatch || method == http.MethodPost && (path == v1.PathVIPs || path == v1.PathApply) {
		body = strings.NewReader(`{"state":"drain"}`)
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, body))
	return rec.Code, rec.Header(), rec.Body.String()
}

// Before the stored state is loaded, the agent answers requests that don't need it. It refuses all
// others with the reason for the wait, so that no response wrongly reports something as empty,
// missing or free.
func TestBeforeTheAgentHasBegun(t *testing.T) {
	answered := []string{"GET /v1/status", "GET /healthz", "GET /metrics", "GET /openapi.json", "GET /v1/sources", "GET /v1/events", "GET /v1/dataplane", "GET /v1/whoami",
		"POST /v1/config/validate", "POST /v1/reload"}
	bubble.Test(t, func(t *testing.T) {
		s, _ := notBegun()
		for _, route := range s.http.Engine.Routes() {
			if route.Path == v1.PathSession {
				continue // tokens are known, or not, on their own
			}
			path := strings.NewReplacer(`\:`, ":", ":namespace", "default", ":name", "web", ":id", "10.0.0.1:80", ":ip", "192.0.2.1", ":source", "files", v1.PathDataplaneSwitch, v1.PathDataplaneSwitch+"?mode=nft").Replace(route.Path)
			code, header, body := askDirectly(t, s, route.Method, path)
			if i := slices.Index(answered, route.Method+" "+path); i >= 0 {
				expect.Equal(t, code, http.StatusOK, "%s %s: %d %s", route.Method, path, code, body)
				answered = slices.Delete(answered, i, i+1)
				continue
			}
			want := v1.CodeStoreUnavailable
			if path == v1.PathReadyz {
				want = v1.CodeNotReady
			}
			var doc v1.ProblemDocument
			if err := json.Unmarshal([]byte(body), &doc); err != nil || code != http.StatusServiceUnavailable || doc.Code != want || doc.Hint == "" ||
				header.Get("Retry-After") == "" || !strings.Contains(doc.Detail, "consul at 10.0.0.5:8500: connection refused") {
				t.Errorf("%s %s: %d %v %s", route.Method, path, code, header, body)
			}
		}
		expect.Empty(t, answered, "no such routes")
		_, _, status := askDirectly(t, s, "GET", v1.PathStatus)
		_, _, metrics := askDirectly(t, s, "GET", v1.PathMetrics)
		for _, unknown := range []string{`"name":"pools"`, `"name":"services"`, `"ready":true`} {
			expect.False(t, strings.Contains(status, unknown), "the status has %s: %s", unknown, status)
		}
		if strings.Contains(metrics, "ironvip_pool_addresses{") {
			t.Errorf("addresses are said to be free:\n%s", regexp.MustCompile("(?m)^ironvip_pool.*$").FindAllString(metrics, -1))
		}
	})
}

// Requests during a short start are not refused.
func TestRequestsWaitForTheBegin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, begin := notBegun()
		time.AfterFunc(beginTimeout/2, begin)
		if code, _, body := askDirectly(t, s, "GET", v1.PathServices); code != http.StatusOK {
			t.Errorf("%d %s", code, body)
		}
		if code, _, body := askDirectly(t, s, "GET", v1.PathServices+"/default/web"); code != http.StatusNotFound {
			t.Errorf("%d %s", code, body)
		}
		if _, _, body := askDirectly(t, s, "GET", v1.PathStatus); !strings.Contains(body, `"name":"pools"`) || !strings.Contains(body, `"name":"services"`) {
			t.Errorf("%s", body)
		}
	})
}

// Until the first full reconcile, readiness reports what the node waits for.
func TestWhatReadinessWaitsFor(t *testing.T) {
	s, begin := notBegun()
	waits := func(want string) {
		t.Helper()
		if code, _, body := askDirectly(t, s, "GET", v1.PathReadyz); code != http.StatusServiceUnavailable || !strings.Contains(body, want) {
			t.Errorf("%d %s, want %q", code, body, want)
		}
	}
	waits("consul at 10.0.0.5:8500")
	begin()
	waits(`source \"files\" not read yet: no answer`)
	statuses := s.Sources.(*table.Table[string, sources.Status])
	statuses.Set(sources.Status{Name: "files", Stale: "no such directory"})
	waits(`source \"files\" not read yet: no such directory`)
	s.Tables.Services = table.New(&table.Clock{}, vip.KeyOfService, nil) // which is ready
	waits("first full reconcile not finished")
	s.Forwarding.Stats = func() reconcile.Stats { return reconcile.Stats{TargetError: "read: no buffer space"} }
	waits("dataplane unreachable: read: no buffer space")
}

// An agent that has begun never refuses a request, also if the wait is over before it is looked at, as on a starved host.
func TestBegunIsSeenFirst(t *testing.T) {
	s, begin := notBegun()
	begin()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		must.Succeed(t, s.waitBegun(over))
	}
}
