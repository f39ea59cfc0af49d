package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
)

// Defaults of Options.
const (
	DefaultResync     = 30 * time.Second
	DefaultMinBackoff = 100 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second

	maxBatch  = 512             // updates per call of Apply
	heartbeat = 5 * time.Second // the longest time between two rounds of the loop
	maxEvents = 20              // drift events of one resync; one more event counts the others
)

// Kinds of events. An error of a key, or of the whole Target, is reported once until it recovers.
const (
	eventError     = "dataplane_error"
	eventRecovered = "dataplane_recovered"
)

// operation is an access to the whole Target that can fail.
type operation string

const (
	reading     operation = "read"
	programming operation = "program"
)

// Options are the settings of a Reconciler. Desired, Target and Applied are required.
type Options[K comparable, V any] struct {
	Desired table.Reader[K, V]
	Target  Target[K, V]
	Applied *table.Table[K, Applied[V]] // the Reconciler is its only writer

	Resync     time.Duration // between two reads of the Target; 0 is DefaultResync, negative never
	MinBackoff time.Duration // first wait before a retry of a failed key; doubles
	MaxBackoff time.Duration

	// Together, if set, delays the first full pass until the desired table is complete, and orders the keys in it: those that
	// compare as equal are passed to the Target at once. So it is for a Target that refuses clients of a key while it only
	// has others like it, beside something that serves all of them. Nil: changes are applied as they come.
	Together func(a, b K) int

	// Tried is where the loop tells up to which revision of Desired it has tried all changes. Nil: its own.
	Tried *table.Reached

	Service func(*V) string // the service of a row, for events; may be nil
	Events  *event.Log
	Log     *slog.Logger
}

// Reconciler is the loop. Create one with New and start its goroutine with Run.
type Reconciler[K comparable, V any] struct {
	Options[K, V]

	// Used by the loop only.
	have        map[K]entry[V] // the known content of the Target
	retries     retryQueue[K]
	failing     map[K]struct{}    // keys with a problem in their applied row
	reported    map[K]struct{}    // keys with a reported error and no success since
	contests    contests[K]       // keys that another program changes repeatedly
	swept       bool              // strays of the start have been removed
	faults      map[operation]int // failures in a row of the whole Target, by operation
	recheck     *time.Timer       // the resync that a check needs
	lastRecheck time.Time         // of the last such resync
	suspected   string            // the program whose changes it looks for, or ""
	delayed     *time.Timer       // the check that waits
	checking    checking
	cleaning    cleaning
	updates     []Update[K, V] // buffers of one batch
	rows        []*table.Row[V]

	asks   chan func(context.Context) // to be run by the loop
	synced chan struct{}

	mu    sync.Mutex
	stats Stats
}

// New returns a Reconciler that does nothing until Run.
func New[K comparable, V any](o Options[K, V]) *Reconciler[K, V] {
	o.Resync = cmp.Or(o.Resync, DefaultResync)
	o.MinBackoff = cmp.Or(o.MinBackoff, DefaultMinBackoff)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, DefaultMaxBackoff)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.Tried = cmp.Or(o.Tried, &table.Reached{})
	if o.Service == nil {
		o.Service = func(*V) string { return "" }
	}
	return &Reconciler[K, V]{
		Options:  o,
		recheck:  stoppedTimer(),
		delayed:  stoppedTimer(),
		cleaning: cleaning{target: o.Target, timer: stoppedTimer()},
		have:     map[K]entry[V]{},
		failing:  make(map[K]struct{}),
		reported: make(map[K]struct{}),
		retries:  newRetryQueue[K](),
		faults:   make(map[operation]int),
		asks:     make(chan func(context.Context)),
		synced:   make(chan struct{}),
	}
}

// Synced is closed after the first full pass: the desired table is ready and each of its rows has been tried once.
func (r *Reconciler[K, V]) Synced() <-chan struct{} { return r.synced }

// Stats returns the current values.
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

