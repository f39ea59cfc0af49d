package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/takeover"
)

// takeoverSocket is where an agent awaits the process that replaces it. The socket itself is one of
// those that are handed over: whoever is the agent accepts requests, and no request is lost.
const takeoverSocket = "takeover.sock"

func takeoverPath(cfg *configs.Config) string {
	return filepath.Join(cfg.Node.StateDir, takeoverSocket)
}

// request is another process that wants to take over. As an error, it is the reason why the parts
// of the agent end.
type request struct {
	*takeover.Request
	next *sockets.Set // copies of the listening sockets
}

func (r *request) Error() string { return fmt.Sprintf("process %d takes over", r.PID) }

// listenForTakeover opens the socket for requests. Without it, nothing is missing except that no
// process can take over.
func (a *agent) listenForTakeover(ctx context.Context) {
	l, err := a.sockets.ListenUnix(ctx, takeoverPath(a.config.startedWith()), 0o600)
	if err != nil {
		a.log.Warn("no other agent can take over from this one", "err", err)
		return
	}
	a.requests = l
}

// awaitTakeover returns a request to take over, or the end of ctx. While another agent still serves
// clients, that one answers requests.
func (a *agent) awaitTakeover(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-a.replaces():
	}
	if a.requests == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	defer context.AfterFunc(ctx, func() { _ = a.requests.SetDeadline(time.Unix(1, 0)) })()
	for {
		conn, err := a.requests.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil {
				a.log.Warn("no other agent can take over from this one any more", "err", err)
				<-ctx.Done()
			}
			return ctx.Err()
		}
		r, err := takeover.ReadRequest(conn)
		if err == nil {
			next, err := a.sockets.Next()
			if err == nil {
				return &request{r, next}
			}
			a.log.Warn("request to take over refused", "pid", r.PID, "err", err)
			r.Refuse(err.Error())
		} else if !errors.Is(err, takeover.ErrSilent) {
			a.log.Warn("request to take over refused", "err", err)
		}
	}
}

// replaces returns a channel that is closed when this agent replaces no other one (any more).
func (a *agent) replaces() <-chan struct{} {
	if a.predecessor == nil {
		return closedChannel
	}
	return a.settled
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// refuseOthers refuses all requests until the returned function is called.
func (a *agent) refuseOthers(r *request) (stop func()) {
	if a.requests == nil {
		return func() {}
	}
	_ = a.requests.SetDeadline(time.Time{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := a.requests.AcceptUnix()
			if err != nil {
				return
			}
			if other, err := takeover.ReadRequest(conn); err == nil {
				a.log.Warn("request to take over refused: another process is taking over", "pid", other.PID, "taking_over", r.PID)
				other.Refuse(r.Error() + " at present\nhint: wait until that agent is ready (ironvip status), then try again")
			}
		}
	})
	return func() {
		_ = a.requests.SetDeadline(time.Unix(1, 0))
		work.Wait()
	}
}

// handOver gives the listening sockets and the state file to another process, and returns when the
// last connection has ended. If the other process doesn't become ready, it returns what this
// process's next agent begins with.
func (a *agent) handOver(ctx context.Context, r *request) (*inheritance, error) {
	defer r.Close()
	release := sync.OnceFunc(a.releaseRequests)
	defer release()
	a.log.Info("handing over", "pid", r.PID)
	relay := a.openRelay() // first, so that the other process finds it
	stopRefusing := sync.OnceFunc(a.refuseOthers(r))
	defer stopRefusing()
	strays := a.signals.during(a.log, r)
	defer strays.stop()
	stopWatch := a.feedWatchdog(ctx)
	defer stopWatch()
	err := a.closeStores()
	if err == nil {
		err = r.Give(r.next)
	}
	if err == nil {
		err = r.AwaitReady(ctx)
	}
	if ctx.Err() != nil {
		r.next.Close()
		relay.Close()
		return nil, a.plane.Close()
	}
	if err != nil {
		return a.resume(ctx, r, relay, err)
	}
	stopRefusing()
	stopWatch()
	a.systemd.mainPID(r.PID)
	relay.Retire(a.hardStopAfter())
	_ = r.Bye(takeover.Farewell{Reload: strays.handedOver()})
	// The other process is the agent from now on, and whoever starts if that is killed. Nobody may reach this one by a socket.
	release()
	r.next.Close()
	a.log.Info("handed over", "pid", r.PID, "connections_end_within", a.hardStopAfter())
	a.drain(ctx, a.hardStopAfter())
	relay.Close()
	return nil, a.plane.Close()
}

