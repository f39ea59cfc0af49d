package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/api/addresses"
	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/api/nodes"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/services"
	"github.com/ironvip/ironvip/api/snapshot"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/dns"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/ipam/memstore"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is the complete pipeline with a recording dataplane, and the API.
type rig struct {
	t        *testing.T
	server   *Server
	deps     Deps
	web      *httptest.Server
	pipes    *pipes // of web
	plane    *reconciletest.Plane
	registry *brokenStore
	files    files
	resynced atomic.Int32
	log      *logbuffer.Buffer
}

// brokenStore is a store that can refuse writes, or run a function before a write.
type brokenStore struct {
	registry.Bucket[rest.Record]
	mu     sync.Mutex
	err    error
	before func() // the next write, once
}

func (b *brokenStore) Batch(fill func(*store.Tx[rest.Record])) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	if before := b.before; before != nil {
		b.before = nil
		before()
	}
	return b.Bucket.Batch(fill)
}

// interrupt runs f before the next write.
func (b *brokenStore) interrupt(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.before = f
}

func (b *brokenStore) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// files is a source with the service "from-file" and the services sent to more.
type files struct{ more chan spec.Service }

func (f files) Run(ctx context.Context, out sources.Sink) error {
	w := spec.Service{Name: "from-file", Labels: map[string]string{"tier": "files"}, Ports: []spec.Port{{Port: spec.PortRange{First: 25}}},
		Backends: []spec.Backend{{Address: "10.9.0.1"}}}
	row, problems := w.Build("files", "mail.toml:1")
	if len(problems) > 0 {
		return problems[0]
	}
	out.Replace([]vip.Service{row}, nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case w := <-f.more:
			row, problems := w.Build("files", "late.toml:1")
			if len(problems) > 0 {
				return problems[0]
			}
			out.Put(row)
		}
	}
}

// everyone is the policy of tests of what is behind it.
func everyone() *access.Policy { return &access.Policy{Everyone: true} }

// withTokens makes the policy know tokens only.
func withTokens(d *Deps) {
	d.Policy = func() *access.Policy { return &access.Policy{Tokens: d.Tokens.Caller} }
}

// idle returns the Deps of an agent that has begun, with empty tables and parts that do nothing.
func idle(tables pipeline.Tables) Deps {
	begun := make(chan struct{})
	close(begun)
	noProblems := func(context.Context) (problems, warnings []vip.Problem) { return nil, nil }
	d := Deps{Options: server.Options{Policy: everyone, Node: "lb1", Version: "0.0.1", Log: slog.New(slog.DiscardHandler)},
		Services: services.Deps{Registrar: nobody{}, LocalOverrides: func() []vip.BackendState { return nil }, DrainsKept: func(context.Context) error { return nil },
			Proxy: func() *balance.Report { return &balance.Report{} }, Mode: func() string { return "proxy" }},
		Tables: status.Tables{Clock: tables.Clock, Services: tables.Services, Overrides: tables.Overrides, Health: tables.Health, Passive: tables.Passive, Allocations: tables.Allocations, Compiled: tables.Compiled, Frontends: tables.Frontends, Applied: tables.Applied,
			Refused: table.New(tables.Clock, sources.KeyOfRefused, sources.SameRefused), Naming: noNames()},
		Sources:   table.New(tables.Clock, sources.KeyOfStatus, sources.SameStatus),
		Conflicts: pipeline.NewResolve(pipeline.ResolveOptions{Services: tables.Services}).Conflicts(),
		Addresses: addresses.Deps{Leases: table.New(tables.Clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil), Zone: func() (string, []netip.AddrPort) { return "vip.internal", nil },
			Pools: func() []ipam.PoolStatus { return []ipam.PoolStatus{{Pool: ipam.Pool{Name: "lan"}, Size: 10, Free: 10}} }},
		Begun: begun, Ready: make(chan struct{}),
		Events: event.NewLog(200, time.Now),
		Forwarding: forwarding.Deps{Stats: func() reconcile.Stats { return reconcile.Stats{Synced: true, Wanted: tables.Frontends.Len()} },
			Dataplane:  func() forwarding.Dataplane { return forwarding.Dataplane{Mode: "proxy"} },
			Statistics: &reconciletest.Statistics{}, Connections: idleDataplane{}, ConnectionLister: idleDataplane{}},
		BackendMetrics: func() []string { return nil },
		Config: Config{
			Check: func() v1.Check { return v1.Check{Name: "config", Level: v1.LevelOK} }, Validate: noProblems,
			Plan:   func(context.Context) (v1.Plan, []vip.Problem) { return v1.Plan{}, nil },
			Reload: func(context.Context) (v1.ReloadResult, []vip.Problem) { return v1.ReloadResult{}, nil },
			Loaded: func() (bool, time.Time) { return true, time.Now() },
		},
		Nodes: nodes.Deps{List: func(context.Context) (v1.NodeList, error) { return v1.NodeList{}, nil }, Forget: func(context.Context, string) error { return nil }},
		Snapshot: func(context.Context) (snapshot.Document, error) {
			return snapshot.NewDocument(snapshot.Contents{}), nil
		},
		Checks: func() []v1.Check { return nil },
	}
	newAnnounceRig().use(&d.Nodes)
	return d
}

