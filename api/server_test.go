package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/services"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

const requestIDHeader = server.RequestIDHeader

func TestHostAndOrigin(t *testing.T) {
	r := newRig(t, func(d *Deps) { d.Hosts = []string{"vip.example.org"} })
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"localhost:7480", "", 200}, {"127.0.0.1", "", 200}, {"[::1]:7480", "", 200}, {"192.0.2.1:7480", "", 200}, {"LB1:7480", "", 200},
		{"vip.example.org", "", 200}, {"localhost.", "", 200},
		{"evil.example.org", "", 403}, {"127.0.0.1.evil.example.org", "", 403}, {"evil.example.org:7480", "http://evil.example.org:7480", 403},
		{"localhost:7480", "http://localhost:7480", 200}, {"localhost:7480", "http://localhost:9999", 403},
		{"localhost:7480", "http://evil.example.org", 403}, {"localhost:7480", "null", 403},
	} {
		headers := []string{"Host: " + c.host}
		if c.origin != "" {
			headers = append(headers, "Origin: "+c.origin)
		}
		a := r.ask("GET", v1.PathHealthz, "", headers...)
		expect.Equal(t, a.StatusCode, c.want, "host %s, origin %s: %s", c.host, c.origin, a.Status)
		if c.want == 403 && a.problem(t).Code != v1.CodeForbiddenOrigin {
			t.Errorf("%s", a.body)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	r := newRig(t)
	for sent, kept := range map[string]bool{"abc-1.2_3": true, "": false, "two words": false, strings.Repeat("x", 65): false} {
		got := r.ask("GET", v1.PathHealthz, "", server.RequestIDHeader+": "+sent).Header.Get(server.RequestIDHeader)
		if (got == sent) != kept || got == "" {
			t.Errorf("sent %q, answered with %q", sent, got)
		}
	}
}

type panics struct{ services.Registrar }

func (panics) PutService(context.Context, rest.Put) (rest.Result, error) { panic("a broken invariant") }
func (panics) DeleteService(context.Context, vip.ServiceKey, rest.Check) (uint64, error) {
	return 0, errors.New("a secret detail")
}

func TestOwnFaultsAreLoggedAndNotTold(t *testing.T) {
	r := newRig(t, func(d *Deps) { d.Services.Registrar = panics{d.Services.Registrar} })
	for method, detail := range map[string]string{"PUT": "a broken invariant", "DELETE": "a secret detail"} {
		a := r.ask(method, webPath, webBody())
		doc := a.problem(t)
		if a.StatusCode != 500 || doc.Code != v1.CodeInternal || strings.Contains(string(a.body), detail) {
			t.Errorf("%s: %s", method, a.body)
		}
		if log := r.log.String(); !strings.Contains(log, detail) || !strings.Contains(log, doc.RequestID) {
			t.Errorf("%s: the log doesn't say why", method)
		}
	}
	if a := r.ask("GET", v1.PathHealthz, ""); a.StatusCode != 200 {
		t.Errorf("after that: %s", a.Status)
	}
}

// A caller that ends its body early gets an error, and it doesn't count as an error of the agent.
func TestBodyThatBreaksOff(t *testing.T) {
	r := newRig(t)
	web := httptest.NewServer(r.server.Handler())
	defer web.Close()
	for what, test := range map[string]struct{ path, rest string }{
		"shorter than promised": {webPath, "Content-Length: 500\r\n\r\n{"},
		"a bad chunk":           {webPath, "Transfer-Encoding: chunked\r\n\r\nZZ\r\n"},
		"of apply":              {v1.PathApply, "Content-Length: 500\r\n\r\n{"},
	} {
		t.Run(what, func(t *testing.T) {
			conn := must.Get(net.Dial("tcp", web.Listener.Addr().String()))(t)
			defer conn.Close()
			method := "PUT"
			if test.path == v1.PathApply {
				method = "POST"
			}
			fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, test.path, test.rest)
			must.Succeed(t, conn.(*net.TCPConn).CloseWrite())
			resp := must.Get(http.ReadResponse(bufio.NewReader(conn), httptest.NewRequest(method, test.path, nil)))(t)
			defer resp.Body.Close()
			body := must.Get(io.ReadAll(resp.Body))(t)
			a := answer{resp, body}
			if doc := a.problem(t); a.StatusCode != http.StatusBadRequest || doc.Code != v1.CodeInvalidRequest || !strings.HasPrefix(doc.Detail, "incomplete body: ") {
				t.Errorf("%s %s", a.Status, body)
			}
		})
	}
	if log := r.log.String(); strings.Contains(log, "request failed") || strings.Contains(log, "panic") {
		t.Error(log)
	}
}

// lateBody is a body with an expired deadline. Another read would take as long again.
type lateBody struct{ reads int }

func (b *lateBody) Read([]byte) (int, error) { b.reads++; return 0, os.ErrDeadlineExceeded }
func (b *lateBody) Close() error             { return nil }

