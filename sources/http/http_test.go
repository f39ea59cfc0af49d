package http

import (
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/tlsfile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// recorder is a sink with the calls that differ from the one before.
type recorder struct {
	sync.Mutex
	calls []string
}

// take returns the calls since the last one.
func (r *recorder) take() []string {
	r.Lock()
	defer r.Unlock()
	out := r.calls
	r.calls = nil
	return out
}

func (r *recorder) call(format string, args ...any) {
	r.Lock()
	defer r.Unlock()
	if c := fmt.Sprintf(format, args...); len(r.calls) == 0 || r.calls[len(r.calls)-1] != c {
		r.calls = append(r.calls, c)
	}
}

func (r *recorder) Replace(services []vip.Service, problems []vip.Problem) {
	var words []string
	for _, s := range services {
		words = append(words, fmt.Sprint(s.Key, "=", s.Ports[0].Port))
	}
	slices.Sort(words)
	for _, p := range problems {
		words = append(words, "| "+p.Error())
	}
	r.call("replace %s", strings.Join(words, " "))
}
func (r *recorder) Stale(err error)             { r.call("stale %s", err) }
func (r *recorder) Fresh()                      { r.call("fresh") }
func (r *recorder) Put(...vip.Service) []uint64 { panic("a list is replaced") }
func (r *recorder) Delete(...vip.ServiceKey)    { panic("a list is replaced") }
func (r *recorder) Problems([]vip.Problem)      { panic("a list is replaced") }

// page is the answer of a fake server.
type page struct {
	status     int // 0: 200
	kind       string
	etag, body string
	location   string
	err        error
	hangs      bool
	endless    bool
}

// fake is a server with one page. It answers 304 to the tag of the page.
type fake struct {
	sync.Mutex
	page             page
	pools            []spec.Pool
	asked, unchanged int
}

func (f *fake) answers(p page) {
	f.Lock()
	defer f.Unlock()
	f.page = p
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	f.Lock()
	defer f.Unlock()
	f.asked++
	p := f.page
	switch {
	case p.hangs:
		f.Unlock()
		<-r.Context().Done()
		f.Lock()
		return nil, r.Context().Err()
	case p.err != nil:
		return nil, p.err
	case p.etag != "" && r.Header.Get("If-None-Match") == p.etag:
		f.unchanged++
		return &http.Response{StatusCode: http.StatusNotModified, Body: http.NoBody}, nil
	case p.location != "" && r.URL.Path == "/services":
		return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {p.location}}, Body: http.NoBody}, nil
	}
	code := max(p.status, 200)
	kind := cmp.Or(p.kind, "application/json")
	body := io.Reader(strings.NewReader(p.body))
	if p.endless {
		body = io.MultiReader(strings.NewReader(`{"services": [`), spaces{})
	}
	return &http.Response{StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code)), Body: io.NopCloser(body),
		Header: http.Header{"Content-Type": {kind}, "Etag": {p.etag}}}, nil
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func options(transport http.RoundTripper, prior ...vip.Service) Options {
	c := NewConfig()
	c.URL, c.ServiceNamespace = "https://cmdb.example/services?sig=secret", "shop"
	return Options{Config: *c, Name: "http", Pools: func() []spec.Pool { return nil }, Prior: func() []vip.Service { return prior }, transport: transport}
}

const (
	good   = `{"name": "web", "ports": [{"port": 80}]}`
	other  = `{"name": "db", "namespace": "data", "ports": [{"port": 5432}]}`
	broken = `{"name": "web", "ports": [{"port": 0}]}`
)

func list(services ...string) string { return `{"services": [` + strings.Join(services, ",") + `]}` }

