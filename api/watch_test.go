package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/request"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// watching is an open stream of services.
type watching struct {
	t     *testing.T
	lines *json.Decoder
}

// follow opens a stream of services.
func (r *rig) follow(query string) io.Reader {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	r.t.Cleanup(cancel)
	req := must.Get(http.NewRequestWithContext(ctx, "GET", r.web.URL+v1.PathWatchServices+query, nil))(r.t)
	resp := must.Get(r.web.Client().Do(req))(r.t)
	r.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != request.Ndjson {
		r.t.Fatalf("%s %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	return resp.Body
}

func (r *rig) watch(query string) *watching {
	r.t.Helper()
	return &watching{r.t, json.NewDecoder(r.follow(query))}
}

// next returns the next line: "web healthy 2", "-web" or "synced".
func (w *watching) next() string {
	w.t.Helper()
	var c v1.ServiceChange
	must.Succeed(w.t, w.lines.Decode(&c))
	switch {
	case c.Synced:
		return "synced"
	case c.Deleted != "":
		return "-" + c.Deleted
	}
	return fmt.Sprintf("%s %s %d", c.Service.Spec.Name, c.Service.Status.State, len(c.Service.Status.Backends))
}

// until reads lines until one is wanted, and fails if one has another service.
func (w *watching) until(want, name string) {
	w.t.Helper()
	for {
		got := w.next()
		if got == want {
			return
		}
		if len(got) < len(name) || got[:len(name)] != name {
			w.t.Fatalf("%q before %q", got, want)
		}
	}
}

// A stream has the services of the beginning, then each change of those that it selects.
func TestWatchServices(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	all, one, labeled := r.watch(""), r.watch("?service=other&service=web"), r.watch("?label=tier=web")
	must.Equal(t, all.next()+", "+all.next()+", "+all.next(), "from-file unchecked 1, web unchecked 1, synced")
	must.Equal(t, one.next()+", "+one.next(), "web unchecked 1, synced")
	must.Equal(t, labeled.next(), "synced")
	decode[v1.Service](r, "PUT", "/v1/services/default/late", `{"ports":[{"port":81}],"labels":{"tier":"web"}}`, "Prefer: wait=60")
	all.until("late down 0", "late")
	labeled.until("late down 0", "late")
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2"), "Prefer: wait=60")
	one.until("web unchecked 2", "web")
	decode[v1.Backend](r, "PUT", v1.BackendStatePath("default", "web", "10.0.0.2:8080"), `{"state":"drain"}`, "Prefer: wait=60")
	one.until("web degraded 2", "web")
	decode[v1.Backend](r, "PUT", v1.BackendStatePath("default", "web", "10.0.0.2:8080"), `{"state":"ready"}`, "Prefer: wait=60")
	one.until("web unchecked 2", "web")
	decode[v1.Service](r, "PUT", "/v1/services/default/late", `{"ports":[{"port":81}]}`, "Prefer: wait=60")
	labeled.until("-late", "late") // no longer selected
	decode[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
	one.until("-web", "web")
	a := r.ask("GET", v1.PathWatchServices+"?service=a/b/c", "")
	expect.Equal(t, a.StatusCode, 400, "an invalid name: %s %s", a.Status, a.body)
}
