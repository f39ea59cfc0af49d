package sources

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sourceFunc is a Source with this function as its Run.
type sourceFunc func(ctx context.Context, out Sink) error

func (f sourceFunc) Run(ctx context.Context, out Sink) error { return f(ctx, out) }

// bench is a supervisor and a resolve stage with their tables.
type bench struct {
	*Supervisor
	resolve  *pipeline.Resolve
	services *table.Table[vip.ServiceKey, vip.Service]
	statuses *table.Table[string, Status]
	events   *event.Log
	logged   bytes.Buffer
	leases   leases
}

// leases has one lease for each name. A lease names a source.
type leases struct {
	*table.Table[ipam.Resource, *ipam.Lease]
}

func (l leases) Leases() table.Reader[ipam.Resource, *ipam.Lease] { return l }

func (l leases) SourceOf(k vip.ServiceKey) (source string, known bool) {
	for _, lease := range l.All() {
		if lease.Holders[0].Service == k {
			return lease.Holders[0].Source, true
		}
	}
	return "", false
}

func resourceOf(k vip.ServiceKey) ipam.Resource {
	return ipam.Resource{Addr: netip.AddrFrom4([4]byte{192, 0, 2, k.Name[0]})}
}

func (l leases) set(k vip.ServiceKey, source string) {
	l.Set(&ipam.Lease{Resource: resourceOf(k), Holders: []ipam.Holder{{Service: k, Source: source}}})
}

func newBench() *bench {
	clock := &table.Clock{}
	b := &bench{services: table.New(clock, vip.KeyOfService, nil), statuses: table.New(clock, KeyOfStatus, SameStatus),
		events: event.NewLog(100, time.Now), leases: leases{table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)}}
	b.resolve = pipeline.NewResolve(pipeline.ResolveOptions{Clock: clock, Leases: b.leases, Services: b.services, Events: b.events})
	b.Supervisor = NewSupervisor(Options{Resolver: b.resolve, Services: b.services, Statuses: b.statuses, Events: b.events, SyncTimeout: 30 * time.Second,
		Log: slog.New(slog.NewTextHandler(&b.logged, nil))})
	return b
}

// start runs both until the test ends.
func (b *bench) start(t *testing.T) {
	scope.Go(t, b.Run)
	scope.Go(t, b.resolve.Run)
}

func (b *bench) status(name string) Status {
	s, _, _ := b.statuses.Get(name)
	return s
}

func (b *bench) ready() bool {
	select {
	case <-b.services.Ready():
		return true
	default:
		return false
	}
}

// rows returns the services in effect as "name=source".
func (b *bench) rows() string {
	var out []string
	for key, s := range b.services.All() {
		out = append(out, key.Name+"="+s.Source)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (b *bench) kinds() []string {
	events, _ := b.events.Since(0)
	var out []string
	for _, e := range events {
		out = append(out, e.Kind)
	}
	return out
}

func key(name string) vip.ServiceKey { return vip.ServiceKey{Namespace: "default", Name: name} }

func service(name string) vip.Service { return vip.Service{Key: key(name), Origin: name + ".toml:1"} }

func services(names ...string) []vip.Service {
	var out []vip.Service
	for _, name := range names {
		out = append(out, service(name))
	}
	return out
}

// driven is a source with a sink that the test controls.
type driven struct{ out chan Sink }

func newDriven() *driven { return &driven{make(chan Sink, 1)} }

func (d *driven) Run(ctx context.Context, out Sink) error {
	d.out <- out
	<-ctx.Done()
	return ctx.Err()
}

// driving runs a test in a bubble with the sink of source s.
func driving(t *testing.T, kind string, f func(t *testing.T, b *bench, out Sink)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b, src := newBench(), newDriven()
		b.Add("s", kind, src)
		b.start(t)
		f(t, b, <-src.out)
	})
}

