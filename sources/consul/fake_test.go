package consul

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// fake is a catalog in memory that answers like Consul. A query with an index blocks until there is
// a newer result or its wait is over.
type fake struct {
	mu       sync.Mutex
	index    uint64
	used     map[uint64]bool // indexes that were used; each has one meaning only
	listed   uint64          // index of the list
	services map[string]*fakeService
	changed  chan struct{} // closed at each change
	replaced chan struct{} // closed when another state is restored
	fault    func(name string) error
	filtered map[string]bool // the token may not read these
	streamed bool            // all answers are

	held      map[string]int // blocking queries, "" for the list
	most      int            // their maximum at one time
	questions map[string]int
	broken    []string // violated rules of blocking queries
}

type fakeService struct {
	index     uint64
	instances []instance
	changed   chan struct{}
}

func newFake() *fake {
	return &fake{index: 10, used: map[uint64]bool{}, listed: 10, services: map[string]*fakeService{}, changed: make(chan struct{}), replaced: make(chan struct{}), filtered: map[string]bool{}, held: map[string]int{}, questions: map[string]int{}}
}

func (f *fake) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// set sets the instances of a service; without lines it removes the service.
func (f *fake) set(name string, lines ...string) {
	f.locked(func() {
		f.next(f.index + 1)
		s := f.services[name]
		if (s == nil) != (len(lines) == 0) || s != nil && len(s.instances) != len(lines) {
			f.listed = f.index
		}
		if s == nil {
			s = &fakeService{}
		} else {
			close(s.changed)
		}
		s.index, s.instances, s.changed = f.index, instances(lines...), make(chan struct{})
		if f.services[name] = s; len(lines) == 0 {
			delete(f.services, name)
		}
		f.wake()
	})
}

// wake makes blocking queries check again. The caller holds mu.
func (f *fake) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// next moves to an unused index, this one or a later one.
func (f *fake) next(index uint64) {
	for f.used[index] {
		index++
	}
	f.index, f.used[index] = index, true
}

// reset replaces the state, as a restore does: the query for the list ends with the answer of the replaced
// state, and a later one waits until the index has passed its own.
func (f *fake) reset(index uint64, services map[string][]instance) {
	f.locked(func() {
		for _, s := range f.services {
			close(s.changed)
		}
		f.next(index)
		index = f.index
		f.listed, f.services = index, map[string]*fakeService{}
		for name, of := range services {
			f.services[name] = &fakeService{index: index, instances: of, changed: make(chan struct{})}
		}
		close(f.replaced)
		f.replaced = make(chan struct{})
	})
}

// fail makes every query fail from now on, including open ones.
func (f *fake) fail(fault func(name string) error) {
	f.locked(func() {
		f.fault = fault
		for _, s := range f.services {
			close(s.changed)
			s.changed = make(chan struct{})
		}
		f.wake()
	})
}

func always(err error) func(string) error { return func(string) error { return err } }

// begin counts a query.
func (f *fake) begin(name string, q question) (end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.questions[name]++
	f.held[name]++
	if f.held[name] > 1 {
		f.broken = append(f.broken, "two questions at once for "+name)
	}
	if q.index != 0 && q.wait <= 0 {
		f.broken = append(f.broken, "held without a limit: "+name)
	}
	f.most = max(f.most, f.under())
	return func() { f.locked(func() { f.held[name]-- }) }
}

func (*fake) closeIdle() {}

func (f *fake) under() (n int) {
	for _, held := range f.held {
		n += held
	}
	return n
}

func (f *fake) list(ctx context.Context, q question) (names []string, a answer, err error) {
	defer f.begin("", q)()
	timer := time.NewTimer(q.wait)
	defer timer.Stop()
	for over := false; ; {
		f.mu.Lock()
		changed, replaced := f.changed, f.replaced
		if f.fault != nil {
			err = f.fault("")
		}
		names, a.index = slices.Sorted(maps.Keys(f.services)), f.listed
		names = slices.DeleteFunc(names, func(name string) bool { return f.filtered[name] })
		a.filtered = len(f.filtered) > 0
		f.mu.Unlock()
		if err != nil || q.index == 0 || a.index > q.index || over {
			return names, a, err
		}
		select {
		case <-ctx.Done():
			return nil, a, ctx.Err()
		case <-replaced:
			return names, a, nil
		case <-changed:
		case <-timer.C:
			over = true
		}
	}
}

func (f *fake) instances(ctx context.Context, name string, q question) (all []instance, a answer, err error) {
	defer f.begin(name, q)()
	timer := time.NewTimer(q.wait)
	defer timer.Stop()
	for over := false; ; {
		f.mu.Lock()
		s, changed := f.services[name], f.changed
		all, a = nil, answer{index: f.index, filtered: f.filtered[name], streamed: f.streamed}
		if s != nil {
			a.index, changed = s.index, s.changed
			if !f.filtered[name] {
				all = s.instances
			}
		}
		if f.fault != nil {
			err = f.fault(name)
		}
		f.mu.Unlock()
		if err != nil || q.index == 0 || a.index != q.index || over {
			return all, a, err
		}
		if s == nil {
			f.locked(func() { f.broken = append(f.broken, "held for a service without instances: "+name) })
		}
		select {
		case <-ctx.Done():
			return nil, a, ctx.Err()
		case <-changed:
		case <-timer.C:
			over = true
		}
	}
}

