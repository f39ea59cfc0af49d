package share

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/fleet/roster"
	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// verdictKeys is where the verdicts are in the store.
const verdictKeys = "ironvip/v2/tree/" + Folder + "/"

// target returns a target. Its check notices a failure after 3 s: see engine.
func target(n int) probe.Target {
	return probe.NewTarget(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80), vip.HealthCheck{Type: vip.CheckTCP})
}

// world is a fleet in a bubble: trees on one store in memory, and engines that find what the test
// says.
type world struct {
	t     *testing.T
	store *fleettest.Memory
	hosts map[string]*host
	sent  atomic.Int64 // transactions with verdicts

	restored vip.Health // what hosts know from an earlier run; 0: nothing

	mu   sync.Mutex
	down map[probe.Target]bool
	cut  map[string]map[probe.Target]bool // paths that are broken, by host
}

type host struct {
	*Share
	name    string
	tree    *fleettest.Host
	engine  *engine
	results *table.Table[probe.Target, probe.Result]
	end     func()
}

func newWorld(t *testing.T) *world {
	return &world{t: t, store: fleettest.NewMemory(), hosts: map[string]*host{}, down: map[probe.Target]bool{}, cut: map[string]map[probe.Target]bool{}}
}

// engine finds a change of a target some time later, up to 3 s by host and target.
type engine struct {
	w    *world
	name string
	own  *table.Table[probe.Target, probe.Result]

	mu      sync.Mutex
	running map[probe.Target]int // how many times longer the interval is
	most    int                  // targets at the same time
	dead    bool
}

func (e *engine) Start(t probe.Target, use probe.Use) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, was := e.running[t]
	e.running[t] = use.Slow
	e.most = max(e.most, len(e.running))
	if was {
		return
	}
	r := use.Begins
	if r.Health == 0 {
		r = probe.Result{Target: t, Health: vip.Unknown}
	}
	r.Target, r.Origin = t, probe.Own
	e.own.Set(r)
	time.AfterFunc(e.delay(t), func() { e.find(t) })
}

func (e *engine) Stop(t probe.Target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, runs := e.running[t]; !runs {
		e.w.t.Errorf("%s: %s is stopped and doesn't run", e.name, t)
	}
	delete(e.running, t)
	e.own.Delete(t)
}

// probes returns how many targets it probes, and how many of them slowly.
func (e *engine) probes() (all, slow int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, times := range e.running {
		if times > 1 {
			slow++
		}
	}
	return len(e.running), slow
}

func (e *engine) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (e *engine) delay(t probe.Target) time.Duration {
	return time.Second + time.Duration(mix(hash(e.name+t.String()))%2000)*time.Millisecond
}

// find takes in what there is to find.
func (e *engine) find(t probe.Target) {
	health, reason := e.w.finds(e.name, t), ""
	if health == vip.Unhealthy {
		reason = "timeout"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r, _, ok := e.own.Get(t); ok && !e.dead && r.Health != health {
		e.own.Set(probe.Result{Target: t, Health: health, Since: vip.InstantOf(time.Now()), Outcome: probe.OK, Reason: reason})
	}
}

func (w *world) finds(host string, t probe.Target) vip.Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down[t] || w.cut[host][t] {
		return vip.Unhealthy
	}
	return vip.Healthy
}

// change changes what there is to find.
func (w *world) change(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	for _, h := range w.hosts {
		h.engine.mu.Lock()
		for t, slow := range h.engine.running {
			time.AfterFunc(h.engine.delay(t)*time.Duration(slow), func() { h.engine.find(t) })
		}
		h.engine.mu.Unlock()
	}
}

func (w *world) setDown(down bool, targets ...probe.Target) {
	w.change(func() {
		for _, t := range targets {
			w.down[t] = down
		}
	})
}

func (w *world) setCut(h *host, cut bool, targets ...probe.Target) {
	w.change(func() {
		if w.cut[h.name] == nil {
			w.cut[h.name] = map[probe.Target]bool{}
		}
		for _, t := range targets {
			w.cut[h.name][t] = cut
		}
	})
}