func TestReplaceStatesTheFullList(t *testing.T) {
	driving(t, "static", func(t *testing.T, b *bench, out Sink) {
		expect.False(t, b.ready(), "ready before the source has synced")
		out.Replace(services("a", "b"), []vip.Problem{{Message: "p"}})
		if !b.ready() || b.rows() != "a=s b=s" {
			t.Errorf("ready %v, rows %q", b.ready(), b.rows())
		}
		if got := b.status("s"); !got.Synced || got.Services != 2 || len(got.Problems) != 1 || got.LastSync != time.Now().UnixMilli() || got.Type != "static" {
			t.Errorf("status %+v", got)
		}
		feed := b.services.Watch()
		defer feed.Close()
		feed.TryNext()
		out.Replace(services("a", "b"), nil)
		if batch, _ := feed.TryNext(); len(batch) != 0 {
			t.Errorf("nothing changed, yet %v", batch)
		}
		changed := service("b")
		changed.Pool = "x"
		out.Replace([]vip.Service{changed, service("c")}, nil)
		batch, _ := feed.TryNext()
		if len(batch) != 3 || !batch[2].Deleted || b.rows() != "b=s c=s" {
			t.Errorf("changes %v, rows %q", batch, b.rows())
		}
	})
}

func TestPutAndDelete(t *testing.T) {
	driving(t, "rest", func(t *testing.T, b *bench, out Sink) {
		out.Replace(nil, nil)
		revs := out.Put(services("a", "b")...)
		if again := out.Put(service("a")); len(revs) != 2 || again[0] != revs[0] || revs[1] <= revs[0] {
			t.Errorf("revisions %v, then %v", revs, again)
		}
		time.Sleep(time.Second)
		before := b.statuses.Revision()
		if out.Put(services("a", "b")...); b.statuses.Revision() != before {
			t.Error("services that are unchanged change the status")
		}
		out.Delete(key("a"), key("nobody's"))
		expect.Equal(t, b.rows(), "b=s", "rows")
	})
}

// A source that fails is run again after a growing backoff. Its rows stay and are marked stale,
// with one event.
func TestFailedSourceRestartsWithBackoff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench()
		defer slog.SetDefault(slog.Default())
		slog.SetDefault(b.Supervisor.options.Log)
		var starts []time.Time
		b.Add("s", "static", sourceFunc(func(ctx context.Context, out Sink) error {
			starts = append(starts, time.Now())
			if len(starts) == 1 {
				out.Replace(services("a"), nil)
			}
			if len(starts) == 12 {
				out.Replace(services("a"), nil)
				<-ctx.Done()
				return ctx.Err()
			}
			if len(starts)%2 == 0 {
				panic("at the disco")
			}
			return errors.New("no route")
		}))
		b.start(t)
		synctest.Wait()
		if got := b.status("s"); got.Stale != "no route" || got.Restarts != 1 || b.rows() != "a=s" {
			t.Errorf("status %+v, rows %q", got, b.rows())
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := b.status("s"); got.Stale != "" || got.Restarts != 11 {
			t.Errorf("status %+v", got)
		}
		for i, want := 1, minBackoff; i < 12; i, want = i+1, min(2*want, maxBackoff) {
			if pause := starts[i].Sub(starts[i-1]); pause < want/2 || pause > want {
				t.Errorf("pause %d is %s, want %s to %s", i, pause, want/2, want)
			}
		}
		expect.SameList(t, b.kinds(), []string{"source_failed", "source_recovered"}, "events")
		if log := b.logged.String(); !strings.Contains(log, "at the disco") || !strings.Contains(log, "supervisor_test.go") {
			t.Errorf("no panic with its stack in\n%s", log)
		}
	})
}

func TestBackoffStartsAnewAfterAGoodRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench()
		runs := 0
		var ended time.Time
		var pauses []time.Duration
		b.Add("s", "static", sourceFunc(func(ctx context.Context, out Sink) error {
			if !ended.IsZero() {
				pauses = append(pauses, time.Since(ended))
			}
			if runs++; runs == 6 {
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
			}
			ended = time.Now()
			return errors.New("x")
		}))
		b.start(t)
		time.Sleep(time.Minute + 10*time.Second)
		synctest.Wait()
		if len(pauses) < 6 || pauses[4] < 800*time.Millisecond || pauses[5] > minBackoff {
			t.Errorf("pauses %v", pauses)
		}
	})
}

func TestSyncTimeoutGoesOnLoudly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, quick, slow := newBench(), newDriven(), newDriven()
		b.Add("quick", "static", quick)
		b.Add("slow", "consul", slow)
		b.start(t)
		(<-quick.out).Replace(services("a"), nil)
		late := <-slow.out
		time.Sleep(29 * time.Second)
		expect.False(t, b.ready(), "ready before the timeout")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		expect.True(t, b.ready(), "not ready after the timeout")
		if got := b.status("slow"); got.Synced || !strings.Contains(got.Stale, "30s") {
			t.Errorf("status %+v", got)
		}
		if got := b.kinds(); !slices.Equal(got, []string{"source_sync_timeout"}) || !strings.Contains(b.logged.String(), "level=ERROR") {
			t.Errorf("events %v, log %s", got, &b.logged)
		}
		late.Replace(services("b"), nil)
		if got := b.status("slow"); !got.Synced || got.Stale != "" || b.rows() != "a=quick b=slow" {
			t.Errorf("status %+v, rows %q", got, b.rows())
		}
	})
}