// A caller that sends its body too slowly gets an error, and the server doesn't wait for it again.
func TestBodyThatIsTooSlow(t *testing.T) {
	r := newRig(t)
	body := &lateBody{}
	req := httptest.NewRequest("PUT", webPath, body)
	req.Host = "localhost"
	rec := httptest.NewRecorder()
	r.web.Config.Handler.ServeHTTP(rec, req)
	resp := rec.Result()
	resp.Request = req
	if doc := (answer{resp, rec.Body.Bytes()}).problem(t); rec.Code != http.StatusRequestTimeout || doc.Code != v1.CodeRequestTimeout {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	expect.Equal(t, body.reads, 1, "the body was read %d times", body.reads)
}

// A body that is sent too slowly gets its response even if the read time exceeds the write time, as
// for an apply.
func TestSlowApplyIsAnswered(t *testing.T) {
	if services.ApplyTime <= server.WriteTimeout {
		t.Fatal("reading takes no longer than writing may: another test is needed")
	}
	inRig(t, func(t *testing.T, r *rig) {
		l := newPipes()
		end := scope.Go(t, func(ctx context.Context) error { return r.server.Serve(ctx, l, nil) })
		client := must.Get(l.dial(context.Background(), "", ""))(t)
		start := time.Now()
		if _, err := io.WriteString(client, "POST "+v1.PathApply+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(client), nil)
		must.Succeed(t, err, "after %s", time.Since(start))
		if took := time.Since(start); resp.StatusCode != http.StatusRequestTimeout || took < server.WriteTimeout || took > services.ApplyTime+time.Second {
			t.Errorf("%s after %s", resp.Status, took)
		}
		client.Close()
		end()
	})
}

// onSocket serves the rig on a unix socket. It returns a client and a function that ends the
// server.
func onSocket(t *testing.T, s *Server, path string) (*http.Client, func() error) {
	t.Helper()
	var set sockets.Set
	l := must.Get(set.ListenUnix(t.Context(), path, 0o660))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l, nil) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, func() error { cancel(); defer set.Release(l); return <-ended }
}

func TestUnixSocket(t *testing.T) {
	r := newRig(t)
	waits, inner := make(chan struct{}), r.server.http.Handler
	r.server.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Has("wait") {
			close(waits)
		}
		inner.ServeHTTP(w, req)
	})
	path := filepath.Join(t.TempDir(), "run", "ironvip.sock")
	client, stop := onSocket(t, r.server, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("socket: %v %v", info.Mode(), err)
	}
	resp := must.Get(client.Get("http://any-name-will-do/healthz"))(t)
	resp.Body.Close()
	expect.Equal(t, resp.StatusCode, 200, resp.Status)

	// A waiting request times out at the shutdown and doesn't delay it.
	got := make(chan int, 1)
	go func() {
		resp, err := client.Get("http://x/v1/services?wait=5m&revision=9007199254740991")
		if err != nil {
			got <- 0
			return
		}
		resp.Body.Close()
		got <- resp.StatusCode
	}()
	<-waits
	time.Sleep(50 * time.Millisecond) // lets the request wait; if it doesn't yet, the test is weaker but correct
	begin := time.Now()
	expect.Is(t, stop(), context.Canceled, "Serve ended with")
	expect.AtMost(t, time.Since(begin), 30*time.Second, "the end took")
	expect.Equal(t, <-got, 200, "the waiting request")
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	left, _ := os.ReadDir(filepath.Dir(path))
	expect.Empty(t, left, "left behind")
}

// The pages need no role, and are there before the agent has loaded its state.
func TestPages(t *testing.T) {
	s, _ := notBegun()
	for _, c := range []struct {
		method, path, accept string
		want                 int
		location             string
	}{
		{"GET", "/ui/", "text/html", 200, ""},
		{"HEAD", "/ui/services/web", "*/*", 200, ""},
		{"GET", "/ui", "*/*", 302, "/ui/"},
		{"GET", "/", "text/html,application/xhtml+xml", 302, "/ui/"},
		{"GET", "/", "*/*", 404, ""}, // of a program
		{"GET", "/ui/absent.js", "*/*", 404, ""},
		{"POST", "/ui/", "*/*", 405, ""},
		{"DELETE", "/ui/services/web", "text/html", 405, ""},
	} {
		r := httptest.NewRequest(c.method, "http://localhost"+c.path, nil)
		r.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		if w.Code != c.want || w.Header().Get("Location") != c.location {
			t.Errorf("%s %s: %d %v", c.method, c.path, w.Code, w.Header())
		}
		if allow := w.Header().Get("Allow"); (allow == "GET") != (c.want == http.StatusMethodNotAllowed) {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, allow)
		}
		if c.want == http.StatusOK && (w.Header().Get("Cache-Control") != "no-cache" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'")) {
			t.Errorf("%s: %v", c.path, w.Header())
		}
	}
}
