package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/event"
	"github.com/ironvip/ironvip/vip/table"
)

// Defaults of Options.
const (
	DefaultResync     = 30 * time.Second
	DefaultMinBackoff = 100 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second

	maxBatch  = 512             // updates handed to the Target at once
	heartbeat = 5 * time.Second // the loop goes round at least this often
	maxEvents = 20              // drift events told one by one in one resync
)

// Options are what a Reconciler needs. Desired, Target and Applied must be
// given.
type Options[K comparable, V any] struct {
	Desired table.Reader[K, V]
	Target  Target[K, V]
	Applied *table.Table[K, Applied[V]] // the Reconciler is its only writer

	Resync     time.Duration // between two readings of the Target; 0 is DefaultResync, negative never
	MinBackoff time.Duration // first wait before a failed key is tried again; doubles
	MaxBackoff time.Duration
	// Moved tells that something happened that failed keys may have waited for:
	// those that a Waiter says so of are tried at once. May be nil.
	Moved <-chan struct{}

	Service func(*V) string // the service that a row belongs to, for events; may be nil
	Events  *event.Log
	Log     *slog.Logger
}

// Reconciler is the loop. Make one with New and give it one goroutine with Run.
type Reconciler[K comparable, V any] struct {
	Options[K, V]

	// The loop's own, touched by nothing else.
	have     holdings[K, V] // what the Target has, as far as known
	retries  retryQueue[K]
	failing  map[K]struct{} // keys whose applied row has a problem
	contests contests[K]    // keys that somebody else changes again and again
	swept    bool           // strays of the start have been removed
	fault    int            // failed readings or Applies of the whole Target in a row
	updates  []Update[K, V] // room for those of one batch
	rows     []*table.Row[V]

	asks   chan ask[K, V]
	synced chan struct{}

	mu    sync.Mutex
	stats Stats
}

// ask is a request from outside to the loop.
type ask[K comparable, V any] struct {
	repair bool
	answer chan<- answer[K, V]
}

type answer[K comparable, V any] struct {
	diff []Difference[K, V]
	err  error
}

