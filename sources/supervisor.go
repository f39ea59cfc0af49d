package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// DefaultSyncTimeout is how long the pipeline waits for a source's first full
// list before it goes on without.
const DefaultSyncTimeout = 30 * time.Second

// The pause before a failed source is run again grows from one to the other.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// Options is what a Supervisor needs. Services and Statuses must be given; it
// is their only writer.
type Options struct {
	Services *table.Table[vip.ServiceKey, vip.Service]
	Statuses *table.Table[string, Status]
	// PriorSource returns the source that a service's leases were drawn for, by
	// an earlier run of the agent. It may be nil, and must not call back.
	PriorSource func(vip.ServiceKey) (string, bool)
	// Shared says that other hosts have the same leases: PriorSource then says which
	// of several sources has a name, here as there, and Settle that it may have
	// changed.
	Shared bool
	// PriorServices returns how many services an earlier run of the agent had of a
	// source: what the source's shrink guard compares its first list with. It may be
	// nil, and must not call back.
	PriorServices func(source string) int
	SyncTimeout   time.Duration // 0 is DefaultSyncTimeout
	Events        *event.Log    // may be nil
	Log           *slog.Logger  // nil is the default one
}

// Supervisor runs sources and gathers what they say into one table. Its
// methods may be called by any goroutine.
type Supervisor struct {
	options Options
	log     *slog.Logger
	sources []*supervised // fixed once Run is called
	names   *names
}

// supervised is one source. What names guards is said there.
type supervised struct {
	name, typ string
	source    Source
	synced    func() // marks its share of the services table ready

	mu     sync.Mutex
	cancel context.CancelCauseFunc // ends the present run; nil between runs
}

var errResync = errors.New("resync asked for")

// NewSupervisor returns a supervisor without sources.
func NewSupervisor(o Options) *Supervisor {
	if o.SyncTimeout <= 0 {
		o.SyncTimeout = DefaultSyncTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Supervisor{options: o, log: o.Log, names: newNames(o)}
}

// Add registers a source under a name of its own; a name that is taken is a
// mistake in the program, and panics. Add every source before Run: the services
// table is not ready before each has synced, or its sync timeout has passed.
func (s *Supervisor) Add(name, typ string, src Source) {
	for _, other := range s.sources {
		if other.name == name {
			panic(fmt.Sprintf("sources: two sources are named %q", name))
		}
	}
	added := &supervised{name: name, typ: typ, source: src, synced: s.options.Services.Initializer()}
	s.sources = append(s.sources, added)
	s.names.add(added)
}

// Run runs every source until the context ends, waits for them to return, and
// returns the context's error. What they said stays in the tables.
func (s *Supervisor) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, src := range s.sources {
		running.Go(func() { s.supervise(ctx, src) })
	}
	running.Go(func() { s.awaitSync(ctx) })
	running.Go(func() { s.names.confirmDue(ctx) })
	running.Wait()
	<-ctx.Done() // also without sources
	return ctx.Err()
}

// Resync makes a source say its full list again, by running it anew at once.
// What is held back because it would remove much of it is let go: whoever asks
// has seen that. The error names a source that there is not.
func (s *Supervisor) Resync(name string) error {
	for _, src := range s.sources {
		if src.name == name {
			s.names.confirm(src, true)
			src.mu.Lock()
			defer src.mu.Unlock()
			if src.cancel != nil {
				src.cancel(errResync)
			}
			return nil
		}
	}
	return fmt.Errorf("resync: there is no source %q", name)
}

// Settle looks again at which source has a name, where leases are shared with
// other hosts and one of the service's has changed: the source that it names now
// has the name, if it claims it here, so that all hosts serve the same. Without a
// contest it costs O(1).
func (s *Supervisor) Settle(key vip.ServiceKey) { s.names.settle(key) }

// awaitSync ends the waiting for sources that have not synced in time.
func (s *Supervisor) awaitSync(ctx context.Context) {
	if !backoff.Sleep(ctx, s.options.SyncTimeout) {
		return
	}
	for _, src := range s.sources {
		s.names.syncTimeout(src, s.options.SyncTimeout)
	}
}

// supervise runs one source again and again.
func (s *Supervisor) supervise(ctx context.Context, src *supervised) {
	backoff := backoff.Backoff{Lo: minBackoff, Hi: maxBackoff}
	for ctx.Err() == nil {
		run, cancel := context.WithCancelCause(ctx)
		src.mu.Lock()
		src.cancel = cancel
		src.mu.Unlock()
		out := s.names.begin(src)
		started := time.Now()
		err := s.runOnce(run, src, out)
		out.end()
		resync := context.Cause(run) == errResync
		cancel(nil)
		if ctx.Err() != nil {
			return
		}
		if resync {
			continue
		}
		if time.Since(started) > maxBackoff { // it was well for a while
			backoff.Reset()
		}
		pause := backoff.Next()
		s.log.Warn("source failed", "source", src.name, "err", err, "retry_in", pause)
		s.names.failed(src, err)
		s.pause(ctx, src, pause)
	}
}

// pause waits before the next run; Resync cuts it short.
func (s *Supervisor) pause(ctx context.Context, src *supervised, d time.Duration) {
	wait, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	src.mu.Lock()
	src.cancel = cancel
	src.mu.Unlock()
	backoff.Sleep(wait, d)
}

// runOnce makes a panic in a source that source's failure.
func (s *Supervisor) runOnce(ctx context.Context, src *supervised, out *sink) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("source panicked", "source", src.name, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	if err := src.source.Run(ctx, out); err != nil {
		return err
	}
	return errors.New("the source stopped by itself")
}