func TestStaleAndFresh(t *testing.T) {
	driving(t, "static", func(t *testing.T, b *bench, out Sink) {
		out.Replace(services("a"), nil)
		out.Stale(errors.New("gone"))
		out.Put(service("b"))
		if got := b.status("s"); got.Stale != "gone" || got.Services != 2 {
			t.Errorf("status %+v", got)
		}
		out.Stale(errors.New("gone for good"))
		out.Fresh()
		if got := b.status("s"); got.Stale != "" {
			t.Errorf("status %+v", got)
		}
		expect.SameList(t, b.kinds(), []string{"source_stale", "source_recovered"}, "events")
	})
}

// A reason that a server has chosen is one line of a kilobyte.
func TestStaleReason(t *testing.T) {
	driving(t, "static", func(t *testing.T, b *bench, out Sink) {
		out.Stale(errors.New("gone\x1b[2J\n" + strings.Repeat("and gone ", 1000)))
		got := b.status("s").Stale
		if !strings.HasPrefix(got, "gone [2J and gone") || len(got) > 1024 {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	})
}

func TestStaleIsLoggedOnceAMinute(t *testing.T) {
	driving(t, "static", func(t *testing.T, b *bench, out Sink) {
		out.Replace(services("a"), nil)
		lines := func() (warn, info int) {
			return strings.Count(b.logged.String(), `"source is stale"`), strings.Count(b.logged.String(), `"source recovered"`)
		}
		for i := range 100 {
			out.Stale(fmt.Errorf("%d are missing", 100-i))
		}
		if warn, info := lines(); warn != 1 || info != 0 || b.status("s").Stale != "1 are missing" {
			t.Errorf("%d warnings, %d recoveries, status %+v", warn, info, b.status("s"))
		}
		time.Sleep(time.Minute)
		out.Stale(errors.New("something else"))
		if warn, _ := lines(); warn != 2 {
			t.Errorf("%d warnings after another reason a minute later", warn)
		}
		out.Fresh()
		out.Fresh()
		if _, info := lines(); info != 1 {
			t.Errorf("%d recoveries logged", info)
		}
		out.Stale(errors.New("again"))
		if warn, _ := lines(); warn != 3 {
			t.Errorf("a new break is not logged: %d warnings", warn)
		}
	})
}

func TestNewProblemsAreLogged(t *testing.T) {
	driving(t, "static", func(t *testing.T, b *bench, out Sink) {
		problem := func(i int) vip.Problem {
			return vip.Problem{Code: vip.CodeInvalid, Place: fmt.Sprintf("web.toml:%d", i), Message: "unknown key", Hint: "remove it"}
		}
		var problems []vip.Problem
		for step, want := range []int{1, 2, 2} { // the third one repeats the second
			if step < 2 {
				problems = append(problems, problem(step))
			}
			out.Replace(services("a"), slices.Clone(problems))
			got := strings.Count(b.logged.String(), `problem="web.toml:`)
			expect.Equal(t, got, want, "step %d: %d problems logged, want %d:\n%s", step, got, want, b.logged.String())
		}
		out.Problems(nil)
		expect.Equal(t, strings.Count(b.logged.String(), "no problems left"), 1, "ends logged")
		for i := range 1000 {
			problems = append(problems, problem(i))
		}
		before := strings.Count(b.logged.String(), "\n")
		out.Problems(problems)
		lines := strings.Count(b.logged.String(), "\n") - before
		expect.Equal(t, lines, loggedProblems+1, "%d lines for %d problems", lines, len(problems))
		if want := fmt.Sprintf("count=%d", len(problems)-loggedProblems); !strings.Contains(b.logged.String(), want) {
			t.Errorf("the log does not have %s:\n%s", want, b.logged.String())
		}
	})
}

func TestResync(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, src := newBench(), newDriven()
		b.Add("s", "static", src)
		b.start(t)
		first := <-src.out
		first.Replace(services("a"), nil)
		must.Succeed(t, b.Resync("s"))
		second := <-src.out
		if got := b.status("s"); got.Restarts != 0 || got.Stale != "" || b.rows() != "a=s" {
			t.Errorf("status %+v, rows %q", got, b.rows())
		}
		second.Replace(services("b"), nil)
		// Calls of a leftover from the previous run are ignored.
		first.Put(service("x"))
		first.Delete(key("b"))
		first.Replace(nil, nil)
		expect.Equal(t, b.rows(), "b=s", "rows after the end of a run")
		if err := b.Resync("t"); err == nil || !strings.Contains(err.Error(), `"t"`) {
			t.Errorf("of an unknown source: %v", err)
		}
	})
}

