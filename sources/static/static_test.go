package static

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources/cache"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Sink that stores and counts the calls.
type recorder struct {
	mu                        sync.Mutex
	rows                      map[vip.ServiceKey]vip.Service
	problems                  []vip.Problem
	stale                     string
	synced                    bool
	replaces, puts, deletions int
	called                    chan struct{} // has one token after each call
}

func newRecorder() *recorder {
	return &recorder{rows: map[vip.ServiceKey]vip.Service{}, called: make(chan struct{}, 1)}
}

func (r *recorder) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	select {
	case r.called <- struct{}{}:
	default:
	}
}

func (r *recorder) Replace(services []vip.Service, problems []vip.Problem) {
	r.locked(func() {
		r.rows = map[vip.ServiceKey]vip.Service{}
		for _, s := range services {
			r.rows[s.Key] = s
		}
		r.problems, r.synced, r.stale = problems, true, ""
		r.replaces++
	})
}

func (r *recorder) Put(services ...vip.Service) []uint64 {
	r.locked(func() {
		for _, s := range services {
			r.rows[s.Key] = s
		}
		r.puts += len(services)
	})
	return nil
}

func (r *recorder) Delete(keys ...vip.ServiceKey) {
	r.locked(func() {
		for _, k := range keys {
			delete(r.rows, k)
		}
		r.deletions += len(keys)
	})
}

func (r *recorder) Problems(problems []vip.Problem) { r.locked(func() { r.problems = problems }) }
func (r *recorder) Stale(err error)                 { r.locked(func() { r.stale = err.Error() }) }
func (r *recorder) Fresh()                          { r.locked(func() { r.stale = "" }) }