// openRelay states the connections that end with this process to later agents. It returns nil if there can be none.
func (a *agent) openRelay() *takeover.Relay {
	if a.plane.relays == nil {
		return nil
	}
	r, err := takeover.OpenRelay(relaysPath(a.config.startedWith()), a.plane.relays.Connections, a.hardStopAfter())
	if err != nil {
		a.log.Warn("open connections of this process will not be counted by the next one", "err", err)
		return nil
	}
	return r
}

func (a *agent) releaseRequests() {
	if a.requests != nil {
		a.sockets.Release(a.requests)
	}
}

// resume returns what this process's next agent begins with, after the other process has failed.
// The dataplane of this one has accepted clients all the time.
func (a *agent) resume(ctx context.Context, r *request, relay *takeover.Relay, err error) (*inheritance, error) {
	why, ok := errors.AsType[*takeover.NotReadyError](err)
	if !ok {
		why = &takeover.NotReadyError{Why: err.Error()}
	}
	a.log.Error("the other agent did not take over; this one goes on", "pid", r.PID, "err", why)
	if err := r.Resume(ctx, why); err != nil {
		a.log.Error("the other agent may serve clients, too", "err", err)
	}
	a.awaitState(ctx)
	return &inheritance{sockets: r.next, predecessor: newFormerPlane(ctx, a, relay), signals: a.signals,
		failure: &takeoverFailure{pid: r.PID, at: time.Now(), why: why.Why}}, nil
}

// stateTime bounds the wait for a process that still has the state file.
const stateTime = time.Minute

// awaitState waits until no other process has the state file.
func (a *agent) awaitState(ctx context.Context) {
	for end := time.Now().Add(stateTime); time.Now().Before(end) && ctx.Err() == nil; {
		if err := store.Check(a.db.Path()); !errors.Is(err, store.ErrLocked) {
			return
		}
		a.log.Warn("waiting for the state file: another process has it")
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// feedWatchdog notifies the watchdog while the reconcile loop doesn't run, because the dataplane
// works.
func (a *agent) feedWatchdog(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { a.systemd.watch(ctx, time.Now) })
	return func() {
		cancel()
		watch.Wait()
	}
}

func (a *agent) hardStopAfter() time.Duration {
	return time.Duration(a.config.get().Dataplane.HardStopAfter)
}

// drain waits for the end of the open connections of this process, for at most the given time.
func (a *agent) drain(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	a.plane.drain(ctx)
	if a.predecessor != nil {
		select {
		case <-a.predecessor.drained():
		case <-ctx.Done():
		}
	}
}

// takeOver adds the listening sockets of the agent that has the state directory to set. It returns
// nil if there is no agent. The other agent has released the state directory then.
func takeOver(ctx context.Context, cfg *configs.Config, set *sockets.Set, log *slog.Logger) (*elder, error) {
	path := takeoverPath(cfg)
	p, problems, err := takeover.RequestFrom(ctx, path, set)
	logInherited(log, problems)
	_, refused := errors.AsType[*takeover.RefusedError](err)
	switch {
	case errors.Is(err, takeover.ErrNoAgent):
		log.Info("no agent to take over from", "socket", path)
		return nil, nil
	case refused:
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("take over: %w\nhint: the log of the running agent has more", err)
	}
	log.Info("taking over", "sockets", set.Unclaimed())
	return &elder{p, log}, nil
}

func logInherited(log *slog.Logger, problems []error) {
	for _, err := range problems {
		log.Warn("inherited socket not used", "err", err)
	}
}