func TestResyncCutsThePauseShort(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench()
		runs := 0
		b.Add("s", "static", sourceFunc(func(context.Context, Sink) error { runs++; return errors.New("x") }))
		b.start(t)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		before := runs
		must.Succeed(t, b.Resync("s"))
		synctest.Wait()
		expect.Equal(t, runs, before+1, "runs after the resync, %d before", before)
	})
}

func TestNameConflicts(t *testing.T) {
	tests := []struct {
		what  string
		prior string // source that had "web" before
		steps []string
		want  []string // rows after each step

		shared bool // with other hosts
	}{
		{"the first keeps the name", "", []string{"a: web", "b: web"}, []string{"web=a", "web=a"}, false},
		{"the later takes over when the first goes", "", []string{"a: web", "b: web db", "a:"}, []string{"web=a", "db=b web=a", "db=b web=b"}, false},
		{"the later may go, too", "", []string{"a: web", "b: web", "b:", "a:"}, []string{"web=a", "web=a", "web=a", ""}, false},
		{"the prior source keeps the name though it syncs later", "b", []string{"a: web db", "b: web"}, []string{"db=a", "db=a web=b"}, false},
		{"the prior source may not want it any more", "b", []string{"a: web", "b: db"}, []string{"", "db=b web=a"}, false},
		{"a prior source that is no more doesn't count", "gone", []string{"a: web"}, []string{"web=a"}, false},
		{"a prior source that never syncs loses at the timeout", "b", []string{"a: web", "wait", "b: web"}, []string{"", "web=a", "web=a"}, false},
		{"who claims it has it when the fleet's lease says so", "", []string{"a: web db", "b: web", "lease: b", "lease: b", "b:", "b: web", "lease: a", "a:"},
			[]string{"db=a web=a", "db=a web=a", "db=a web=b", "db=a web=b", "db=a web=a", "db=a web=b", "db=a web=a", "web=b"}, true},
		{"what is kept for one that has not synced is not kept when the fleet's lease names another", "b", []string{"a: web", "lease: a", "b: web"},
			[]string{"", "web=a", "web=a"}, true},
		{"nor when it names a source that is no more", "b", []string{"a: web", "lease: gone"}, []string{"", "web=a"}, true},
		{"nor longer than until all have synced, whoever had it then", "b", []string{"a: web", "freed", "b: db"}, []string{"", "", "db=b web=a"}, true},
		{"a source that is no more has none of the fleet's names", "", []string{"a: web", "b: web", "lease: gone"}, []string{"web=a", "web=a", "web=a"}, true},
		{"who claims it later has it, too", "", []string{"a: web", "lease: b", "b: web db", "lease: a"}, []string{"web=a", "web=a", "db=b web=b", "db=b web=a"}, true},
	}
	for _, test := range tests {
		bubble.Run(t, test.what, func(t *testing.T) {
			b := newBench()
			b.resolve.Shared = test.shared
			if test.prior != "" {
				b.leases.set(key("web"), test.prior)
			}
			sinks := map[string]Sink{}
			drivens := map[string]*driven{"a": newDriven(), "b": newDriven()}
			b.Add("a", "static", drivens["a"])
			b.Add("b", "rest", drivens["b"])
			b.start(t)
			for name, d := range drivens {
				sinks[name] = <-d.out
			}
			for i, step := range test.steps {
				name, list, says := strings.Cut(step, ":")
				if name == "lease" {
					b.leases.set(key("web"), strings.TrimSpace(list))
					synctest.Wait()
				} else if name == "freed" {
					b.leases.Delete(resourceOf(key("web")))
				} else if says {
					sinks[name].Replace(services(strings.Fields(list)...), nil)
				} else {
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				expect.Equal(t, b.rows(), test.want[i], "after %q", step)
			}
		})
	}
}

// conflict is the problem of a source's claim to web.
func (b *bench) conflict(source string) vip.Problem {
	c, _, _ := b.resolve.Conflicts().Get(pipeline.ConflictKey{Service: key("web"), Source: source})
	return c.Problem
}

func TestConflictIsReported(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b, first, second := newBench(), newDriven(), newDriven()
		b.Add("static", "static", first)
		b.Add("rest", "rest", second)
		b.start(t)
		holder, loser := <-first.out, <-second.out
		holder.Replace(services("web"), nil)
		loser.Replace(nil, []vip.Problem{{Message: "its own"}})
		expect.Equal(t, loser.Put(service("web"))[0], 0, "held aside, yet revision")
		loser.Put(service("web"))
		got := b.status("rest")
		if len(got.Problems) != 1 || got.Services != 1 || b.resolve.Conflicts().Len() != 1 {
			t.Fatalf("status %+v, %d conflicts", got, b.resolve.Conflicts().Len())
		}
		if p := b.conflict("rest"); p.Code != vip.CodeNameTaken || p.Service != "web" || p.Message != `source "static" holds the name, at web.toml:1` || p.Hint == "" {
			t.Errorf("problem %+v", p)
		}
		holder.Delete(key("web"))
		if b.resolve.Conflicts().Len() != 0 || b.rows() != "web=rest" {
			t.Errorf("%d conflicts, rows %q", b.resolve.Conflicts().Len(), b.rows())
		}
		expect.SameList(t, b.kinds(), []string{"service_name_taken", "service_name_freed"}, "events")
	})
}