// New returns a Reconciler that does nothing until Run.
func New[K comparable, V any](o Options[K, V]) *Reconciler[K, V] {
	if o.Resync == 0 {
		o.Resync = DefaultResync
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = DefaultMinBackoff
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = DefaultMaxBackoff
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Service == nil {
		o.Service = func(*V) string { return "" }
	}
	return &Reconciler[K, V]{
		Options: o,
		have:    newHoldings(o.Desired.KeyOf),
		failing: make(map[K]struct{}),
		retries: newRetryQueue[K](),
		asks:    make(chan ask[K, V]),
		synced:  make(chan struct{}),
	}
}

// Synced is closed after the first full pass: the desired table was ready, and
// every row of it has been tried once.
func (r *Reconciler[K, V]) Synced() <-chan struct{} { return r.synced }

// Stats returns the present figures.
func (r *Reconciler[K, V]) Stats() Stats {
	r.mu.Lock()
	s := r.stats
	r.mu.Unlock()
	s.Wanted, s.DesiredRev = r.Desired.Len(), r.Desired.Revision()
	return s
}

func (r *Reconciler[K, V]) note(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// Run reconciles until the context ends and returns its error. It leaves the
// Target as it is.
func (r *Reconciler[K, V]) Run(ctx context.Context) error {
	if err := r.adopt(ctx); err != nil {
		return err
	}
	feed := r.Desired.Watch()
	defer feed.Close()
	resync := newTicker(r.Resync)
	defer resync.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()

	for {
		r.note(func(s *Stats) { s.LastTurn = time.Now() })
		ready := isClosed(r.Desired.Ready())
		batch, changed := feed.TryNext()
		if len(batch) > 0 {
			r.take(ctx, batch, ready)
			r.note(func(s *Stats) { s.AppliedRev = batch[len(batch)-1].Rev })
			if err := ctx.Err(); err != nil {
				return err
			}
			// A table that never rests must not keep the rest of the loop waiting.
			select {
			case <-r.retries.timer.C:
				r.retry(ctx)
			case <-resync.C:
				r.resync(ctx, false)
			case a := <-r.asks:
				r.serve(ctx, a)
			case <-r.Moved:
				r.hasten()
			default:
			}
			continue
		}
		if ready && !r.swept {
			r.sweep(ctx)
			r.swept = true
			r.note(func(s *Stats) { s.Synced = true })
			close(r.synced)
			continue
		}
		var becameReady <-chan struct{}
		if !ready {
			becameReady = r.Desired.Ready()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-becameReady:
		case <-r.retries.timer.C:
			r.retry(ctx)
		case <-resync.C:
			r.resync(ctx, false)
		case a := <-r.asks:
			r.serve(ctx, a)
		case <-r.Moved:
			r.hasten()
		case <-beat.C:
		}
	}
}

// adopt reads the Target until that works once.
func (r *Reconciler[K, V]) adopt(ctx context.Context) error {
	for {
		have, err := r.read(ctx)
		if err == nil {
			r.have = have
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.backoff(r.fault)):
		}
	}
}

// read returns everything of ours that the Target has.
func (r *Reconciler[K, V]) read(ctx context.Context) (have holdings[K, V], err error) {
	have = newHoldings(r.Desired.KeyOf)
	for o, err := range r.Target.Actual(ctx) {
		if ctx.Err() != nil {
			return have, ctx.Err() // we were stopped: that says nothing of the Target
		}
		if err != nil {
			r.targetFailed("read", err)
			return have, err
		}
		e := entry[V]{row: &table.Row[V]{Value: o.Value}}
		have.put(e.with(trouble{damage: o.Damage}))
	}
	r.targetWorks()
	r.note(func(s *Stats) { s.LastResync = time.Now() })
	return have, nil
}

// take brings one batch of changes to the Target.
func (r *Reconciler[K, V]) take(ctx context.Context, batch []table.Change[V], ready bool) {
	updates, rows := r.updates, r.rows
	for i := range batch {
		c := &batch[i]
		if c.Deleted && !ready {
			continue // the sweep takes it, once it is known that nobody else wants it
		}
		want := c.Row
		if c.Deleted {
			want = nil
		}
		if u, needed := r.update(r.Desired.KeyOf(&c.Value), want); needed {
			updates, rows = append(updates, u), append(rows, c.Row)
		}
	}
	r.apply(ctx, updates, rows)
	clear(updates)
	clear(rows)
	r.updates, r.rows = updates[:0], rows[:0]
}

// update decides what, if anything, the Target must be asked for one key. Want
// is nil where nobody wants it.
func (r *Reconciler[K, V]) update(k K, want *table.Row[V]) (Update[K, V], bool) {
	r.retries.remove(k) // whatever was to be tried again is overtaken
	e, has := r.have.get(k)
	switch {
	case want == nil && !has:
		r.forget(k)
		return Update[K, V]{}, false
	case want == nil:
		return Update[K, V]{Key: k, Old: &e.row.Value, Repair: e.suspect()}, true
	case !has:
		return Update[K, V]{Key: k, New: &want.Value}, true
	case e.trouble == nil && r.Target.Same(&e.row.Value, &want.Value):
		if r.Applied.Row(k) == nil {
			r.note(func(s *Stats) { s.Adopted++ })
		}
		r.have.put(entry[V]{row: want})
		r.tried(want, nil)
		return Update[K, V]{}, false
	}
	return Update[K, V]{Key: k, Old: &e.row.Value, New: &want.Value, Repair: e.trouble != nil}, true
}

// apply hands updates to the Target in bounded batches and books the outcome.
// rows holds, for each update, the desired row that it is about, of a removal
// the last one; nil where there was none.
func (r *Reconciler[K, V]) apply(ctx context.Context, updates []Update[K, V], rows []*table.Row[V]) {
	for len(updates) > 0 && ctx.Err() == nil {
		n := min(len(updates), maxBatch)
		err := r.Target.Apply(ctx, updates[:n])
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.targetFailed("program", err)
		} else {
			r.targetWorks()
		}
		r.note(func(s *Stats) { s.Writes += uint64(n) })
		for i := range updates[:n] {
			u := &updates[i]
			if err != nil {
				u.Err = err
			}
			r.book(u, rows[i])
		}
		updates, rows = updates[n:], rows[n:]
	}
}

// book records how one update went.
func (r *Reconciler[K, V]) book(u *Update[K, V], row *table.Row[V]) {
	if u.Err == nil {
		if u.New == nil {
			r.have.drop(u.Key)
			r.forget(u.Key)
		} else {
			r.have.put(entry[V]{row: row})
			r.tried(row, nil)
		}
		return
	}
	if row == nil { // a stray that nobody wanted
		row = &table.Row[V]{Value: *u.Old}
	}
	p := problemOf(u.Err)
	r.tried(row, &p)
	if p.Code == vip.CodeUnsupported { // refused before anything was touched
		r.Log.Warn("the dataplane refuses a frontend", "key", u.Key, "problem", p.Error())
		if e, _ := r.have.get(u.Key); e.suspect() {
			// An earlier update failed half-way and won't be tried again now: the
			// resync makes what it was, or was on its way to be, whole.
			r.have.put(e.with(trouble{damage: e.trouble.damage}))
		}
		return
	}
	e, has := r.have.get(u.Key)
	if !has {
		e.row = row
	}
	var was trouble
	if e.trouble != nil {
		was = *e.trouble
	}
	tries := was.tries + 1
	r.have.put(e.with(trouble{damage: was.damage, suspect: true, tries: tries}))
	wait := r.backoff(tries)
	r.retries.add(u.Key, time.Now().Add(wait))
	level := slog.LevelError
	if tries > 1 { // thousands may fail for one reason; the applied table says which still do
		level = slog.LevelDebug
	}
	r.Log.Log(context.Background(), level, "program the dataplane", "key", u.Key, "err", u.Err, "try", tries, "again_in", wait)
	if tries == 1 {
		r.Events.Add(event.Event{Kind: "dataplane_error", Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: p.Message})
	}
}

