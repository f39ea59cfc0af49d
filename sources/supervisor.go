package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// DefaultSyncTimeout is how long the pipeline waits for a source's first full list.
const DefaultSyncTimeout = 30 * time.Second

// The backoff of a failed source grows from minBackoff to maxBackoff.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// Options are the dependencies of a Supervisor. Resolver, Services and Statuses are required.
type Options struct {
	Resolver Resolver
	Services table.Reader[vip.ServiceKey, vip.Service] // written by the Resolver
	Statuses *table.Table[string, Status]              // the Supervisor is its only writer
	Refused  *table.Table[RefusedKey, Refused]         // the same; may be nil
	// PriorServices returns the number of services that an earlier run of the agent had from a
	// source. The source's shrink guard compares its first list with that number. The function may
	// be nil. It must not call the Supervisor.
	PriorServices func(source string) int
	SyncTimeout   time.Duration // 0: DefaultSyncTimeout
	Events        *event.Log    // may be nil
	Log           *slog.Logger  // nil: slog.Default
}

// Supervisor runs sources and writes their services into their claims tables. Its methods are safe
// for concurrent use.
type Supervisor struct {
	options Options
	sources []*supervised // fixed once Run is called
}

var errResync = errors.New("resync requested")

// NewSupervisor returns a supervisor without sources.
func NewSupervisor(o Options) *Supervisor {
	if o.SyncTimeout <= 0 {
		o.SyncTimeout = DefaultSyncTimeout
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Supervisor{options: o}
}

// Add registers a source under a unique name. It panics if the name is taken, which is a
// programming error. Add every source before Run.
func (s *Supervisor) Add(name, typ string, source Source) {
	if s.find(name) != nil {
		panic(fmt.Sprintf("sources: two sources are named %q", name))
	}
	src := &supervised{Options: &s.options, name: name, typ: typ, source: source, claims: s.options.Resolver.Claims(name),
		holding: wake.New(), status: Status{Name: name, Type: typ}}
	src.synced = src.claims.Initializer()
	if g, ok := source.(Guarded); ok && g.ShrinkGuard() > 0 {
		src.guard = newShrinkGuard(g.ShrinkGuard(), src.event)
	}
	s.options.Statuses.Set(src.status)
	s.sources = append(s.sources, src)
}

// find returns the source with that name, or nil.
func (s *Supervisor) find(name string) *supervised {
	for _, src := range s.sources {
		if src.name == name {
			return src
		}
	}
	return nil
}

// Run runs every source until the context ends, waits for them to return, and returns the
// context's error. Their services stay in the tables.
func (s *Supervisor) Run(ctx context.Context) error {
	running, inner := parallel.NewGroup(ctx)
	for _, src := range s.sources {
		running.Run(inner, src.supervise)
		if src.guard != nil {
			running.Run(inner, src.confirmDue)
		}
	}
	if backoff.Sleep(inner, s.options.SyncTimeout) {
		for _, src := range s.sources {
			src.syncTimeout()
		}
	}
	if err := running.Wait(); err != nil {
		return err
	}
	<-ctx.Done() // also without sources
	return ctx.Err()
}

// Resync restarts a source at once, so that it publishes its full list again. It also applies what
// the shrink guard holds back, because the operator has seen it.
func (s *Supervisor) Resync(name string) error {
	src := s.find(name)
	if src == nil {
		return fmt.Errorf("resync: source %q not found", name)
	}
	src.confirm(true)
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.cancel != nil {
		src.cancel(errResync)
	}
	return nil
}

// supervise runs the source until the context ends. After a failure it runs the source again, with
// backoff.
func (src *supervised) supervise(ctx context.Context) {
	wait := backoff.Backoff{Lo: minBackoff, Hi: maxBackoff}
	for ctx.Err() == nil {
		run, cancel := src.cancelable(ctx)
		out := src.begin()
		started := time.Now()
		err := src.runOnce(run, out)
		out.end()
		resync := context.Cause(run) == errResync
		cancel(nil)
		if ctx.Err() != nil {
			return
		}
		if resync {
			continue
		}
		if time.Since(started) > maxBackoff {
			wait.Reset()
		}
		pause := wait.Next()
		src.Log.Warn("source failed", "source", src.name, "err", err, "retry_in", pause)
		src.failed(err)
		resting, cancel := src.cancelable(ctx)
		backoff.Sleep(resting, pause)
		cancel(nil)
	}
}

// cancelable returns a context that Resync cancels.
func (src *supervised) cancelable(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	src.mu.Lock()
	defer src.mu.Unlock()
	src.cancel = cancel
	return ctx, cancel
}

// runOnce runs the source once. A panic counts as a failure.
func (src *supervised) runOnce(ctx context.Context, out *sink) error {
	err := parallel.Recovered(func() error { return src.source.Run(ctx, out) })
	return cmp.Or(err, errors.New("stopped without an error"))
}

// KeepRunning runs a part of a source beside it until the context ends, and returns the context's
// error. After a failure or a panic it runs the part again, with backoff.
func KeepRunning(ctx context.Context, what string, log *slog.Logger, run func(context.Context) error) error {
	wait := backoff.Backoff{Lo: minBackoff, Hi: maxBackoff}
	for ctx.Err() == nil {
		started := time.Now()
		err := parallel.Recovered(func() error { return run(ctx) })
		if ctx.Err() != nil {
			break
		}
		if time.Since(started) > maxBackoff {
			wait.Reset()
		}
		pause := wait.Next()
		log.Error("part of a source failed", "part", what, "err", err, "retry_in", pause)
		backoff.Sleep(ctx, pause)
	}
	return ctx.Err()
}