// String returns "name:port" of the services in effect, sorted.
func (r *recorder) String() string {
	var out []string
	for k, s := range r.rows {
		out = append(out, fmt.Sprintf("%s:%d", k, s.Ports[0].Port))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// bench is a directory with a source.
type bench struct {
	*Source
	t        *testing.T
	dir      string
	db       *store.DB
	sink     *recorder
	services *table.Table[vip.ServiceKey, vip.Service] // in effect at the end
	cached   *cache.Source
	priors   int // calls of Prior

	pools []spec.Pool
}

func newBench(t *testing.T) *bench {
	root := t.TempDir()
	db := must.Get(store.Open(filepath.Join(root, "ironvip.db")))(t)
	t.Cleanup(func() { db.Close() })
	b := &bench{t: t, dir: filepath.Join(root, "services.d"), db: db}
	must.Succeed(t, os.Mkdir(b.dir, 0o755))
	b.restart()
	return b
}

// begun returns a source of an empty directory that has begun.
func begun(t *testing.T) *bench {
	b := newBench(t)
	b.begin()
	return b
}

// restart ends the source and creates it again, as a restart of the agent does. The cache keeps the services in effect.
func (b *bench) restart() {
	rows, log := store.NewBucket[cache.Row](b.db, "cache static"), slog.New(slog.DiscardHandler)
	if b.Source != nil {
		for _, s := range b.sink.rows {
			s.Source = b.o.Name
			b.services.Set(s)
		}
		ended, end := context.WithCancel(b.t.Context())
		end()
		must.Is(b.t, b.cached.Keep(ended), context.Canceled, "Keep")
	}
	b.sink, b.priors = newRecorder(), 0
	b.services = table.New(&table.Clock{}, vip.KeyOfService, nil)
	prior := func() []vip.Service {
		b.priors++
		services, _ := cache.Restore(Type, rows, log)
		return services
	}
	b.Source = New(Options{Config: Config{Path: b.dir}, Prior: prior, Log: log, Pools: func() []spec.Pool { return b.pools }, Debounce: 5 * time.Millisecond})
	b.cached = cache.New(Type, b.Source, rows, b.services, log)
}

// begin performs the start of Run without its loop.
func (b *bench) begin() {
	ctx, cancel := context.WithCancel(b.t.Context())
	cancelled := make(chan struct{})
	go func() {
		defer close(cancelled)
		<-b.sink.called
		cancel()
	}()
	must.Is(b.t, b.cached.Run(ctx, b.sink), context.Canceled, "Run")
	<-cancelled
	b.mu.Lock()
	defer b.mu.Unlock()
	b.out = b.sink
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) write(name string, text string) {
	b.t.Helper()
	must.Succeed(b.t, os.WriteFile(b.path(name), []byte(text), 0o644))
}

func (b *bench) remove(name string) {
	b.t.Helper()
	must.Succeed(b.t, os.RemoveAll(b.path(name)))
}

// service returns one block; port 0 makes it invalid.
func service(name string, port int) string {
	return fmt.Sprintf("[[service]]\nname = %q\nports = [{ port = %d }]\n", name, port)
}

// expect reads changes and checks the services in effect and the problems. Wrong has the beginning
// of each problem as "place: rest".
func (b *bench) expect(want string, wrong ...string) {
	b.t.Helper()
	b.refresh(b.t.Context(), nil, true)
	b.inEffect(want, wrong...)
}

func (b *bench) inEffect(want string, wrong ...string) {
	b.t.Helper()
	b.sink.mu.Lock()
	defer b.sink.mu.Unlock()
	expect.Equal(b.t, b.sink.String(), want, "in effect")
	var problems []string
	for _, p := range b.sink.problems {
		problems = append(problems, strings.TrimPrefix(p.Error(), b.dir+"/")+" | "+p.Hint)
	}
	for i := range max(len(problems), len(wrong)) {
		if i >= len(problems) || i >= len(wrong) || !strings.HasPrefix(problems[i], wrong[i]) {
			b.t.Fatalf("problems %q, want %q", problems, wrong)
		}
	}
}

func TestFilesComeAndGo(t *testing.T) {
	b := begun(t)
	b.inEffect("")
	expect.True(t, b.sink.synced, "an empty directory is a full list, too")
	b.write("a.toml", service("web", 80)+service("db", 5432))
	b.write("b.toml", service("dns", 53))
	b.write(".hidden.toml", service("hidden", 1))
	b.write("b.toml~", service("backup", 1))
	b.expect("db:5432 dns:53 web:80")
	b.write("a.toml", service("web", 81))
	b.expect("dns:53 web:81")
	b.remove("b.toml")
	b.expect("web:81")
	b.remove("a.toml")
	b.expect("") // emptied on purpose
}

func TestBadServiceKeepsItsLastGoodVersion(t *testing.T) {
	b := begun(t)
	b.write("a.toml", service("web", 80)+service("db", 5432))
	b.expect("db:5432 web:80")
	b.write("a.toml", service("web", 0)+service("db", 5433)+service("new", 0))
	b.expect("db:5433 web:80",
		`a.toml:3: service "web": ports[0].port: invalid port 0: must be 1 to 65535 | its last good version stays in effect`,
		`a.toml:9: service "new": ports[0].port: invalid port 0: must be 1 to 65535 | `)
	b.write("a.toml", service("db", 5433))
	b.expect("db:5433")
	// A block without a usable name may be any of them.
	b.write("a.toml", service("Db", 5434)+service("x", 1))
	b.expect("db:5433 x:1", `a.toml:2: service "Db": name: "Db" is not a DNS label: use a-z, 0-9 and inner "-" | use 1 to 63 of a-z, 0-9 and inner "-"; the service`)
}

// A refused edit causes one event, and its correction another.
func TestRefusedEditsAreEvents(t *testing.T) {
	b := newBench(t)
	events := event.NewLog(100, time.Now)
	b.o.Events = events
	b.write("web.toml", service("web", 80))
	b.begin()
	var last uint64
	want := func(kinds ...string) {
		t.Helper()
		all, _ := events.Since(last)
		var got []string
		for _, e := range all {
			got = append(got, e.Kind)
			last = e.ID
			if e.Kind == "services_refused" && (e.Service != "web" || !strings.HasPrefix(e.Object, b.path("web.toml")) || e.Message == "") {
				t.Errorf("%+v", e)
			}
		}
		expect.SameList(t, got, kinds, "events")
	}
	want()
	b.write("web.toml", service("web", 80)+"schedular = 'rr'\n")
	b.Reload(t.Context())
	want("services_refused")
	b.Reload(t.Context())
	want()
	b.write("web.toml", service("web", 81))
	b.Reload(t.Context())
	want("services_accepted")
}

func TestBrokenFileKeepsItsServices(t *testing.T) {
	for what, test := range map[string]struct{ text, wrong string }{
		"cut off":     {"[[service]]\nname = \"we", `a.toml:2: not valid TOML`},
		"empty":       {"", `a.toml: is empty, as after a write that was cut off | delete the file to remove its services; the 2 services`},
		"white space": {" \n\n", `a.toml: is empty`},
		"not UTF-8":   {"\xff", `a.toml:1: not UTF-8 text`},
		"huge":        {strings.Repeat("#", 4<<20+1), `a.toml: has 4194305 bytes, more than the 4 MiB`},
	} {
		t.Run(what, func(t *testing.T) {
			b := begun(t)
			b.write("a.toml", service("web", 80)+service("db", 5432))
			b.write("b.toml", service("dns", 53))
			b.expect("db:5432 dns:53 web:80")
			b.write("a.toml", test.text)
			b.write("b.toml", service("dns", 54))
			b.expect("db:5432 dns:54 web:80", test.wrong)

			// This also applies after a restart of the agent.
			b.restart()
			b.begin()
			b.inEffect("db:5432 dns:54 web:80", test.wrong)
			b.write("a.toml", "# nothing more here\n")
			b.expect("dns:54")
		})
	}
}

func TestFileThatIsNoFileKeepsItsServices(t *testing.T) {
	b := begun(t)
	b.write("a.toml", service("web", 80))
	b.expect("web:80")
	b.remove("a.toml")
	must.Succeed(t, os.Symlink("gone", b.path("a.toml")))
	b.expect("web:80", `a.toml: no such file or directory | it is a link to gone`)
	b.write("gone", service("web", 81)) // no event and no stamp: links are always read again
	b.expect("web:81")
}

func TestDuplicates(t *testing.T) {
	b := begun(t)
	b.write("b.toml", service("web", 80))
	b.expect("web:80")
	b.write("a.toml", "\n"+service("web", 81))
	taken := func(at, by string) string {
		return at + `: service "web": name: "web" is the name of the service at ` + b.path(by) + `, too | rename or remove`
	}
	b.expect("web:80", taken("a.toml:2", "b.toml:1")) // the service in effect stays
	b.restart()
	b.begin()
	b.inEffect("web:80", taken("a.toml:2", "b.toml:1")) // also after a restart
	b.write("b.toml", "\n\n"+service("web", 82))
	b.expect("web:82", taken("a.toml:2", "b.toml:3"))
	b.remove("b.toml")
	b.expect("web:81")
	b.write("b.toml", service("web", 82))
	b.expect("web:81", taken("b.toml:1", "a.toml:2"))
	b.write("b.toml", service("other", 82))
	b.expect("other:82 web:81")
}

func TestVanishedDirectoryKeepsEverything(t *testing.T) {
	b := begun(t)
	b.write("a.toml", service("web", 80))
	b.expect("web:80")
	away := b.dir + ".away"
	move := func(from, to string) {
		t.Helper()
		must.Succeed(t, os.Rename(from, to))
	}
	move(b.dir, away)
	b.expect("web:80")
	if !strings.Contains(b.sink.stale, b.dir) || !strings.Contains(b.sink.stale, "no such file") {
		t.Errorf("stale: %q", b.sink.stale)
	}
	if problems := b.Reload(t.Context()); len(problems) != 1 || problems[0].Hint == "" {
		t.Errorf("reload: %v", problems)
	}
	b.inEffect("web:80")

	// After a new start the agent finds no directory and keeps the services.
	b.restart()
	b.begin()
	b.inEffect("web:80")
	expect.True(t, b.sink.stale != "", "not stale")
	move(away, b.dir)
	b.expect("web:80")
	expect.Equal(t, b.sink.stale, "", "stale")

	// Another directory that is empty is probably a lost mount. A reload confirms it.
	move(b.dir, away)
	must.Succeed(t, os.Mkdir(b.dir, 0o755))
	b.expect("web:80")
	expect.Contains(t, b.sink.stale, "replaced by an empty one", "stale")
	expect.Empty(t, b.Reload(t.Context()), "reload")
	b.inEffect("")
}

func TestUnknownDirectoryIsNoFullList(t *testing.T) {
	b := newBench(t)
	must.Succeed(t, os.Remove(b.dir))
	b.begin()
	if b.sink.synced || b.sink.stale == "" {
		t.Errorf("synced %v, stale %q", b.sink.synced, b.sink.stale)
	}
	must.Succeed(t, os.Mkdir(b.dir, 0o755))
	b.refresh(t.Context(), nil, true)
	if !b.sink.synced || b.sink.stale != "" {
		t.Errorf("with the directory there: synced %v, stale %q", b.sink.synced, b.sink.stale)
	}
}

// A directory that is not configured may be missing, unless it had services.
func TestOptionalDirectoryMayBeMissing(t *testing.T) {
	b := newBench(t)
	must.Succeed(t, os.Remove(b.dir))
	b.o.Optional = true
	b.begin()
	expect.Empty(t, b.Reload(t.Context()), "an optional directory is missed")
	must.Succeed(t, os.Mkdir(b.dir, 0o755))
	b.write("a.toml", service("web", 80))
	b.Reload(t.Context())
	expect.Equal(t, b.sink.String(), "web:80", "in effect")
	must.Succeed(t, os.RemoveAll(b.dir))
	expect.Len(t, b.Reload(t.Context()), 1, "a directory that held something vanished")
	expect.Equal(t, b.sink.String(), "web:80", "in effect")
}

// An event that names a file costs a look at this file only, however many others there are.
func TestAnEventReadsItsFileOnly(t *testing.T) {
	b := newBench(t)
	b.write("a.toml", service("a", 80))
	b.write("b.toml", service("b", 80))
	b.begin()
	events := func(names ...string) {
		dirty := map[string]struct{}{}
		for _, name := range names {
			dirty[b.path(name)] = struct{}{}
		}
		b.refresh(t.Context(), dirty, false)
	}
	b.write("a.toml", service("a", 81))
	b.write("b.toml", service("b", 81))
	events("a.toml")
	b.inEffect("a:81 b:80")
	events("b.toml")
	b.inEffect("a:81 b:81")

	b.write("c.toml", service("c", 80)+service("a", 90))
	b.remove("b.toml")
	events("b.toml", "c.toml", "neverthere.toml")
	b.inEffect("a:81 c:80", `c.toml:4: service "a": name: "a" is the name of the service at`)
	b.remove("a.toml")
	events("a.toml")
	b.inEffect("a:90 c:80")
	b.write("c.toml", service("c", 0))
	events("c.toml")
	b.inEffect("c:80", "c.toml:3")
	b.write("c.toml", service("c", 82))
	events("c.toml")
	b.inEffect("c:82")

	// Another directory is read as a whole, and nothing is removed if there is none.
	do(t, os.Rename(b.dir, b.dir+".old"))
	events("c.toml")
	b.inEffect("c:82")
	do(t, os.Mkdir(b.dir, 0o755))
	b.write("d.toml", service("d", 80))
	events("e.toml")
	b.inEffect("d:80")
}

func TestPollDoesNotTakeAFileAwayAtOnce(t *testing.T) {
	b := begun(t)
	b.write("a.toml", service("web", 80))
	b.expect("web:80")
	b.remove("a.toml")
	expect.True(t, b.poll(t.Context()), "the poll does not ask for a second look")
	b.inEffect("web:80")
	b.expect("")
}

func TestUnchangedFileIsNotParsed(t *testing.T) {
	b := begun(t)
	old := time.Now().Add(-time.Hour)
	b.write("a.toml", service("web", 80))
	touch := func(at time.Time) {
		t.Helper()
		must.Succeed(t, os.Chtimes(b.path("a.toml"), at, at))
	}
	touch(old)
	b.expect("web:80")
	before := b.files.parsed.Load()
	b.expect("web:80")
	touch(old.Add(time.Second))
	b.expect("web:80")
	expect.Equal(t, b.files.parsed.Load(), before, "parsed %d times more", b.files.parsed.Load()-before)
	// The size and time are the same, as on a coarse file system. An event reveals the change.
	b.write("a.toml", service("web", 81))
	touch(old.Add(time.Second))
	b.refresh(t.Context(), map[string]struct{}{b.path("a.toml"): {}}, false)
	b.inEffect("web:81")
}

// A file that changed just before it was read is read again. Within the grain of the file system's
// clock its time may stay the same.
func TestRecentFileIsNotTrusted(t *testing.T) {
	b := begun(t)
	at := time.Now()
	b.write("a.toml", service("web", 80))
	must.Succeed(t, os.Chtimes(b.path("a.toml"), at, at))
	b.expect("web:80")
	b.write("a.toml", service("web", 81))
	must.Succeed(t, os.Chtimes(b.path("a.toml"), at, at))
	b.expect("web:81")
}

// Services with changed lines but equal definitions are unchanged.
func TestOneChangeOfManyIsOnePut(t *testing.T) {
	b := newBench(t)
	old := time.Now().Add(-time.Hour)
	const files, each = 100, 10
	file := func(i int) string {
		var text strings.Builder
		for j := range each {
			text.WriteString(service(fmt.Sprintf("s%d-%d", i, j), 80))
		}
		return text.String()
	}
	for i := range files {
		name := fmt.Sprintf("f%03d.toml", i)
		b.write(name, file(i))
		must.Succeed(t, os.Chtimes(b.path(name), old, old))
	}
	b.begin()
	must.Equal(t, len(b.sink.rows), files*each, "services")
	b.sink.replaces = 0
	b.files.parsed.Store(0)
	b.write("f007.toml", service("s-new", 80)+strings.Replace(file(7), "80", "81", 1))
	b.refresh(t.Context(), nil, true)
	if b.files.parsed.Load() != 1 || b.sink.puts != 2 || b.sink.replaces != 0 || b.sink.deletions != 0 {
		t.Errorf("%d files parsed, %d puts, %d replaces, %d deletions; want 1, 2, 0, 0", b.files.parsed.Load(), b.sink.puts, b.sink.replaces, b.sink.deletions)
	}
	b.write("f007.toml", file(7))
	b.refresh(t.Context(), nil, true)
	if b.sink.puts != 3 || b.sink.deletions != 1 || b.sink.replaces != 0 {
		t.Errorf("%d puts, %d deletions, %d replaces; want 3, 1, 0", b.sink.puts, b.sink.deletions, b.sink.replaces)
	}
}

func TestReloadChecksAgainstThePresentPools(t *testing.T) {
	b := begun(t)
	b.write("a.toml", service("web", 80))
	b.expect("web:80")
	b.write("a.toml", service("web", 81)+"backends = [{address = '10.0.0.1'}]")
	b.expect("web:81")
	b.pools = []spec.Pool{{Name: "p", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}}
	b.expect("web:81") // the file has not changed
	problems := b.Reload(t.Context())
	if len(problems) != 1 || !strings.Contains(problems[0].Message, `10.0.0.1 is in VIP pool "p"`) {
		t.Errorf("reload: %v", problems)
	}
	b.inEffect("web:81", `a.toml:4: service "web": backends[0].address`)
	b.pools = nil
	expect.Empty(t, b.Reload(t.Context()), "reload")
	b.inEffect("web:81")
}
