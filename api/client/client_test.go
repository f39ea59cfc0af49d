package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newClient returns a client of a test server with the handler h.
func newClient(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	c := must.Get(New(server.URL, Options{Timeout: time.Minute}))(t)
	t.Cleanup(func() { c.Close(); server.Close() })
	return c
}

func TestAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"":                             DefaultAddr,
		"/run/x.sock":                  "unix:///run/x.sock",
		"unix:///run/x.sock":           "unix:///run/x.sock",
		"127.0.0.1:7480":               "http://127.0.0.1:7480",
		"http://127.0.0.1:7480/":       "http://127.0.0.1:7480/",
		"https://lb1.example.org:7480": "https://lb1.example.org:7480",
		"unix://run/x.sock":            "!absolute path",
		"foo":                          "!neither a socket's absolute path nor HOST:PORT",
		"run/x.sock":                   "!neither",
		"foo:":                         "!neither",
		"[::1]:7480":                   "http://[::1]:7480",
		"http://127.0.0.1:7480/v1":     "!host:port only",
		"ftp://127.0.0.1":              "!use unix",
		"http://":                      "!host:port",
		"http://127.0.0.1:7480?x=1":    "!host:port",
		"http://[::1":                  "!agent address",
	} {
		c, err := New(addr, Options{})
		if fail, isError := strings.CutPrefix(want, "!"); isError {
			if err == nil || !strings.Contains(err.Error(), fail) {
				t.Errorf("%q: %v, want %q", addr, err, fail)
			}
		} else if err != nil || c.Addr() != want {
			t.Errorf("%q: %v %v, want %q", addr, c, err, want)
		}
	}
}

