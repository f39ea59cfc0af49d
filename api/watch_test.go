package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
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
	req, err := http.NewRequestWithContext(ctx, "GET", r.web.URL+v1.PathWatchServices+query, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.web.Client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != ndjson {
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
	if err := w.lines.Decode(&c); err != nil {
		w.t.Fatal(err)
	}
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
	must[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	all, one, labeled := r.watch(""), r.watch("?service=other&service=web"), r.watch("?label=tier=web")
	if got := all.next() + ", " + all.next() + ", " + all.next(); got != "from-file unchecked 1, web unchecked 1, synced" {
		t.Fatal(got)
	}
	if got := one.next() + ", " + one.next(); got != "web unchecked 1, synced" {
		t.Fatal(got)
	}
	if got := labeled.next(); got != "synced" {
		t.Fatal(got)
	}
	must[v1.Service](r, "PUT", "/v1/services/default/late", `{"ports":[{"port":81}],"labels":{"tier":"web"}}`, "Prefer: wait=60")
	all.until("late down 0", "late")
	labeled.until("late down 0", "late")
	must[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2"), "Prefer: wait=60")
	one.until("web unchecked 2", "web")
	must[v1.Backend](r, "PUT", v1.BackendStatePath("default", "web", "10.0.0.2:8080"), `{"state":"drain"}`, "Prefer: wait=60")
	one.until("web degraded 2", "web")
	must[v1.Backend](r, "PUT", v1.BackendStatePath("default", "web", "10.0.0.2:8080"), `{"state":"ready"}`, "Prefer: wait=60")
	one.until("web unchecked 2", "web")
	must[v1.Service](r, "PUT", "/v1/services/default/late", `{"ports":[{"port":81}]}`, "Prefer: wait=60")
	labeled.until("-late", "late") // no longer selected
	must[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
	one.until("-web", "web")
	if a := r.ask("GET", v1.PathWatchServices+"?service=a/b/c", ""); a.StatusCode != 400 {
		t.Errorf("an invalid name: %s %s", a.Status, a.body)
	}
}