// join starts a host with targets.
func (w *world) join(name string, probers Probers, targets ...probe.Target) *host {
	w.t.Helper()
	clock := &table.Clock{}
	h := &host{name: name, results: probe.NewResults(clock)}
	var hosts *roster.Roster
	var verdicts *fleet.Collection[Verdict]
	h.tree = w.store.Run(w.t, fleet.Options{Node: name, Clock: clock, Folders: append(roster.Folders(), Folder)}, func(tree *fleet.Tree) {
		hosts, verdicts = roster.New(tree, name, roster.Member{}, nil), Verdicts(tree)
	})
	h.tree.Before(func(c fleettest.Call) error {
		if slices.ContainsFunc(c.Ops, func(op kv.Op) bool { return strings.HasPrefix(op.Key, verdictKeys) && op.Verb != kv.Read }) {
			w.sent.Add(1)
		}
		return nil
	})
	<-h.tree.Folder(Folder).Ready()
	h.engine = &engine{w: w, name: name, own: probe.NewResults(clock), running: map[probe.Target]int{}}
	h.Share = New(Options{Node: name, Probers: probers, Own: h.engine.own, Results: h.results, Members: hosts.Rows(), WasThere: hosts.WasThere, Verdicts: verdicts,
		Tree: h.tree, Engine: h.engine})
	known, share := scope.Go(w.t, hosts.Run), scope.Go(w.t, h.Share.Run)
	h.end = sync.OnceFunc(func() { share(); known(); h.tree.End() })
	w.t.Cleanup(h.end)
	w.hosts[name] = h
	for _, t := range targets {
		h.Start(t, probe.Use{Namespace: "default", Begins: probe.Result{Health: w.restored}})
	}
	return h
}

// fleet starts n hosts with the same targets, and waits until they know each other and all targets.
func (w *world) fleet(n int, probers Probers, targets ...probe.Target) {
	w.t.Helper()
	for i := range n {
		w.join(fmt.Sprintf("host%d", i), probers, targets...)
	}
	w.sleep(2 * time.Minute)
}

// sleep lets time pass.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// kill ends a host like a crash: its session expires.
func (w *world) kill(h *host) {
	h.engine.mu.Lock()
	h.engine.dead = true
	h.engine.mu.Unlock()
	h.tree.SetDown(true)
	delete(w.hosts, h.name)
}

// probers returns the hosts that probe a target.
func (w *world) probers(t probe.Target) (names []string) {
	for name, h := range w.hosts {
		h.engine.mu.Lock()
		if _, runs := h.engine.running[t]; runs {
			names = append(names, name)
		}
		h.engine.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// all returns the health of a target on all hosts: one word if they agree.
func (w *world) all(t probe.Target) string {
	found := map[string][]string{}
	for name, h := range w.hosts {
		r, _, _ := h.results.Get(t)
		found[r.Health.String()] = append(found[r.Health.String()], name)
	}
	if len(found) == 1 {
		for word := range found {
			return word
		}
	}
	var out []string
	for word, names := range found {
		slices.Sort(names)
		if len(names) > 4 {
			names = []string{fmt.Sprint(len(names))}
		}
		out = append(out, word+": "+strings.Join(names, ","))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func (w *world) expect(when string, want string, targets ...probe.Target) {
	w.t.Helper()
	synctest.Wait()
	bad := 0
	for _, t := range targets {
		if got := w.all(t); got != want {
			if bad++; bad < 4 {
				w.t.Errorf("%s: %s is %q, want %q", when, t, got, want)
			}
		}
	}
	expect.AtMost(w.t, bad, 3, "%s: targets in all", when)
}

// names returns the names of the hosts, sorted.
func (w *world) names() []string { return slices.Sorted(maps.Keys(w.hosts)) }

// entries returns how many transactions with verdicts hosts have sent, also refused ones.
func (w *world) entries() int64 { return w.sent.Load() }

// votesAgainst returns how many votes against verdicts there are.
func (w *world) votesAgainst() (n int) {
	for _, p := range w.store.Pairs(verdictKeys) {
		var row struct{ Value Verdict }
		expect.Succeed(w.t, json.Unmarshal(p.Value, &row))
		n += len(row.Value.Against)
	}
	return n
}

// rows returns how many verdicts there are.
func (w *world) rows() int { return len(w.store.Pairs(verdictKeys)) }

func inWorld(t *testing.T, f func(*testing.T, *world)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}
