package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/takeover"
)

// inheritance is what an agent begins with.
type inheritance struct {
	sockets     *sockets.Set
	problems    []error          // of inherited descriptors
	predecessor predecessor      // nil: none
	failure     *takeoverFailure // of another process, before; nil: none
	signals     *signals
	mode        string // of the dataplane, by the wish of an operator; "": as configured
}

// predecessor is what serves clients until an agent is ready, and relays its open connections
// afterwards: another process, or a dataplane of this process.
type predecessor interface {
	// open returns its connections at the start.
	open() []takeover.Count
	// follow passes on changes of its connections until the last one has ended. An error means that
	// this agent must end.
	follow(context.Context, func(takeover.Count)) error
	// end ends its connections to a backend. It doesn't wait.
	end(takeover.Backend)
	// retire makes the predecessor accept no more clients. An error means that this agent must end.
	retire(context.Context) (takeover.Farewell, error)
	// close tells it that this agent has ended or doesn't start.
	close()
}

// follow passes the connections of the predecessor to the dataplane. An error ends the agent.
func (a *agent) follow(ctx context.Context) error {
	defer close(a.followed)
	defer a.predecessorEnded()
	count := func(c takeover.Count) {
		a.relayed.count(c)
		if a.plane.relays != nil {
			a.plane.relays.add(c)
		}
	}
	for _, c := range a.predecessor.open() {
		count(c)
	}
	return a.predecessor.follow(ctx, count)
}

// elder is a process from which this one takes over.
type elder struct {
	p   *takeover.Predecessor
	log *slog.Logger
}

func (e *elder) open() []takeover.Count { return e.p.Open }

func (e *elder) follow(ctx context.Context, open func(takeover.Count)) error {
	return withResumeHint(e.p.Run(ctx, open))
}

func (e *elder) end(b takeover.Backend) { e.p.End(b) }

func (e *elder) retire(ctx context.Context) (takeover.Farewell, error) {
	farewell, err := e.p.Ready(ctx)
	if _, resumed := errors.AsType[*takeover.ResumedError](err); resumed {
		return farewell, withResumeHint(err)
	}
	if err != nil && ctx.Err() == nil {
		e.log.Warn("taken over without an answer", "err", err)
	}
	return farewell, nil
}

func (e *elder) close() { e.p.Close() }

func withResumeHint(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("take over: %w\nhint: this process ends; see its log for what it waited for, then try again", err)
}

// formerPlane is the dataplane of an agent of this process that could not hand over. It keeps that
// agent's predecessor, which may still relay connections.
type formerPlane struct {
	*agent
	former  func() // ends the predecessor of the agent
	ctx     context.Context
	cancel  context.CancelFunc
	opened  []takeover.Count // as returned by open
	retired chan struct{}
	once    sync.Once
	drained chan struct{}
}

func newFormerPlane(ctx context.Context, a *agent) *formerPlane {
	f := &formerPlane{agent: a, former: a.leave, retired: make(chan struct{}), drained: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(ctx)
	a.leave = func() {}
	return f
}

func (f *formerPlane) open() []takeover.Count {
	f.opened = f.openConnections()()
	return f.opened
}

func (f *formerPlane) follow(ctx context.Context, open func(takeover.Count)) error {
	select {
	case <-ctx.Done():
		return nil
	case <-f.retired:
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		<-f.drained
	}()
	takeover.Changes(ctx, f.opened, f.openConnections(), func(changed []takeover.Count) error {
		for _, c := range changed {
			open(c)
		}
		return nil
	})
	return nil
}

func (f *formerPlane) end(b takeover.Backend) { f.endConnections(b) }

func (f *formerPlane) retire(context.Context) (takeover.Farewell, error) {
	f.once.Do(func() {
		close(f.retired)
		go func() {
			defer close(f.drained)
			f.drain(f.ctx, f.hardStopAfter())
			_ = f.plane.Close()
			f.former()
		}()
	})
	farewell := f.farewell()
	farewell.PID = os.Getpid()
	return farewell, nil
}

func (f *formerPlane) close() {
	f.cancel()
	_, _ = f.retire(f.ctx)
	<-f.drained
}

// takeoverFailure is the failure of another process to take over from this one.
type takeoverFailure struct {
	pid int
	at  time.Time
	why string
}

// failureShown is how long status shows a failure.
const failureShown = time.Hour

func (f *takeoverFailure) event() event.Event {
	return event.Event{Kind: "takeover_failed", Object: fmt.Sprintf("process %d", f.pid), Message: f.why}
}

// takeoverChecks returns the line of `ironvip status` about a recent failure.
func (a *agent) takeoverChecks() []v1.Check {
	f := a.failure
	if f == nil || time.Since(f.at) > failureShown {
		return nil
	}
	return []v1.Check{{Name: "take-over", Level: v1.LevelWarn,
		Message: fmt.Sprintf("process %d did not take over %s ago: %s", f.pid, time.Since(f.at).Round(time.Second), f.why),
		Hint:    "see the log of that process, then try again"}}
}