// Random calls in random order. A name is in effect exactly if a source claims it, or if it is kept
// for a source that has not synced. The row is a claimant's. The source in effect keeps the name
// while it claims it. Nothing else is left.
func TestNamesAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench()
		all := []string{"a", "b", "c"}
		sinks := map[string]*sink{}
		for _, name := range all {
			b.Add(name, "static", nil)
		}
		for _, src := range b.sources {
			sinks[src.name] = src.begin()
		}
		synced := map[string]bool{}
		for _, name := range []string{"x", "y", "z"} {
			if prior := rapid.SampledFrom([]string{"", "a", "b", "c", "gone"}).Draw(t, "prior of "+name); prior != "" {
				b.leases.set(key(name), prior)
			}
		}
		said := map[string]map[vip.ServiceKey]vip.Service{"a": {}, "b": {}, "c": {}}
		held := map[vip.ServiceKey]string{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			who := rapid.SampledFrom(all).Draw(t, "who")
			row := service(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name"))
			row.Pool = rapid.SampledFrom([]string{"p", "q"}).Draw(t, "pool")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				list := []vip.Service{row}
				if rapid.Bool().Draw(t, "empty") {
					list = nil
				}
				sinks[who].Replace(list, nil)
				synced[who] = true
				said[who] = map[vip.ServiceKey]vip.Service{}
				for _, s := range list {
					said[who][s.Key] = s
				}
			case 1, 2:
				sinks[who].Put(row)
				said[who][row.Key] = row
			case 3:
				sinks[who].Delete(row.Key)
				delete(said[who], row.Key)
			}
			for _, name := range []string{"x", "y", "z"} {
				k := key(name)
				got, _, there := b.services.Get(k)
				var claimants []string
				for _, c := range all {
					if _, claims := said[c][k]; claims {
						claimants = append(claimants, c)
					}
				}
				prior, _ := b.leases.SourceOf(k)
				kept := slices.Contains(all, prior) && !synced[prior] && !slices.Contains(claimants, prior) && held[k] == ""
				switch {
				case len(claimants) == 0 || kept:
					must.False(t, there, "%s is in effect for %s, claimed by %v, prior %q", name, got.Source, claimants, prior)
				case !there:
					t.Fatalf("%s is not in effect, claimed by %v", name, claimants)
				default:
					if want := said[got.Source][k]; !slices.Contains(claimants, got.Source) || want.Pool != got.Pool {
						t.Fatalf("%s is in effect with %+v, %s says %+v", name, got, got.Source, want)
					}
					if was := held[k]; was != got.Source && slices.Contains(claimants, was) {
						t.Fatalf("%s went from %s to %s, though the first still claims it", name, was, got.Source)
					}
				}
				held[k] = got.Source
			}
		}
		for _, who := range all {
			sinks[who].Replace(nil, nil)
		}
		if b.services.Len()+b.resolve.Conflicts().Len() > 0 {
			t.Fatalf("left behind: %v %v", maps.Collect(b.services.All()), maps.Collect(b.resolve.Conflicts().All()))
		}
		for _, src := range b.sources {
			if src.claims.Len() > 0 {
				t.Fatalf("left behind of %s: %v", src.name, maps.Collect(src.claims.All()))
			}
		}
	})
}

