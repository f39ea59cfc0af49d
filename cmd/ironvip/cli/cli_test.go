package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent/offline"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

var update = flag.Bool("update", false, "rewrite the expected outputs and docs/cli.md")

// now is the current time of every command in these tests.
var now = time.Date(2026, 11, 8, 12, 13, 7, 0, time.UTC)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ironvip": func() {
			os.Exit(Execute(context.Background(), ThisProcess("0.1.0"), os.Args[1:]))
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", UpdateScripts: *update, Setup: func(env *testscript.Env) error {
		env.Setenv("GORACE", "atexit_sleep_ms=0") // a command would sleep for a second at its end
		return nil
	}})
}

// fakeAgent is a server on a unix socket that returns canned responses and records the requests.
type fakeAgent struct {
	socket string

	hold bool // an event stream stays open after its canned events

	mu      sync.Mutex
	answers map[string]answer // by "GET /v1/status?query"
	asked   []request
}

type answer struct {
	status int
	body   any
}

type request struct {
	Line, Prefer, IfMatch, Body string
}

func newAgent(t *testing.T) *fakeAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "ironvip") // a test's own directory is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	a := &fakeAgent{socket: filepath.Join(dir, "a.sock"), answers: map[string]answer{}}
	l, err := net.Listen("unix", a.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: a}}
	s.Start()
	t.Cleanup(func() {
		s.Close()
		os.RemoveAll(dir)
	})
	return a
}

// on sets the response to a request line, such as "GET /v1/status".
func (a *fakeAgent) on(line string, status int, body any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[line] = answer{status, body}
}

func (a *fakeAgent) requests() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]request(nil), a.asked...)
}

func (a *fakeAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + r.URL.RequestURI()
	a.mu.Lock()
	a.asked = append(a.asked, request{line, r.Header.Get("Prefer"), r.Header.Get("If-Match"), string(body)})
	ans, known := a.answers[line]
	a.mu.Unlock()
	if !known {
		ans = answer{404, v1.ProblemDocument{Title: "Not found", Status: 404, Code: v1.CodeNotFound, Detail: "no canned answer for " + line}}
	}
	if next, ok := ans.body.(func() answer); ok {
		ans = next()
	}
	if next, ok := ans.body.(func() any); ok {
		ans.body = next()
	}
	if list := reflect.ValueOf(ans.body); list.Kind() == reflect.Slice { // a stream
		w.Header().Set("Content-Type", "application/x-ndjson")
		for i := range list.Len() {
			_ = json.NewEncoder(w).Encode(list.Index(i).Interface())
		}
		if a.hold {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
		return
	}
	kind := "application/json"
	if _, isProblem := ans.body.(v1.ProblemDocument); isProblem {
		kind = v1.ProblemType
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(ans.status)
	if ans.body != nil {
		_ = json.NewEncoder(w).Encode(ans.body)
	}
}

// problem returns a problem document for a refusal.
func problem(status int, code, detail, hint string, errors ...v1.Problem) v1.ProblemDocument {
	return v1.ProblemDocument{Title: "title", Status: status, Code: code, Detail: detail, Hint: hint, RequestID: "req-1", Errors: errors}
}

// result is the output and exit code of a command.
type result struct {
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("-- stdout --\n%s-- stderr --\n%s-- exit %d --\n", r.stdout, r.stderr, r.code)
}

// run executes a command line in the environment of the tests. Spaces separate words.
func run(t *testing.T, o Options, line string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	o.Stdout, o.Stderr = &stdout, &stderr
	o.Version = "0.1.0"
	o.Stdin = or[io.Reader](o.Stdin, strings.NewReader(""))
	o.Getenv = or(o.Getenv, func(string) string { return "" })
	o.Now = func() time.Time { return now }
	o.LastGood = or(o.LastGood, func(string, string) (*configs.Config, []vip.Problem) { return nil, nil })
	o.NewIdentity, o.Restore = or(o.NewIdentity, offline.NewIdentity), or(o.Restore, offline.Restore)
	code := Execute(t.Context(), o, strings.Fields(line))
	return result{stdout.String(), stderr.String(), code}
}

// or returns v, or otherwise if v is zero.
func or[T any](v, otherwise T) T {
	if reflect.ValueOf(&v).Elem().IsZero() {
		return otherwise
	}
	return v
}

// run executes a command line against this agent.
func (a *fakeAgent) run(t *testing.T, line string) result {
	t.Helper()
	return a.runWith(t, Options{}, line)
}

func (a *fakeAgent) runWith(t *testing.T, o Options, line string) result {
	t.Helper()
	env := o.Getenv
	o.Getenv = func(name string) string {
		switch {
		case name == command.EnvAddr:
			return "unix://" + a.socket
		case env != nil:
			return env(name)
		}
		return ""
	}
	r := run(t, o, line)
	r.stdout = strings.ReplaceAll(r.stdout, a.socket, "SOCKET")
	r.stderr = strings.ReplaceAll(r.stderr, a.socket, "SOCKET")
	return r
}

// golden compares got with a file in testdata/golden, or writes it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	compareFile(t, filepath.Join("testdata", "golden", name), got)
}

func compareFile(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Succeed(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run go test with -update", err)
	}
	diff := cmp.Diff(string(want), got)
	expect.NoDiff(t, diff, "%s (-want +got); run go test with -update if that is right", path)
}

// wellHost returns a host that meets all requirements, for doctor's tests.
func wellHost() *doctor.Host {
	return &doctor.Host{
		Files: fstest.MapFS{
			"proc/sys/kernel/osrelease": {Data: []byte("6.1.0-56-cloud-amd64\n")},
			"proc/7/limits":             {Data: []byte("Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 1048576              files\n")},
			"proc/7/comm":               {Data: []byte("bash\n")},
		},
		PID: 7,
		Needs: func(*plane.Kind) []ipvs.Finding {
			return []ipvs.Finding{{Name: "capability CAP_NET_ADMIN", OK: true, Required: true}, {Name: "kernel module ip_vs", OK: true, Required: true},
				{Name: "kernel module ip_vs_wrr", OK: true, Required: true}, {Name: "sysctl net.ipv4.vs.conntrack", OK: true}}
		},
		Disk:     func(string) (doctor.Disk, error) { return doctor.Disk{Free: 10 << 30}, nil },
		Writable: func(string) (bool, error) { return true, nil },
		State:    func(string) error { return store.ErrLocked },
	}
}

// root returns the tree of all commands.
func root() *cobra.Command {
	_, root := tree(ThisProcess("0.1.0"))
	return root
}