// Every method sends the request that the API expects.
func TestRequests(t *testing.T) {
	var got string
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.RequestURI()
		for _, h := range []string{"If-Match", "If-None-Match", "Prefer"} {
			if v := r.Header.Get(h); v != "" {
				got += " " + h + "=" + v
			}
		}
		if kind := r.Header.Get("Content-Type"); kind != "" && kind != "application/json" {
			got += " Content-Type=" + kind
		}
		w.Write([]byte("{}"))
	})
	ctx := t.Context()
	w := Write{IfMatch: `"1.2"`, Wait: 90 * time.Second}
	for want, call := range map[string]func() error{
		"GET /v1/services?cursor=c&label=a&label=b%3Dc&limit=5&revision=7&source=s&state=down&wait=1m0s": func() error {
			_, err := c.Services(ctx, List{Source: "s", State: "down", Labels: []string{"a", "b=c"}, Limit: 5, Cursor: "c", Wait: Wait{time.Minute, 7}})
			return err
		},
		"GET /v1/services/default/web":         func() error { _, err := c.Service(ctx, "default", "web", Wait{}); return err },
		"GET /v1/services/default/web/stats":   func() error { _, err := c.ServiceStats(ctx, "default", "web"); return err },
		"GET /v1/stats":                        func() error { _, err := c.Stats(ctx); return err },
		"GET /v1/services/default/web/explain": func() error { _, err := c.Explain(ctx, "default", "web"); return err },
		`PUT /v1/services/default/web If-Match="1.2" Prefer=wait=90`: func() error {
			_, err := c.PutService(ctx, "default", "web", v1.ServiceSpec{}, w)
			return err
		},
		`PUT /v1/services/default/new If-None-Match=*`: func() error {
			_, err := c.PutService(ctx, "default", "new", v1.ServiceSpec{}, Write{CreateOnly: true})
			return err
		},
		`PATCH /v1/services/default/web If-Match="1.2" Prefer=wait=90 Content-Type=application/merge-patch+json`: func() error {
			_, err := c.PatchService(ctx, "default", "web", v1.ServicePatch{"pool": nil}, w)
			return err
		},
		`DELETE /v1/services/default/web If-Match="1.2" Prefer=wait=90`: func() error { _, err := c.DeleteService(ctx, "default", "web", w); return err },
		"POST /v1/services:apply?atomic=true&dry_run=true":              func() error { _, err := c.Apply(ctx, nil, true, true, Write{}); return err },
		"GET /v1/services/default/web/backends?limit=1000":              func() error { _, err := c.Backends(ctx, "default", "web"); return err },
		"GET /v1/services/default/web/backends/10.0.0.1:80":             func() error { _, err := c.Backend(ctx, "default", "web", "10.0.0.1:80"); return err },
		"PUT /v1/services/default/web/backends/%5B::1%5D:80": func() error {
			_, err := c.PutBackend(ctx, "default", "web", "[::1]:80", v1.BackendSpec{}, Write{})
			return err
		},
		"DELETE /v1/services/default/web/backends/10.0.0.1 Prefer=wait=1": func() error {
			_, err := c.DeleteBackend(ctx, "default", "web", "10.0.0.1", Write{Wait: time.Millisecond})
			return err
		},
		"PUT /v1/services/default/web/backends/10.0.0.1/heartbeat": func() error { return c.Heartbeat(ctx, "default", "web", "10.0.0.1") },
		"PUT /v1/services/default/web/backends/10.0.0.1/state": func() error {
			_, err := c.SetBackendState(ctx, "default", "web", "10.0.0.1", v1.StateSpec{State: "drain"}, false, Write{})
			return err
		},
		"PUT /v1/services/default/web/backends/10.0.0.2/state?force=true Prefer=wait=1": func() error {
			_, err := c.SetBackendState(ctx, "default", "web", "10.0.0.2", v1.StateSpec{State: "drain"}, true, Write{Wait: time.Second})
			return err
		},
		"GET /v1/services/default/web/backends/10.0.0.1/connections": func() error { _, err := c.BackendConnections(ctx, "default", "web", "10.0.0.1"); return err },
		"GET /v1/overrides?limit=1000":                               func() error { _, err := c.Overrides(ctx); return err },
		"DELETE /v1/overrides/default/web/%5B::1%5D:80 Prefer=wait=1": func() error {
			_, err := c.DeleteOverride(ctx, "default", "web", "[::1]:80", Write{Wait: time.Second})
			return err
		},
		"GET /v1/status":                       func() error { _, err := c.Status(ctx); return err },
		"GET /readyz":                          func() error { return c.Ready(ctx) },
		"GET /v1/vips?kind=address&limit=1000": func() error { _, err := c.VIPs(ctx, "address"); return err },
		"GET /v1/vips/192.0.2.1":               func() error { _, err := c.VIP(ctx, "192.0.2.1"); return err },
		"GET /v1/pools":                        func() error { _, err := c.Pools(ctx); return err },
		"GET /v1/sources":                      func() error { _, err := c.Sources(ctx); return err },
		"POST /v1/sources/static/resync":       func() error { _, err := c.Resync(ctx, "static"); return err },
		"GET /v1/dataplane":                    func() error { _, err := c.Dataplane(ctx); return err },
		"GET /v1/dataplane/frontends?limit=1000&service=web":         func() error { _, err := c.Frontends(ctx, "web"); return err },
		"GET /v1/dataplane/diff":                                     func() error { _, err := c.Diff(ctx); return err },
		"POST /v1/dataplane/repair":                                  func() error { _, err := c.Repair(ctx); return err },
		"POST /v1/dataplane/switch?dry_run=true&force=true&mode=nft": func() error { _, err := c.Switch(ctx, "nft", true, true); return err },
		"POST /v1/config/validate":                                   func() error { _, err := c.Validate(ctx); return err },
		"POST /v1/config/plan":                                       func() error { _, err := c.Plan(ctx); return err },
		"POST /v1/reload":                                            func() error { _, err := c.Reload(ctx); return err },
		"GET /v1/events?since=4":                                     func() error { _, err := c.Events(ctx, 4); return err },
		"GET /metrics":                                               func() error { return c.Get(ctx, v1.PathMetrics, &strings.Builder{}) },
	} {
		if err := call(); err != nil || got != want {
			t.Errorf("sent %q, %v; want %q", got, err, want)
		}
	}
}