func TestNoSourcesIsReady(t *testing.T) {
	b := newBench()
	expect.True(t, b.ready(), "without sources there is nothing to wait for")
	b.start(t)
}

func TestAddRefusesANameTwice(t *testing.T) {
	b := newBench()
	b.Add("s", "static", newDriven())
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), `"s"`) {
			t.Errorf("recovered %v", r)
		}
	}()
	b.Add("s", "rest", newDriven())
}

// The problem of a waiting source names the current holder and its place.
func TestConflictFollowsTheHolder(t *testing.T) {
	b := newBench()
	b.leases.set(key("web"), "static")
	b.Add("static", "static", nil)
	b.Add("rest", "rest", nil)
	holder, loser := b.sources[0].begin(), b.sources[1].begin()
	message := func() string {
		return b.conflict("rest").Message
	}
	loser.Replace(services("web"), nil)
	expect.Contains(t, message(), "has not synced yet")
	holder.Replace(services("web"), nil)
	expect.Equal(t, message(), `source "static" holds the name, at web.toml:1`)
	moved := service("web")
	moved.Origin = "other.toml:5"
	holder.Put(moved)
	expect.Equal(t, message(), `source "static" holds the name, at other.toml:5`)
}

// A source that removes its services hands over its names one by one. The cost of one must not be
// O(all).
func TestHandOverOfManyNames(t *testing.T) {
	writes := func(n int) (per float64) {
		b := newBench()
		b.Add("static", "static", nil)
		b.Add("rest", "rest", nil)
		var all []vip.Service
		for i := range n {
			all = append(all, service(fmt.Sprint("s", i)))
		}
		holder, successor := b.sources[0].begin(), b.sources[1].begin()
		holder.Replace(all, nil)
		successor.Replace(all, nil)
		return testing.AllocsPerRun(1, func() {
			holder.Replace(nil, nil) // the first run, not counted, hands over to the successor; the second hands back
			holder, successor = successor, holder
			successor.Replace(all, nil)
		}) / float64(n)
	}
	if small, large := writes(20), writes(2_000); large > small*2 {
		t.Errorf("%.1f allocations a name with 20 names, %.1f with 2,000", small, large)
	}
}

// The cost of changing one service depends neither on earlier calls nor on the claims of other
// sources.
func TestPutCostDoesNotGrow(t *testing.T) {
	cost := func(rows int) float64 {
		b := newBench()
		b.Add("other", "static", nil)
		var taken []vip.Service
		for i := range rows {
			taken = append(taken, service(fmt.Sprint("taken", i)))
		}
		b.sources[0].begin().Replace(taken, nil)
		b.Add("s", "static", nil)
		out := b.sources[1].begin()
		var all []vip.Service
		for i := range rows {
			all = append(all, service(fmt.Sprint("s", i)))
		}
		out.Replace(slices.Concat(all, taken), nil)
		i := 0
		return testing.AllocsPerRun(100, func() {
			s := all[i%rows]
			s.Pool = fmt.Sprint(i)
			out.Put(s)
			i++
		})
	}
	if small, large := cost(10), cost(5_000); large > small*1.5 {
		t.Errorf("%v allocations at 10 services, %v at 5,000", small, large)
	}
}

// A part beside a source runs again after a panic, and the panic ends nothing else.
func TestKeepRunning(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBench()
		ctx, cancel := context.WithCancel(t.Context())
		var starts []time.Time
		err := KeepRunning(ctx, "the writer", b.options.Log, func(ctx context.Context) error {
			if starts = append(starts, time.Now()); len(starts) < 4 {
				panic("at the disco")
			}
			cancel()
			return ctx.Err()
		})
		expect.True(t, errors.Is(err, context.Canceled), "error %v", err)
		expect.Len(t, starts, 4, "starts")
		if pause := starts[3].Sub(starts[2]); pause < 2*minBackoff || pause > 4*minBackoff {
			t.Errorf("third pause: %s", pause)
		}
		expect.Contains(t, b.logged.String(), `part="the writer" err="panic: at the disco"`)
	})
}