// idleDataplane has no connections.
type idleDataplane struct{}

func (idleDataplane) Connections(context.Context, vip.FrontendKey) (map[netip.AddrPort]int, error) {
	return nil, nil
}

func (idleDataplane) ListConnections(context.Context, func(vip.FrontendKey) bool, func(reconcile.Connection) bool) error {
	return nil
}

// newRig starts everything and waits until it is ready. edit may change the Deps.
func newRig(t testing.TB, edit ...func(*Deps)) *rig {
	t.Helper()
	r := &rig{log: &logbuffer.Buffer{}, files: files{make(chan spec.Service)}}
	r.t, _ = t.(*testing.T)
	log := slog.New(slog.NewTextHandler(r.log, nil))
	db := must.Get(store.Open(filepath.Join(t.TempDir(), "ironvip.db")))(t)
	clock := &table.Clock{}
	ctx, cancel := context.WithCancel(context.Background())
	tables := pipeline.NewTables(clock)
	events := event.NewLog(200, time.Now)
	pools := []ipam.Pool{{Name: "lan", CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, AutoAssign: true}}
	allocator, err := allocator.New(ctx, memstore.New(), ipam.Config{Pools: pools, ReuseDelay: time.Minute}, allocator.Options{Clock: clock, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	r.plane = reconciletest.NewPlane()
	line := pipeline.New(pipeline.Options{Tables: tables, Allocator: allocator, Plane: r.plane, Resync: -1, Events: events, Log: log})
	r.deps = idle(tables)
	d := &r.deps
	refused := d.Tables.Refused.(*table.Table[sources.RefusedKey, sources.Refused])
	supervisor := sources.NewSupervisor(sources.Options{Resolver: line.Resolve, Services: tables.Services, Statuses: d.Sources.(*table.Table[string, sources.Status]), Refused: refused, Events: events, Log: log})
	r.registry = &brokenStore{Bucket: store.NewBucket[rest.Record](db, "rest")}
	records := must.Get(registry.NewLocal(r.registry))(t)
	stored := must.Get(registry.NewLocal(store.NewBucket[overrides.Override](db, "states")))(t)
	known := must.Get(registry.NewLocal(store.NewBucket[tokens.Record](db, tokens.Folder)))(t)
	registrar, err := rest.New(rest.Options{Store: records, Services: tables.Services, Events: events, Log: log,
		Check: func(s *spec.Service) []vip.Problem {
			return spec.CheckAgainstPools(s, []spec.Pool{{Name: "lan", CIDRs: pools[0].CIDRs, AutoAssign: true}})
		}})
	if err != nil {
		t.Fatal(err)
	}
	registrar.Restore()
	overridden := overrides.New(overrides.Options{Store: stored, Table: tables.Overrides, Services: tables.Services, Health: tables.Health, Passive: tables.Passive, Events: events, Log: log})
	overridden.Restore()
	supervisor.Add("files", "static", r.files)
	supervisor.Add(rest.Type, rest.Type, registrar)
	names, err := dns.New(dns.Options{Settings: zone.Settings{Domain: "vip.internal", TTL: 30 * time.Second, NegativeTTL: time.Second, ShortNames: true, Reverse: true, Pools: pools[0].CIDRs, Servers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		Clock: clock, Services: tables.Services, Allocations: tables.Allocations, Leases: allocator.Leases(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	listen := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8653")}
	d.Tokens, d.Started, d.Log, d.Events = tokens.New(known, time.Now), time.Now(), log, events
	d.Services.Registrar, d.Services.SetState, d.Services.Overridden, d.Ready = registrar, overridden.Set, line.Compile.WaitOverridden, line.Loop.Synced()
	d.Conflicts, d.Services.Preview = line.Resolve.Conflicts(), allocator.Preview
	d.Addresses = addresses.Deps{Leases: allocator.Leases(), Pools: allocator.Pools, Reservations: allocator, Zone: func() (string, []netip.AddrPort) { return "vip.internal", listen }}
	d.Tables.Naming = names
	d.Resync = func(context.Context, string) error { r.resynced.Add(1); return nil }
	d.Forwarding.Stats, d.Forwarding.Diff, d.Forwarding.Repair = line.Loop.Stats, line.Loop.Diff, line.Loop.Repair
	d.Forwarding.Switch = func(_ context.Context, mode string, _, _ bool) (v1.SwitchPlan, error) {
		return v1.SwitchPlan{From: "proxy", To: mode, Changes: mode != "proxy", Connections: []v1.SwitchConnections{}, Refused: []v1.Problem{}, Problems: []v1.Problem{}}, nil
	}
	d.DebugTables = []status.DebugTable{status.NewDebugTable("services", status.ServiceCells, tables.Services), status.NewDebugTable("frontends", status.FrontendCells, tables.Frontends)}
	for _, e := range edit {
		e(d)
	}
	r.server = New(r.deps)
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{supervisor.Run, overridden.Run, line.Run, names.Run, r.server.Run} {
		parts.Go(func() {
			expect.Is(t, run(ctx), context.Canceled, "a part ended")
		})
	}
	r.pipes = newPipes()
	r.web = &httptest.Server{Listener: r.pipes, Config: &http.Server{Handler: r.server.Handler()}}
	r.web.Start()
	r.web.Client().Transport.(*http.Transport).DialContext = r.pipes.dial
	t.Cleanup(func() {
		r.web.CloseClientConnections()
		r.web.Close()
		r.web.Client().CloseIdleConnections()
		cancel()
		parts.Wait()
		db.Close()
	})
	<-line.Loop.Synced()
	wait.Until(t, "a service of a file is applied, and the API has started", func() bool {
		svc, ok := r.server.services.Service(vip.ServiceKey{Namespace: "default", Name: "from-file"})
		st, _, started := r.deps.Sources.Get(rest.Type)
		return ok && svc.Status.Applied && started && st.Synced
	})
	return r
}

// inRig calls f with a rig on a fake clock.
func inRig(t *testing.T, f func(*testing.T, *rig), edit ...func(*Deps)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(t, newRig(t, edit...)) })
}

// pipes is a listener of connections in memory. Waiting for a socket would stop the fake clock of a bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- local{far}:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return localAddr }

// local is a connection of a client of this host.
type local struct{ net.Conn }

func (local) RemoteAddr() net.Addr { return localAddr }

var localAddr = net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:7480"))

// answer is a response with its body read.
type answer struct {
	*http.Response
	body []byte
}

// create creates a token and returns its secret.
func (r *rig) create(t tokens.Token) string {
	r.t.Helper()
	secret := must.Get(r.deps.Tokens.Create(r.t.Context(), t))(r.t)
	return secret
}

// send sends a request; headers are "Name: value".
func (r *rig) send(method, path, body string, headers ...string) *http.Response {
	r.t.Helper()
	req := must.Get(http.NewRequestWithContext(r.t.Context(), method, r.web.URL+path, strings.NewReader(body)))(r.t)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
		}
		req.Header.Add(name, value)
	}
	resp := must.Get(r.web.Client().Do(req))(r.t)
	return resp
}

// ask is send, and reads the answer.
func (r *rig) ask(method, path, body string, headers ...string) answer {
	r.t.Helper()
	resp := r.send(method, path, body, headers...)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(r.t)
	return answer{resp, b}
}

// decode is like ask for a request that must succeed. It decodes the JSON into a T.
func decode[T any](r *rig, method, path, body string, headers ...string) T {
	r.t.Helper()
	a := r.ask(method, path, body, headers...)
	if a.StatusCode >= 300 {
		r.t.Fatalf("%s %s: %s\n%s", method, path, a.Status, a.body)
	}
	var out T
	err := json.Unmarshal(a.body, &out)
	must.Succeed(r.t, err, "%s %s: %v in %s", method, path, err, a.body)
	return out
}

// problem decodes the response's problem document and checks the common fields.
func (a answer) problem(t *testing.T) v1.ProblemDocument {
	t.Helper()
	var doc v1.ProblemDocument
	err := json.Unmarshal(a.body, &doc)
	must.Succeed(t, err, "%s: %v in %s", a.Request.URL, err, a.body)
	expect.Equal(t, a.Header.Get("Content-Type"), v1.ProblemType, "%s: content type", a.Request.URL)
	if doc.Status != a.StatusCode || doc.Code == "" || doc.Title == "" || doc.Detail == "" || doc.RequestID == "" ||
		doc.RequestID != a.Header.Get(requestIDHeader) || doc.Instance != a.Request.URL.Path || doc.Type != "urn:ironvip:problem:"+doc.Code {
		t.Errorf("%s: the problem document is not complete: %s", a.Request.URL, a.body)
	}
	return doc
}

const webPath = "/v1/services/default/web"

func webBody(backends ...string) string {
	var list []string
	for _, b := range backends {
		list = append(list, fmt.Sprintf(`{"address":%q,"port":8080}`, b))
	}
	return `{"ports":[{"port":80}],"backends":[` + strings.Join(list, ",") + `]}`
}

var webFrontend = vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.5"), Port: 80, Protocol: vip.TCP}