// sink records its calls and their times.
type sink struct {
	mu       sync.Mutex
	rows     map[vip.ServiceKey]vip.Service
	problems []vip.Problem
	stale    string
	replaces int
	puts     map[string][]time.Time
	deletes  int
	calls    int
	rev      uint64 // of the newest row
}

func (s *sink) row(key vip.ServiceKey) vip.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[key]
}

func newSink() *sink {
	return &sink{rows: map[vip.ServiceKey]vip.Service{}, puts: map[string][]time.Time{}}
}

func (s *sink) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	do()
}

func (s *sink) Replace(services []vip.Service, problems []vip.Problem) {
	s.locked(func() {
		s.rows = map[vip.ServiceKey]vip.Service{}
		for _, row := range services {
			s.rows[row.Key] = row
		}
		s.problems, s.stale = problems, ""
		s.replaces++
		s.rev = max(s.rev, 1)
	})
}

func (s *sink) Put(services ...vip.Service) []uint64 {
	revs := make([]uint64, len(services))
	changed := slices.DeleteFunc(slices.Clone(services), func(row vip.Service) bool { return compile.SameService(s.row(row.Key), row) })
	if len(changed) == 0 { // the claims table compares, and nothing else follows
		for i := range revs {
			revs[i] = 1
		}
		return revs
	}
	s.locked(func() {
		for _, row := range changed {
			s.rows[row.Key] = row
			s.puts[row.Key.Name] = append(s.puts[row.Key.Name], time.Now())
		}
		s.rev++
		for i := range revs {
			revs[i] = s.rev
		}
	})
	return revs
}

func (s *sink) Delete(keys ...vip.ServiceKey) {
	s.locked(func() {
		for _, key := range keys {
			delete(s.rows, key)
			s.deletes++
		}
	})
}

func (s *sink) Problems(problems []vip.Problem) { s.locked(func() { s.problems = problems }) }
func (s *sink) Stale(err error)                 { s.locked(func() { s.stale = err.Error() }) }
func (s *sink) Fresh()                          { s.locked(func() { s.stale = "" }) }

// String returns the services in effect: "db 80/tcp: 10.0.0.1; web ...".
func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ""
	for _, key := range slices.SortedFunc(maps.Keys(s.rows), func(a, b vip.ServiceKey) int { return slices.Compare([]byte(a.Name), []byte(b.Name)) }) {
		if out != "" {
			out += "; "
		}
		out += described(s.rows[key])
	}
	return out
}

// scene is a source on a fake catalog with fake time.
type scene struct {
	t    *testing.T
	fake *fake
	sink *sink
	src  *Source
	stop func()
}

// play runs a scene.
func play(t *testing.T, o Options, prepare func(f *fake), then func(s *scene)) {
	bubble.Test(t, func(t *testing.T) {
		f := newFake()
		prepare(f)
		o.asked = f
		o.timing.held = cmp.Or(o.timing.held, -1)
		src := must.Get(New(o))(t)
		s := &scene{t: t, fake: f, sink: newSink(), src: src, stop: func() {}}
		s.run()
		then(s)
		s.stop()
		if len(f.broken) > 0 {
			t.Errorf("rules broken: %v", slices.Compact(f.broken))
		}
		expect.Equal(t, f.under(), 0, "questions left behind: %v", f.held)
	})
}

// run runs the source again on the same sink.
func (s *scene) run() {
	s.stop()
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error)
	go func() { ended <- s.src.Run(ctx, s.sink) }()
	s.stop = func() {
		cancel()
		expect.Is(s.t, <-ended, context.Canceled, "Run returned")
		s.stop = func() {}
	}
}

// after lets time pass.
func (s *scene) after(d time.Duration) {
	s.order()
	time.Sleep(d)
	synctest.Wait()
	s.order()
}

// order synchronizes the test's reads with the source's writes.
func (s *scene) order() {
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	s.fake.locked(func() {})
}

func (s *scene) want(rows string) {
	s.t.Helper()
	expect.Equal(s.t, s.sink.String(), rows, "in effect")
}

// asked returns the number of queries since the last call.
func (s *scene) asked() (list, services int) {
	s.fake.locked(func() {
		for name, n := range s.fake.questions {
			if name == "" {
				list += n
			} else {
				services += n
			}
		}
		clear(s.fake.questions)
	})
	return list, services
}

func many(f *fake, n int) {
	for i := range n {
		f.set(fmt.Sprintf("s%04d", i), "n1 10.0.0.1:80", "n2 10.0.0.2:80")
	}
}
