package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/consulclient"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// scripted is Consul's HTTP API on a fake catalog. It can return wrong answers.
type scripted struct {
	*fake
	wrong atomic.Pointer[func(w http.ResponseWriter, r *http.Request, right string)]
	asked sync.Map // each path and its query, without the index
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := question{}
	_, _ = fmt.Sscan(r.URL.Query().Get("index"), &q.index)
	q.wait, _ = time.ParseDuration(r.URL.Query().Get("wait"))
	var body any
	var a answer
	var err error
	if name, service := strings.CutPrefix(r.URL.Path, "/v1/health/service/"); service {
		var all []instance
		if all, a, err = s.instances(r.Context(), name, q); all == nil {
			all = []instance{}
		}
		body = all
	} else {
		var names []string
		names, a, err = s.list(r.Context(), q)
		tags := map[string][]string{"consul": {}}
		for _, name := range names {
			tags[name] = []string{"x", DefaultTag}
		}
		body = tags
	}
	s.asked.Store(r.URL.Path+" "+r.URL.Query().Get("filter"), true)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("X-Consul-Index", fmt.Sprint(a.index))
	w.Header().Set("X-Consul-Results-Filtered-By-ACLs", fmt.Sprint(a.filtered))
	right, _ := json.Marshal(body)
	if wrong := s.wrong.Load(); wrong != nil {
		(*wrong)(w, r, string(right))
		return
	}
	_, _ = w.Write(right)
}

// These are wrong answers from Consul or a program in between. They change no service in effect,
// and all are reported.
func TestWrongAnswers(t *testing.T) {
	type wrong = func(w http.ResponseWriter, r *http.Request, right string)
	for _, test := range []struct {
		name, why string
		answer    wrong
	}{
		{"an error", "consul answers 500: No cluster leader", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.WriteHeader(500)
			_, _ = w.Write([]byte("No cluster leader"))
		}},
		{"the token is refused", "consul answers 403: ACL not found", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.WriteHeader(403)
			_, _ = w.Write([]byte("ACL not found"))
		}},
		{"half a body", "unexpected EOF", func(w http.ResponseWriter, _ *http.Request, right string) {
			_, _ = w.Write([]byte(right[:len(right)/2]))
		}},
		{"half a body, and the line is dead", "EOF", func(w http.ResponseWriter, _ *http.Request, right string) {
			w.Header().Set("Content-Length", fmt.Sprint(len(right)))
			_, _ = w.Write([]byte(right[:len(right)/2]))
			panic(http.ErrAbortHandler)
		}},
		{"nothing", "EOF", func(http.ResponseWriter, *http.Request, string) {}},
		{"null", "consul answered with nothing", func(w http.ResponseWriter, _ *http.Request, _ string) { _, _ = w.Write([]byte("null")) }},
		{"a page", "invalid character '<'", func(w http.ResponseWriter, _ *http.Request, _ string) { _, _ = w.Write([]byte("<html>sign in</html>")) }},
		{"another shape", "cannot unmarshal", func(w http.ResponseWriter, _ *http.Request, _ string) { _, _ = w.Write([]byte(`"web"`)) }},
		{"another place", "consul answers 307", func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}},
		{"an empty answer of somebody else's", "not of consul's making", func(w http.ResponseWriter, r *http.Request, _ string) {
			w.Header().Del("X-Consul-Index")
			if r.URL.Path == "/v1/catalog/services" {
				_, _ = w.Write([]byte("{}"))
			} else {
				_, _ = w.Write([]byte("[]"))
			}
		}},
		{"silence", "no answer within", func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &scripted{fake: newFake()}
			s.set("web", "n1 10.0.0.1:80 port=443")
			s.set("db", "n1 10.0.0.1:5432", "n2 10.0.0.2:5432 warning w=5/2")
			server := httptest.NewServer(s)
			defer server.Close()
			o := Options{Config: Config{Config: consulclient.Config{Address: server.URL}}}
			o.timing = timing{pace: 5 * time.Millisecond, listPace: 5 * time.Millisecond, listHold: 100 * time.Millisecond, answer: 100 * time.Millisecond,
				hold: 200 * time.Millisecond, minBackoff: 5 * time.Millisecond, maxBackoff: 20 * time.Millisecond, idle: 100 * time.Millisecond}
			src := must.Get(New(o))(t)
			out := newSink()
			scope.Go(t, func(ctx context.Context) error { return src.Run(ctx, out) })
			stale := func() string {
				out.mu.Lock()
				defer out.mu.Unlock()
				return out.stale
			}
			const both = "db 5432/tcp: 10.0.0.1:5432, 10.0.0.2:5432 w=2; web 443/tcp: 10.0.0.1:80"
			wait.Until(t, "complete", func() bool { return out.String() == both })
			s.wrong.Store(&test.answer)
			wait.Until(t, "stale because: "+test.why, func() bool { return strings.Contains(stale(), test.why) })
			if out.String() != both || out.deletes != 0 {
				t.Errorf("in effect %q, %d deletions", out, out.deletes)
			}
			s.set("web", "n3 10.0.0.3:80 port=443")
			s.wrong.Store(nil)
			wait.Until(t, "fresh again", func() bool {
				return stale() == "" && out.String() == "db 5432/tcp: 10.0.0.1:5432, 10.0.0.2:5432 w=2; web 443/tcp: 10.0.0.3:80"
			})
			for _, want := range []string{`/v1/catalog/services ServiceKind == "" and "ironvip" in ServiceTags`, "/v1/health/service/web "} {
				if _, asked := s.asked.Load(want); !asked {
					t.Errorf("never asked %q", want)
				}
			}
			if _, asked := s.asked.Load("/v1/health/service/consul "); asked {
				t.Error("asked for a service that is not ours")
			}
		})
	}
}

