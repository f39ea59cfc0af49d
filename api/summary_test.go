package api

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// browser reads the lines of a stream.
type browser struct {
	t     *testing.T
	lines *bufio.Scanner
}

func (r *rig) browse(query string) *browser {
	r.t.Helper()
	return &browser{r.t, bufio.NewScanner(r.follow(query))}
}

// next returns the next line that is not empty.
func (b *browser) next() string {
	b.t.Helper()
	for b.lines.Scan() {
		if line := b.lines.Text(); line != "" {
			return line
		}
	}
	b.t.Fatalf("the stream ended: %v", b.lines.Err())
	return ""
}

// beginning returns the lines of the beginning, with synced as the last one.
func (b *browser) beginning() string {
	b.t.Helper()
	out := b.next()
	for !strings.HasSuffix(out, `{"synced":true}`) {
		out += "\n" + b.next()
	}
	return out
}

// The rows of services: all rows of the beginning, then the changes of
// rows, and nothing for a change of something else.
func TestWatchSummaries(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"labels":{"app":"shop"},"ports":[{"port":80},{"port":443},{"port":443,"protocol":"udp"},{"port":"8000-8010"}],"backends":[{"address":"10.0.0.1","port":8080}]}`, "Prefer: wait=60")
	b := r.browse("?view=summary")
	lines := strings.Split(b.beginning(), "\n")
	must.Len(t, lines, 3, "the beginning")
	var web v1.ServiceChange
	if err := json.Unmarshal([]byte(lines[1]), &web); err != nil || web.Summary == nil || web.Service != nil {
		t.Fatal(lines[1], err)
	}
	full := decode[v1.Service](r, "GET", webPath, "")
	got := web.Summary
	if got.Name != "web" || got.Source != "rest" || got.State != "unchecked" || got.Summary != full.Status.Summary || got.Ports != "80,443,8000-8010/tcp 443/udp" ||
		got.Usable != 1 || got.Backends != 1 || got.Labels["app"] != "shop" || len(got.VIPs) != 1 || got.VIPs[0] != full.Status.VIPs[0] || !got.Since.Equal(*full.Status.Since) {
		t.Errorf("the row is %s", lines[1])
	}
	// A change that the row does not show sends nothing: the next event is that of the next change.
	decode[v1.Service](r, "PUT", webPath, `{"labels":{"app":"shop"},"ports":[{"port":80},{"port":443},{"port":443,"protocol":"udp"},{"port":"8000-8010"}],"backends":[{"address":"10.0.0.1","port":8081}]}`, "Prefer: wait=60")
	decode[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
	for last, event := lines[1], b.next(); event != `{"deleted":"web"}`; last, event = event, b.next() {
		if event == last { // the service may be pending for a moment
			t.Fatalf("an event without a change: %s", event)
		}
	}
	a := r.ask("GET", v1.PathWatchServices+"?view=short", "")
	expect.Equal(t, a.StatusCode, 422, "an unknown view: %s", a.Status)
}

// The first line of an explanation costs less than the whole.
func TestSummaryIsTheFirstLine(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2"), "Prefer: wait=60")
	decode[v1.Backend](r, "PUT", v1.BackendStatePath("default", "web", "10.0.0.2:8080"), `{"state":"drain"}`, "Prefer: wait=60")
	for _, k := range []vip.ServiceKey{{Namespace: "default", Name: "web"}, {Namespace: "default", Name: "from-file"}} {
		full, _ := r.server.services.Service(k)
		short, ok := r.server.services.Summary(k)
		if !ok || short.Summary != full.Status.Summary || short.State != full.Status.State || short.Usable != full.Status.Usable || short.Backends != len(full.Status.Backends) {
			t.Errorf("%+v, in full %+v", short, full.Status)
		}
	}
}

// received counts the rows and events that watchers receive.
type received struct {
	*httptest.ResponseRecorder
	rows, bytes *atomic.Int64
}

func (w received) Write(p []byte) (int, error) {
	w.rows.Add(int64(strings.Count(string(p), `"summary":{`)))
	w.bytes.Add(int64(len(p)))
	return len(p), nil
}

// reads counts the rows of services that are read.
type reads struct {
	table.Reader[vip.ServiceKey, vip.Service]
	n atomic.Int64
}

func (r *reads) Get(k vip.ServiceKey) (vip.Service, uint64, bool) {
	r.n.Add(1)
	return r.Reader.Get(k)
}

func (r *reads) Row(k vip.ServiceKey) *table.Row[vip.Service] {
	r.n.Add(1)
	return r.Reader.Row(k)
}

// One change that 20 watchers of 200 services see costs each of them one row, and no scan.
func TestWatchersCost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const services, watchers = 200, 20
		w := statustest.New()
		w.Fill(services, 4)
		d := depsOf(w)
		counted := &reads{Reader: d.Tables.Services}
		d.Tables.Services = counted
		handler := New(d).Handler()
		ctx, cancel := context.WithCancel(t.Context())
		var rows, bytes atomic.Int64
		for range watchers {
			go func() {
				req := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+v1.PathWatchServices+"?view=summary", nil)
				handler.ServeHTTP(received{httptest.NewRecorder(), &rows, &bytes}, req)
			}()
		}
		settled := func() { // the pace is over, and nothing is left to do
			time.Sleep(50 * time.Millisecond)
			synctest.Wait()
		}
		settled()
		must.Equal(t, rows.Load(), services*watchers, "rows at the beginning")
		step := func(what string, wantRows int64, change func()) {
			rows.Store(0)
			bytes.Store(0)
			counted.n.Store(0)
			change()
			settled()
			if got := rows.Load(); got != wantRows {
				t.Errorf("%s: %d rows, want %d", what, got, wantRows)
			}
			if got := counted.n.Load(); got > 4*watchers {
				t.Errorf("%s: %d services read", what, got)
			}
			if wantRows == 0 && bytes.Load() > 0 {
				t.Errorf("%s: %d bytes sent", what, bytes.Load())
			}
		}
		first := vip.BackendKey{Service: statustest.ServiceNo(7), Address: w.Services.Row(statustest.ServiceNo(7)).Value.Backends[0].Address, Port: 8080}
		step("a drain", watchers, func() { w.Overrides.Set(vip.BackendState{Backend: first, State: vip.Drain}) })
		step("another author", 0, func() { w.Overrides.Set(vip.BackendState{Backend: first, State: vip.Drain, Author: "ann"}) })
		step("a burst of changes", watchers, func() {
			for range 100 {
				w.Overrides.Delete(vip.OverrideKey{BackendKey: first})
				w.Overrides.Set(vip.BackendState{Backend: first, State: vip.Drain})
			}
			w.Overrides.Delete(vip.OverrideKey{BackendKey: first})
		})
		cancel()
		synctest.Wait()
	})
}

// A watcher that comes later gets the same rows as the first one. A row that is no longer selected is deleted for its
// watcher, and a watcher that never had it gets nothing.
func TestLateWatcherOfSummaries(t *testing.T) {
	r := newRig(t)
	put := func(labels string) {
		decode[v1.Service](r, "PUT", webPath, `{"labels":`+labels+`,"ports":[{"port":80}]}`, "Prefer: wait=60")
	}
	put(`{"tier":"web"}`)
	first := r.browse("?view=summary")
	whole := first.beginning()
	late, labeled, filed := r.browse("?view=summary"), r.browse("?view=summary&label=tier=web"), r.browse("?view=summary&source=files")
	if got := late.beginning(); got != whole {
		t.Errorf("the second watcher gets %q, the first %q", got, whole)
	}
	if got := labeled.beginning(); strings.Count(got, `"summary":{`) != 1 || !strings.Contains(got, `"name":"web"`) {
		t.Errorf("with a label: %q", got)
	}
	if got := filed.beginning(); strings.Count(got, `"summary":{`) != 1 || !strings.Contains(got, `"name":"from-file"`) {
		t.Errorf("of a source: %q", got)
	}
	put(`{}`)
	for _, b := range []*browser{first, late} {
		for event := ""; strings.Contains(event, "tier") || event == ""; {
			if event = b.next(); !strings.Contains(event, `"name":"web"`) {
				t.Fatalf("after a change: %s", event)
			}
		}
	}
	for event := ""; event != `{"deleted":"web"}`; {
		if event = labeled.next(); event != `{"deleted":"web"}` && !strings.Contains(event, "tier") {
			t.Fatalf("after the label has gone: %s", event)
		}
	}
	decode[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
	for event := ""; event != `{"deleted":"web"}`; event = late.next() {
	}
	r.files.more <- spec.Service{Name: "filed", Ports: []spec.Port{{Port: spec.PortRange{First: 26}}}, Backends: []spec.Backend{{Address: "10.9.0.1"}}}
	expect.Contains(t, filed.next(), `"name":"filed"`, "of a source, after changes of others")
}
