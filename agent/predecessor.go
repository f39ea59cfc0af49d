package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	mode        string      // of the dataplane, by the wish of an operator; "": as configured
	succession  *succession // nil: no agent has started this process
}

// predecessor is what serves clients until an agent is ready: another process, or a dataplane of this process.
type predecessor interface {
	// watch returns when nothing more is heard of the predecessor. An error means that this agent must end.
	watch(context.Context) error
	// retire makes the predecessor accept no more clients. An error means that this agent must end.
	retire(context.Context) (takeover.Farewell, error)
	// drained is closed when this process has no connections of the predecessor.
	drained() <-chan struct{}
	// close tells it that this agent has ended or doesn't start.
	close()
}

// elder is a process from which this one takes over.
type elder struct {
	p   *takeover.Predecessor
	log *slog.Logger
}

func (e *elder) watch(ctx context.Context) error { return withResumeHint(e.p.Run(ctx)) }

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

func (e *elder) drained() <-chan struct{} { return closedChannel }

func (e *elder) close() { e.p.Close() }

func withResumeHint(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("take over: %w\nhint: this process ends; see its log for what it waited for, then try again", err)
}

// formerPlane is the dataplane of an agent of this process that could not hand over. The next agent of this process counts
// its connections by relay, as those of another process.
type formerPlane struct {
	*agent
	former func()          // ends the predecessor of the agent
	relay  *takeover.Relay // nil: no connections end with it
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
	ended  chan struct{}
}

func newFormerPlane(ctx context.Context, a *agent, relay *takeover.Relay) *formerPlane {
	f := &formerPlane{agent: a, former: a.leave, relay: relay, ended: make(chan struct{})}
	f.ctx, f.cancel = context.WithCancel(ctx)
	a.leave = func() {}
	return f
}

func (f *formerPlane) watch(context.Context) error { return nil }

func (f *formerPlane) retire(context.Context) (takeover.Farewell, error) {
	f.once.Do(func() {
		f.relay.Retire(f.hardStopAfter())
		go func() {
			defer close(f.ended)
			f.drain(f.ctx, f.hardStopAfter())
			f.relay.Close()
			_ = f.plane.Close()
			f.former()
		}()
	})
	return takeover.Farewell{}, nil
}

func (f *formerPlane) drained() <-chan struct{} { return f.ended }

func (f *formerPlane) close() {
	f.cancel()
	_, _ = f.retire(f.ctx)
	<-f.ended
}

// takeoverFailure is the failure of another process to take over from this one.
type takeoverFailure struct {
	pid int // 0: it ended before it asked
	at  time.Time
	why string
}

func (f *takeoverFailure) process() string {
	if f.pid == 0 {
		return "the process that this agent started"
	}
	return fmt.Sprintf("process %d", f.pid)
}

// failureShown is how long status shows a failure.
const failureShown = time.Hour

func (f *takeoverFailure) event() event.Event {
	return event.Event{Kind: "takeover_failed", Object: f.process(), Message: f.why}
}

// takeoverChecks returns the line of `ironvip status` about a recent failure.
func (a *agent) takeoverChecks() []v1.Check {
	f := a.failed.Load()
	if f == nil || time.Since(f.at) > failureShown {
		return nil
	}
	return []v1.Check{{Name: "take-over", Level: v1.LevelWarn,
		Message: fmt.Sprintf("%s did not take over %s ago: %s", f.process(), time.Since(f.at).Round(time.Second), f.why),
		Hint:    "see the log of that process, then try again"}}
}