// atOnce is a closed channel.
var atOnce = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// Run reconciles until the context ends and returns its error. At its end, it changes nothing, but cleans the Target, for at
// most 2 s.
func (r *Reconciler[K, V]) Run(ctx context.Context) error {
	changedByOthers := r.Target.Changed()
	if err := r.adopt(ctx, changedByOthers); err != nil {
		return err
	}
	defer r.cleanLast(ctx)
	feed := r.Desired.Watch()
	defer feed.Close()
	resync := newTicker(r.Resync)
	defer resync.Stop()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	defer r.recheck.Stop()
	defer r.delayed.Stop()
	defer r.cleaning.timer.Stop()

	for {
		ready := table.IsClosed(r.Desired.Ready())
		batch, changed := r.next(feed, ready)
		if len(batch) > 0 {
			r.receive(ctx, batch, ready)
		}
		r.cleaning.arm()
		r.note(func(s *Stats) { s.LastRound, s.AppliedRev = time.Now(), feed.Seen() })
		r.Tried.Set(feed.Seen())
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(batch) > 0 {
			changed = atOnce // a table that changes all the time must not delay the rest of the loop
		} else if ready && !r.swept {
			r.sweep(ctx)
			r.swept = true
			r.Target.Suspect()
			r.note(func(s *Stats) { s.Synced, s.Unclean = true, r.Target.Unclean() })
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
		case <-changedByOthers:
			r.checkSoon(ctx)
		case <-r.delayed.C:
			r.check(ctx)
		case <-r.recheck.C:
			r.recheckAll(ctx)
		case <-r.cleaning.timer.C:
			r.clean(ctx)
		case <-resync.C:
			r.resyncOnTime(ctx)
		case f := <-r.asks:
			f(ctx)
		case <-beat.C:
		}
	}
}

// next returns changes, and a channel that is closed at the next one. With Together, it returns all of the first pass.
func (r *Reconciler[K, V]) next(feed *table.Feed[K, V], ready bool) (batch []table.Change[V], changed <-chan struct{}) {
	if !r.together() {
		return feed.TryNext()
	}
	if !ready {
		return nil, nil
	}
	for {
		some, changed := feed.TryNext()
		if len(some) == 0 {
			slices.SortStableFunc(batch, func(a, b table.Change[V]) int {
				return r.Together(r.Desired.KeyOf(&a.Value), r.Desired.KeyOf(&b.Value))
			})
			return batch, changed
		}
		batch = append(batch, some...)
	}
}

// together reports whether keys that compare as equal are passed to the Target at once.
func (r *Reconciler[K, V]) together() bool { return r.Together != nil && !r.swept }

// adopt reads the Target until it succeeds.
func (r *Reconciler[K, V]) adopt(ctx context.Context, changedByOthers <-chan struct{}) error {
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
		case <-changedByOthers:
		case <-time.After(r.backoff(r.faults[reading])):
		}
	}
}

// read returns everything that the Target has and we own. An unchanged value has the row of the applied state.
func (r *Reconciler[K, V]) read(ctx context.Context) (have map[K]entry[V], err error) {
	have = make(map[K]entry[V], len(r.have))
	seen := new(V) // for functions that get a pointer, so that not each value is copied to the heap
	for o, err := range r.Target.Actual(ctx) {
		if ctx.Err() != nil {
			return have, ctx.Err() // stopped by the caller, which is no error of the Target
		}
		if err != nil {
			r.targetFailed(reading, err)
			return have, err
		}
		*seen = o.Value
		k := r.Desired.KeyOf(seen)
		if e := r.have[k]; e.row != nil && e.fault == nil && len(o.Damage) == 0 && e.orphan == o.Orphan && r.Target.Same(seen, &e.row.Value) {
			have[k] = e // without a copy
			continue
		}
		e := entry[V]{row: &table.Row[V]{Value: o.Value}, orphan: o.Orphan}
		have[k] = e.with(fault{damage: o.Damage})
	}
	r.targetWorks(reading)
	r.note(func(s *Stats) { s.LastResync = time.Now() })
	return have, nil
}

// targetFailed records a failure of the whole Target. The first failure after a success is reported as an event.
func (r *Reconciler[K, V]) targetFailed(op operation, err error) {
	if len(r.faults) == 0 {
		r.Events.Add(event.Event{Kind: eventError, Message: fmt.Sprintf("%s the dataplane: %v", op, err)})
	}
	r.faults[op]++
	r.Log.Error(string(op)+" the dataplane", "err", err, "try", r.faults[op])
	r.note(func(s *Stats) { s.TargetError = fmt.Sprintf("%s: %v", op, err) })
}

// targetWorks records a success of op. The Target has recovered when no operation fails any more: a successful read
// does not end a failure to program, which would otherwise alternate with further errors. Without a key to retry,
// nothing is left to program, and a read is enough.
func (r *Reconciler[K, V]) targetWorks(op operation) {
	if len(r.faults) == 0 {
		return
	}
	delete(r.faults, op)
	if op == reading && r.retries.keys.Len() == 0 {
		delete(r.faults, programming)
	}
	if len(r.faults) > 0 {
		return
	}
	r.Log.Info("dataplane recovered")
	r.Events.Add(event.Event{Kind: eventRecovered, Message: "the dataplane works again"})
	r.note(func(s *Stats) { s.TargetError = "" })
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// newTicker returns a ticker; with a negative period it never ticks.
func newTicker(d time.Duration) *time.Ticker {
	if d > 0 {
		return time.NewTicker(d)
	}
	t := time.NewTicker(time.Hour)
	t.Stop()
	return t
}