// tried writes the applied row of a key. The repair of an older revision that
// is still in force doesn't hide that a newer one was refused.
func (r *Reconciler[K, V]) tried(row *table.Row[V], p *vip.Problem) {
	k, now := r.Desired.KeyOf(&row.Value), Applied[V]{Tried: row, At: vip.InstantOf(time.Now()), Problem: p}
	if former := r.Applied.Row(k); former != nil {
		if former.Value.Tried.Rev > row.Rev {
			return
		}
		now.Warning = former.Value.Warning
	}
	r.Applied.Set(now)
	if p != nil {
		r.failing[k] = struct{}{}
	} else {
		delete(r.failing, k)
	}
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

// forget drops the applied row of a key that is gone.
func (r *Reconciler[K, V]) forget(k K) {
	r.Applied.Delete(k)
	delete(r.failing, k)
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

// retry tries the keys again whose time has come.
func (r *Reconciler[K, V]) retry(ctx context.Context) {
	due := r.retries.due(time.Now())
	updates := make([]Update[K, V], 0, len(due))
	rows := make([]*table.Row[V], 0, len(due))
	for _, k := range due {
		want := r.Desired.Row(k)
		if want == nil && !r.swept {
			continue
		}
		if u, needed := r.update(k, want); needed {
			updates, rows = append(updates, u), append(rows, want)
		}
	}
	r.apply(ctx, updates, rows)
}

// hasten makes those failed keys due that lack nothing more. It costs O(failed
// keys), and nothing without any.
func (r *Reconciler[K, V]) hasten() {
	waiter, ok := r.Target.(Waiter[K])
	if !ok || r.retries.keys.Len() == 0 {
		return
	}
	arrived := waiter.Arrived()
	now := time.Now()
	for k := range r.retries.keys.All() {
		if arrived(k) {
			r.retries.add(k, now)
		}
	}
}

// sweep removes what the Target has and nobody wants, once the desired table
// is complete.
func (r *Reconciler[K, V]) sweep(ctx context.Context) {
	var updates []Update[K, V]
	for k, e := range r.have.all() {
		if r.Desired.Row(k) == nil {
			updates = append(updates, Update[K, V]{Key: k, Old: &e.row.Value, Repair: e.trouble != nil})
		}
	}
	r.apply(ctx, updates, make([]*table.Row[V], len(updates)))
}

// resync reads the Target, repairs what differs from what was applied and
// returns the differences it found. What somebody else keeps changing waits,
// unless the repair was asked for.
func (r *Reconciler[K, V]) resync(ctx context.Context, asked bool) ([]Difference[K, V], error) {
	diff, err := r.compare(ctx)
	if err != nil {
		return nil, err
	}
	var updates []Update[K, V]
	var rows []*table.Row[V]
	var found []string
	now := time.Now()
	for _, d := range diff {
		u := Update[K, V]{Key: d.Key, Old: d.Have, New: d.Want, Repair: true}
		e, has := r.have.get(d.Key)
		if e.suspect() {
			r.contests.failing(d.Key)
			continue // ours to retry, not somebody's drift
		}
		if !has && (!r.swept || r.Desired.Row(d.Key) != nil) {
			continue // the feed brings it, or the sweep decides
		}
		what, cure := describe(d)
		if !asked && !r.contests.found(d.Key, what, now) {
			continue
		}
		updates, rows, found = append(updates, u), append(rows, e.row), append(found, what+", "+cure)
	}
	r.apply(ctx, updates, rows)
	r.report(updates, found)
	if !asked && ctx.Err() == nil {
		r.settle(diff)
	}
	return diff, nil
}

// report tells of repaired drift: found holds, for each update, what was wrong.
func (r *Reconciler[K, V]) report(updates []Update[K, V], found []string) {
	repaired := 0
	for i := range updates {
		u := &updates[i]
		if u.Err != nil {
			continue
		}
		if repaired++; repaired <= maxEvents {
			r.Log.Warn("repaired drift", "key", u.Key, "what", found[i])
			r.Events.Add(event.Event{Kind: "drift_repaired", Service: r.serviceOf(u), Object: fmt.Sprint(u.Key), Message: found[i]})
		}
	}
	r.note(func(s *Stats) { s.DriftRepairs += uint64(repaired) })
	if n := repaired - maxEvents; n > 0 {
		r.Log.Warn("repaired drift", "more_keys", n)
		r.Events.Add(event.Event{Kind: "drift_repaired", Message: fmt.Sprintf("%d more keys repaired in the same pass", n)})
	}
}

// compare reads the Target and returns where it differs from what was applied.
func (r *Reconciler[K, V]) compare(ctx context.Context) ([]Difference[K, V], error) {
	actual, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	var diff []Difference[K, V]
	for k, e := range r.have.all() {
		a, there := actual.get(k)
		switch {
		case !there:
			diff = append(diff, Difference[K, V]{Key: k, Want: &e.row.Value})
		case a.trouble != nil || !r.Target.Same(&a.row.Value, &e.row.Value):
			diff = append(diff, Difference[K, V]{Key: k, Want: &e.row.Value, Have: &a.row.Value, Damage: a.damage()})
		}
	}
	for k, a := range actual.all() {
		if _, known := r.have.get(k); !known {
			diff = append(diff, Difference[K, V]{Key: k, Have: &a.row.Value, Damage: a.damage()})
		}
	}
	return diff, nil
}

// Diff reads the Target now and returns where it differs from what was
// applied. It changes nothing. It costs a reading of the whole Target.
func (r *Reconciler[K, V]) Diff(ctx context.Context) ([]Difference[K, V], error) {
	return r.ask(ctx, false)
}

// Repair runs a resync now and returns the differences it found and repaired.
func (r *Reconciler[K, V]) Repair(ctx context.Context) ([]Difference[K, V], error) {
	return r.ask(ctx, true)
}

func (r *Reconciler[K, V]) ask(ctx context.Context, repair bool) ([]Difference[K, V], error) {
	reply := make(chan answer[K, V], 1)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r.asks <- ask[K, V]{repair: repair, answer: reply}:
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-reply:
		return a.diff, a.err
	}
}

func (r *Reconciler[K, V]) serve(ctx context.Context, a ask[K, V]) {
	var out answer[K, V]
	if a.repair {
		out.diff, out.err = r.resync(ctx, true)
	} else {
		out.diff, out.err = r.compare(ctx)
	}
	a.answer <- out
}

func (r *Reconciler[K, V]) targetFailed(what string, err error) {
	if r.fault++; r.fault == 1 {
		r.Events.Add(event.Event{Kind: "dataplane_error", Message: fmt.Sprintf("%s the dataplane: %v", what, err)})
	}
	r.Log.Error(what+" the dataplane", "err", err, "try", r.fault)
	r.note(func(s *Stats) { s.TargetError = fmt.Sprintf("%s: %v", what, err) })
}

func (r *Reconciler[K, V]) targetWorks() {
	if r.fault == 0 {
		return
	}
	r.fault = 0
	r.Log.Info("the dataplane works again")
	r.note(func(s *Stats) { s.TargetError = "" })
}

// backoff returns the wait after the given number of failures in a row.
func (r *Reconciler[K, V]) backoff(tries int) time.Duration {
	wait := r.MinBackoff
	for range tries - 1 {
		if wait *= 2; wait >= r.MaxBackoff {
			return r.MaxBackoff
		}
	}
	return wait
}

func (r *Reconciler[K, V]) serviceOf(u *Update[K, V]) string {
	if u.New != nil {
		return r.Service(u.New)
	}
	if u.Old != nil {
		return r.Service(u.Old)
	}
	return ""
}

// problemOf returns err as a Problem, keeping one that is inside.
func problemOf(err error) vip.Problem {
	if p, ok := errors.AsType[vip.Problem](err); ok {
		return p
	}
	return vip.Problem{Code: vip.CodeDataplane, Message: err.Error()}
}

// describe says in words what was found and what is done about it.
func describe[K comparable, V any](d Difference[K, V]) (what, cure string) {
	switch {
	case d.Have == nil:
		return "was missing from the dataplane", "put back"
	case d.Want == nil:
		return "was in the dataplane and nobody wants it", "removed"
	case len(d.Damage) > 0:
		return d.Damage[0], "put right"
	default:
		return "was altered in the dataplane", "put right"
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// newTicker returns a ticker, or one that never ticks for a negative period.
func newTicker(d time.Duration) *time.Ticker {
	if d > 0 {
		return time.NewTicker(d)
	}
	t := time.NewTicker(time.Hour)
	t.Stop()
	return t
}
