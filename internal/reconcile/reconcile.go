package reconcile

import (
	"context"
	"fmt"
	"log/slog"
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
		ready := isClosed(r.Desired.Ready())
		batch, changed := feed.TryNext()
		if len(batch) > 0 {
			r.take(ctx, batch, ready)
		}
		r.note(func(s *Stats) { s.LastTurn, s.AppliedRev = time.Now(), feed.Seen() })
		if len(batch) > 0 {
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
		e := entry[V]{row: &table.Row[V]{Value: o.Value}, orphan: o.Orphan}
		have.put(e.with(trouble{damage: o.Damage}))
	}
	r.targetWorks()
	r.note(func(s *Stats) { s.LastResync = time.Now() })
	return have, nil
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