func TestRefusalIsTyped(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", v1.ProblemType+"; charset=utf-8")
		w.WriteHeader(409)
		json.NewEncoder(w).Encode(v1.ProblemDocument{Status: 409, Code: v1.CodeReadOnlySource, Detail: "it belongs to static", Hint: "edit web.toml",
			RequestID: "r1", Errors: []v1.Problem{{Place: "web.toml:7", Service: "web", Field: "ports[0].port", Message: "is 0"}}})
	})
	_, err := c.Service(t.Context(), "default", "web", Wait{})
	var e *Error
	if !errors.As(err, &e) || e.Status != 409 || e.Code != v1.CodeReadOnlySource || e.Hint != "edit web.toml" || e.RequestID != "r1" || len(e.Problems) != 1 {
		t.Fatalf("%#v", err)
	}
	expect.Equal(t, e.Error(), "it belongs to static\n  web.toml:7: service \"web\": ports[0].port: is 0")
	if !IsCode(err, v1.CodeReadOnlySource) || IsNotFound(err) || IsNotFound(nil) {
		t.Error("the code isn't found")
	}
}

func TestNoAgent(t *testing.T) {
	stranger := newClient(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "nginx", http.StatusBadGateway) })
	if _, err := stranger.Status(t.Context()); !IsCode(err, CodeUnreachable) || !strings.Contains(err.Error(), "502") {
		t.Errorf("another program on the port: %v", err)
	}
	garbled := newClient(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"node":`)) })
	if _, err := garbled.Status(t.Context()); !IsCode(err, CodeUnreachable) {
		t.Errorf("an answer that breaks off: %v", err)
	}
	nobody := must.Get(New(filepath.Join(t.TempDir(), "none.sock"), Options{}))(t)
	var e *Error
	if _, err := nobody.Status(t.Context()); !errors.As(err, &e) || e.Code != CodeUnreachable || e.Status != 0 || e.Hint == "" {
		t.Errorf("no socket: %#v", err)
	}
	block := make(chan struct{})
	slow := newClient(t, func(http.ResponseWriter, *http.Request) { <-block })
	slow.timeout = 20 * time.Millisecond
	if _, err := slow.Status(t.Context()); !IsCode(err, CodeTimeout) {
		t.Errorf("no answer in time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := slow.Status(ctx); !errors.Is(err, context.Canceled) || IsCode(err, CodeUnreachable) {
		t.Errorf("the caller's own end: %v", err)
	}
	close(block)
}

func TestUnixSocketAndPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := must.Get(net.Listen("unix", path))(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := v1.ServiceList{Items: []v1.Service{{Source: r.URL.Query().Get("cursor")}}}
		switch r.URL.Query().Get("cursor") {
		case "":
			list.Next = "b"
		case "b":
			list.Next = "c"
		}
		json.NewEncoder(w).Encode(list)
	})}
	go server.Serve(l)
	defer server.Close()
	c := must.Get(New("unix://"+path, Options{}))(t)
	defer c.Close()
	var seen []string
	for s, err := range c.AllServices(t.Context(), List{Cursor: "ignored"}) {
		must.Succeed(t, err)
		seen = append(seen, s.Source)
	}
	expect.Equal(t, strings.Join(seen, ","), ",b,c", "pages %q", seen)
}

// A list that is returned as a whole is read page by page, with the other parameters of its request.
func TestListsFollowTheirPages(t *testing.T) {
	var asked []string
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RequestURI())
		next := map[string]string{"": "b", "b": "c"}[r.URL.Query().Get("cursor")]
		item := "{}"
		if r.URL.Path == v1.PathEvents {
			item = fmt.Sprintf(`{"id":%d}`, len(asked))
		}
		w.Write([]byte(`{"items":[` + item + `],"revision":` + map[bool]string{true: "7", false: "9"}[len(asked) == 1] + `,"next":"` + next + `"}`))
	})
	ctx := t.Context()
	of := func(list any, items int, err error) error {
		if err == nil && items != 3 {
			err = fmt.Errorf("%d items: %+v", items, list)
		}
		return err
	}
	for path, call := range map[string]func() error{
		"/v1/services/default/web/backends?limit=1000": func() error { l, err := c.Backends(ctx, "default", "web"); return of(l, len(l.Items), err) },
		"/v1/overrides?limit=1000":                     func() error { l, err := c.Overrides(ctx); return of(l, len(l.Items), err) },
		"/v1/pools":                                    func() error { l, err := c.Pools(ctx); return of(l, len(l.Items), err) },
		"/v1/sources":                                  func() error { l, err := c.Sources(ctx); return of(l, len(l.Items)-int(l.Revision-7), err) },
		"/v1/nodes?limit=1000":                         func() error { l, err := c.Nodes(ctx); return of(l, len(l.Items), err) },
		"/v1/announce/peers":                           func() error { l, err := c.AnnouncePeers(ctx); return of(l, len(l.Items), err) },
		"/v1/dataplane/diff":                           func() error { l, err := c.Diff(ctx); return of(l, len(l.Items), err) },
		"/v1/debug/tables":                             func() error { l, err := c.DebugTables(ctx); return of(l, len(l.Items), err) },
		"/v1/stats":                                    func() error { l, err := c.Stats(ctx); return of(l, len(l.Items), err) },
		"/v1/tokens":                                   func() error { l, err := c.Tokens(ctx); return of(l, len(l.Items), err) },
		"/v1/events?since=4":                           func() error { l, err := c.Events(ctx, 4); return of(l, len(l.Items)-int(l.Last-3), err) },
	} {
		asked = nil
		err := call()
		first, query, _ := strings.Cut(path, "?")
		if query != "" {
			query = "&" + query
		}
		if want := []string{path, first + "?cursor=b" + query, first + "?cursor=c" + query}; err != nil || !slices.Equal(asked, want) {
			t.Errorf("asked for %q, want %q; %v", asked, want, err)
		}
	}
}

func TestFollowEvents(t *testing.T) {
	c := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept"), "application/x-ndjson") || r.URL.RawQuery != "since=3" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		w.Write([]byte("\n{\"id\":4,\"kind\":\"a\"}\n{\"id\":5,\"kind\":\"b\"}\n"))
	})
	var ids []uint64
	var last error
	for e, err := range c.FollowEvents(t.Context(), 3) {
		if last = err; err == nil {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) != 2 || ids[1] != 5 || !IsCode(last, CodeUnreachable) {
		t.Errorf("%v, then %v", ids, last)
	}
	for range c.FollowEvents(t.Context(), 3) {
		break // this also ends the request; goleak would detect a leak
	}
}

// roundTrip is a transport without a network.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A caller that works on a page for longer than the time limit gets the next one. The limit still ends
// a page that doesn't come.
func TestServicePagesForASlowCaller(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := must.Get(New("127.0.0.1:1", Options{}))(t)
		c.http = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			cursor := r.URL.Query().Get("cursor")
			if cursor == "2" {
				<-r.Context().Done()
				return nil, context.Cause(r.Context())
			}
			next := map[string]string{"": "1", "1": "2"}[cursor]
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(`{"items":[{}],"next":"` + next + `"}`))}, nil
		})}
		pages, begin := 0, time.Now()
		for _, err := range c.ServicePages(t.Context(), List{}) {
			if err != nil {
				if pages != 2 || !IsCode(err, CodeTimeout) {
					t.Errorf("page %d: %v", pages, err)
				}
				break
			}
			pages++
			time.Sleep(time.Hour)
		}
		if took := time.Since(begin); pages != 2 || took != 2*time.Hour+DefaultTimeout {
			t.Errorf("%d pages in %s", pages, took)
		}
	})
}

// The client reads the document of each type that its methods return as encoding/json does.
func TestDecodesEveryDocument(t *testing.T) {
	methods, read := reflect.TypeFor[*Client](), 0
	for i := range methods.NumMethod() {
		kind := methods.Method(i).Type
		if kind.NumOut() == 0 || !strings.HasSuffix(kind.Out(0).PkgPath(), "/api/v1") {
			continue
		}
		name := kind.Out(0).Name()
		text, err := os.ReadFile(filepath.Join("../v1/testdata", name+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a part of another type
		} else if err != nil {
			t.Fatal(err)
		}
		read++
		got, want := reflect.New(kind.Out(0)), reflect.New(kind.Out(0))
		must.Succeed(t, json.Unmarshal(text, want.Interface()), name)
		answer := &http.Response{Body: io.NopCloser(bytes.NewReader(text))}
		if err := new(Client).decode(t.Context(), call{}, answer, got.Interface()); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got.Interface(), want.Interface()) {
			t.Errorf("%s:\n%+v\nwant\n%+v", name, got.Elem(), want.Elem())
		}
	}
	expect.AtLeast(t, read, 20, "only %d documents", read)
}