// supervised runs the source with a supervisor and a shrink guard.
func supervised(t *testing.T, f *fake) (services *table.Table[vip.ServiceKey, vip.Service], status func() sources.Status, resync func()) {
	clock := &table.Clock{}
	services = table.New(clock, vip.KeyOfService, nil)
	statuses := table.New(clock, sources.KeyOfStatus, nil)
	super := sources.NewSupervisor(sources.Options{Resolver: pipeline.NewResolve(pipeline.ResolveOptions{Services: services}), Services: services, Statuses: statuses, Events: event.NewLog(100, time.Now), Log: slog.New(slog.DiscardHandler)})
	src := must.Get(New(Options{Config: *NewConfig(), asked: f}))(t)
	super.Add("consul", Type, src)
	scope.Go(t, super.Run)
	status = func() sources.Status {
		s, _, _ := statuses.Get("consul")
		return s
	}
	return services, status, func() {
		expect.Succeed(t, super.Resync("consul"))
	}
}

// A catalog that suddenly becomes empty removes nothing for 30 s, whatever its size. A single
// deregistered service is removed at once.
func TestAnEmptyCatalogIsDoubted(t *testing.T) {
	for _, n := range []int{1, 2, 100} {
		bubble.Test(t, func(t *testing.T) {
			f := newFake()
			many(f, n)
			services, status, resync := supervised(t, f)
			time.Sleep(5 * time.Second)
			had := map[string][]instance{}
			f.locked(func() {
				for name, s := range f.services {
					had[name] = s.instances
				}
			})
			f.reset(2, nil)
			time.Sleep(20 * time.Second)
			held := func(p vip.Problem) bool { return p.Code == vip.CodeHeldBack }
			if services.Len() != n || !slices.ContainsFunc(status().Problems, held) {
				t.Errorf("%d services of %d, status %+v", services.Len(), n, status())
			}
			f.reset(3, had)
			time.Sleep(50 * time.Second) // not a multiple of the time of a blocking query: one is open when the state changes
			if services.Len() != n || len(status().Problems) != 0 {
				t.Errorf("%d services of %d, status %+v", services.Len(), n, status())
			}
			f.reset(1, nil)
			time.Sleep(5 * time.Second)
			resync()
			time.Sleep(5 * time.Second)
			if services.Len() != 0 || len(status().Problems) != 0 {
				t.Errorf("%d services after a resync, status %+v", services.Len(), status())
			}
			f.set("web", "n1 10.0.0.1:80")
			time.Sleep(5 * time.Second)
			f.set("web")
			time.Sleep(5 * time.Second)
			if services.Len() != 0 {
				t.Errorf("of %d: a service that was deregistered is still there: %+v", n, status())
			}
		})
	}
}

// If all checks of a service become critical, its backends are drained and the guard does nothing.
// If most of its instances disappear, the guard holds them.
func TestBackendsThatVanishAreDoubted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		f.set("web", "n1 10.0.0.1:80", "n2 10.0.0.2:80", "n3 10.0.0.3:80", "n4 10.0.0.4:80")
		services, status, _ := supervised(t, f)
		row := func() string {
			s, _, _ := services.Get(vip.ServiceKey{Namespace: "default", Name: "web"})
			return described(s)
		}
		time.Sleep(5 * time.Second)
		f.set("web", "n1 10.0.0.1:80 warning w=1/2")
		time.Sleep(5 * time.Second)
		if row() != "web 80/tcp: 10.0.0.1:80 w=2, 10.0.0.2:80, 10.0.0.3:80, 10.0.0.4:80" || len(status().Problems) != 1 {
			t.Errorf("%s, %v", row(), status().Problems)
		}
		time.Sleep(30 * time.Second)
		if row() != "web 80/tcp: 10.0.0.1:80 w=2" || len(status().Problems) != 0 {
			t.Errorf("%s, %v", row(), status().Problems)
		}
		f.set("web", "n1 10.0.0.1:80 critical")
		time.Sleep(5 * time.Second)
		if row() != "web 80/tcp: 10.0.0.1:80 unhealthy" || len(status().Problems) != 0 {
			t.Errorf("%s, %v", row(), status().Problems)
		}
	})
}