// A document is published once, and again when it changes. A refused service keeps its last version, and so does every
// service while the answer is not a list of services.
func TestFollowsADocument(t *testing.T) {
	const at = "https://cmdb.example/services"
	both := "replace data/db=5432 shop/web=80"
	steps := []struct {
		name string
		page page
		want string
	}{
		{"a connection that fails", page{err: errors.New("connection refused")}, "stale " + at + ": connection refused"},
		{"a list", page{etag: `"1"`, body: list(good, other)}, both},
		{"an error", page{status: 500}, "stale " + at + ": answers 500 Internal Server Error"},
		{"the same body without a tag", page{body: list(good, other)}, "fresh"},
		{"a mistake", page{body: list(other, broken)},
			both + " | " + at + `: service "shop/web": services[1].ports[0].port: `},
		{"a service without a name, that may be any", page{body: list(`{"ports": [{"port": 80}]}`)}, both + " | " + at + `: service "services[0]": services[0].name: `},
		{"a key that may be the namespace", page{body: list(good, `{"name": "db", "namespce": "data", "ports": [{"port": 5432}]}`)},
			both + " | " + at + `: service "shop/db": services[1].namespce: unknown key`},
		{"no namespace that can be", page{body: list(good, `{"name": "db", "namespace": 5, "ports": [{"port": 5432}]}`)},
			both + " | " + at + `: service "shop/db": services[1].namespace: `},
		{"a name that comes twice", page{body: list(good, other, `{"name": "web", "ports": [{"port": 81}]}`)},
			both + " | " + at + `: service "shop/web": services[2].name: "shop/web" is the name of the service at ` + at},
		{"a page for people", page{kind: "text/html; charset=utf-8", body: "<html>"}, "stale " + at + `: answers with the content type "text/html; charset=utf-8": services are application/json`},
		{"half a document", page{body: `{"services": [` + good}, "stale " + at + ": is not valid JSON near byte"},
		{"another document", page{body: `{"error": "login"}`}, "stale " + at + ": error: unknown key"},
		{"a document without a list", page{body: `{}`}, "stale " + at + ": has no list of services"},
		{"no document", page{}, "stale " + at + ": is not valid JSON near byte 0: unexpected end of input"},
		{"304 to another question", page{status: 304}, "stale " + at + ": answers 304"},
		{"another server", page{location: "https://evil.example/services"}, "stale " + at + ": redirects to another server, https://evil.example"},
		{"a server without TLS", page{location: "http://cmdb.example/services"}, "stale " + at + ": redirects to another server, http://cmdb.example"},
		{"a loop", page{location: "/services"}, "stale " + at + ": redirects more than 5 times"},
		{"another path", page{location: "/v2", body: list(other)}, "replace data/db=5432"},
		{"an empty list", page{body: list()}, "replace "},
		{"no answer", page{hangs: true}, "stale " + at + ": no complete answer within 30s"},
	}
	bubble.Test(t, func(t *testing.T) {
		server, out := &fake{page: steps[0].page}, &recorder{}
		scope.Go(t, func(ctx context.Context) error { return New(options(server)).Run(ctx, out) })
		for _, step := range steps {
			out.take()
			server.answers(step.page)
			time.Sleep(timeout + 15*time.Second) // a request that hangs, and the one before
			calls := out.take()
			got := strings.Join(calls, "; ")
			expect.True(t, strings.HasPrefix(got, step.want), "%s: %s, want %s", step.name, got, step.want)
			expect.AtMost(t, len(calls), 1, step.name)
		}
	})
}

// A body is decoded once: a tag, and the same body without one, publish nothing. Changed pools read it again.
func TestCostOfAnUnchangedDocument(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		server, out := &fake{page: page{etag: `"1"`, body: list(good)}}, &recorder{}
		o := options(server)
		o.Pools = func() []spec.Pool { server.Lock(); defer server.Unlock(); return server.pools }
		scope.Go(t, func(ctx context.Context) error { return New(o).Run(ctx, out) })
		time.Sleep(10 * time.Minute)
		expect.Equal(t, strings.Join(out.take(), "; "), "replace shop/web=80", "calls")
		server.Lock()
		expect.Between(t, server.asked, 54, 68, "requests in ten minutes")
		expect.Equal(t, server.asked-server.unchanged, 1, "answers with a body")
		server.pools = []spec.Pool{{Name: "p"}}
		server.Unlock()
		time.Sleep(time.Minute)
		server.Lock()
		defer server.Unlock()
		expect.Equal(t, server.asked-server.unchanged, 2, "answers with a body after a change of the pools")
	})
}

func TestAnAnswerWithoutAnEnd(t *testing.T) {
	_, _, err := New(options(&fake{page: page{endless: true}})).read(t.Context())
	expect.Equal(t, fmt.Sprint(err), "the answer is longer than 16 MiB", "error")
}

// A service that is refused from the start has the version of the last run of the agent.
func TestRefusedSinceTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		built, problems := (&spec.Service{Name: "web", Namespace: "shop", Ports: []spec.Port{{Port: spec.PortRange{First: 79}}}}).Build("http", "")
		must.Empty(t, problems, "problems")
		out := &recorder{}
		server := &fake{page: page{body: list(broken, other)}}
		scope.Go(t, func(ctx context.Context) error { return New(options(server, built)).Run(ctx, out) })
		time.Sleep(time.Second)
		got := strings.Join(out.take(), "; ")
		expect.True(t, strings.HasPrefix(got, "replace data/db=5432 shop/web=79 |"), "%s", got)
	})
}

// The client has the CA and the token of files, and sends nothing without them.
func TestATokenByTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, list(`{"name": "`+strings.ToLower(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))+`", "ports": [{"port": 80}]}`))
	}))
	defer server.Close()
	dir := t.TempDir()
	o := options(nil)
	o.URL, o.Client, o.TokenFile = server.URL, tlsfile.Client{CA: filepath.Join(dir, "ca.pem")}, filepath.Join(dir, "token")
	s := New(o)
	_, _, err := s.read(t.Context())
	expect.True(t, err != nil && strings.Contains(err.Error(), "token"), "without the token: %v", err)
	must.Succeed(t, os.WriteFile(o.TokenFile, []byte("Secret\n"), 0o600))
	_, _, err = s.read(t.Context())
	expect.True(t, err != nil && strings.Contains(err.Error(), "ca.pem"), "without the CA: %v", err)
	must.Succeed(t, os.WriteFile(o.Client.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	services, problems, err := s.read(t.Context())
	if err != nil || len(problems) > 0 || len(services) != 1 || services[0].Key.Name != "secret" {
		t.Errorf("%v %v %v", services, problems, err)
	}
}
