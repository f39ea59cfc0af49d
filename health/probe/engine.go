package probe

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/vip"
)

// Options are the inputs and limits of an Engine.
type Options struct {
	Results *table.Table[Target, Result] // of NewResults; the engine is its only writer
	Log     *slog.Logger                 // optional; faults of this host, at most one record a minute
	RootCAs *x509.CertPool               // optional: instead of the host's, for https and grpc

	// Paths has the paths that targets need; the engine is its only writer. Mark returns the packet
	// mark of one, and may be called concurrently. Both are needed only for targets with a path. A
	// path without a mark proves nothing about its target.
	Paths *table.Table[vip.ProbePath, vip.ProbePath]
	Mark  func(vip.ProbePath) (uint32, error)

	// The limits bound how many probes run at once. Probes over a limit wait: see lane. One that
	// starts more than an interval late is counted as late; its target keeps its health. An engine
	// needs up to Sockets + Requests + 4 * Commands + 3 descriptors.
	Sockets  int // tcp and udp; 0 means 4,096
	Requests int // http, https and grpc, with a goroutine or three each; 0 means 512
	Commands int // exec; 0 allows none: their targets stay Unknown, with this reason
}

// Defaults of Options.
const (
	defaultSockets  = 4096
	defaultRequests = 512
)

const (
	// pace is the least time between two turns of the engine, which bounds their cost. A timer of Go
	// makes it about a millisecond. A probe starts and a result counts at most
	// this much later. All probes that are due start in one turn.
	pace = 500 * time.Microsecond
	// stall is the delay of a turn that shows that this process did not run: it was stopped, or the
	// host had no processor for it.
	stall = 500 * time.Millisecond
	// heartbeat is the longest time between turns while probes run, to notice that this process does
	// not run when it should: often enough for a timeout of half a second; see delays.
	heartbeat = 25 * time.Millisecond
	// idle is the longest time between turns.
	idle = time.Hour
	// pathGrace is how long a path may be without a mark before that is a fault, and pathPause is the
	// time between two looks meanwhile. It is programmed within milliseconds, except at the start of
	// the agent.
	pathGrace = 5 * time.Second
	pathPause = 100 * time.Millisecond
)

// Engine runs the probes of all targets. Its methods may be called concurrently.
type Engine struct {
	o     Options
	epoch time.Time   // times of the engine are monotonic durations since this
	wake  wake.Signal // ends the wait for the next turn

	resultsMu sync.Mutex
	results   []done // reported, until the next turn

	mu       sync.Mutex
	targets  map[Target]*target
	paths    map[vip.ProbePath]int     // how many targets need each
	queue    delayqueue.Queue[*target] // targets that are idle, by their next probe
	spread   spread
	chance   *rand.Rand // tests replace it
	lanes    [lanes]lane
	counters counters
	rows     publisher
	planned  time.Duration // latest time of the next turn
	faults   faults
	delays   delays
}

// target is a target with its state. The engine's lock guards it, except Target and group.
type target struct {
	Target
	group   *group
	state   state
	slow    int           // how many times longer the interval is
	due     time.Duration // of the next probe, or of the one that runs
	began   time.Duration // of the probe that runs
	stalls  uint64        // counters.stalls when it began
	changed bool          // the row has to be written
	stopped bool
	without time.Duration // since when its path has no mark; 0: it has one, or needs none
}

// The lanes.
const (
	socketLane = iota
	requestLane
	commandLane
	lanes
)

// laneTypes are the types of each lane.
var laneTypes = [lanes]string{socketLane: "tcp, udp", requestLane: "http, https, grpc", commandLane: "exec"}

// laneOf returns the lane of a type.
func laneOf(t vip.CheckType) int {
	switch t {
	case vip.CheckTCP, vip.CheckUDP:
		return socketLane
	case vip.CheckExec:
		return commandLane
	}
	return requestLane
}

// New returns an engine without targets. It probes while Run runs.
func New(o Options) *Engine {
	if o.Sockets == 0 {
		o.Sockets = defaultSockets
	}
	if o.Requests == 0 {
		o.Requests = defaultRequests
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{o: o, epoch: time.Now(), wake: wake.New(), targets: make(map[Target]*target), paths: make(map[vip.ProbePath]int), rows: publisher{results: o.Results}, counters: counters{durations: NewDurations()},
		chance: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	e.lanes[socketLane].limit = o.Sockets
	e.lanes[requestLane].limit = o.Requests
	e.lanes[commandLane].limit = o.Commands
	return e
}

// now returns the time in both clocks.
func (e *Engine) now() (time.Duration, vip.Instant) {
	now := time.Now()
	return now.Sub(e.epoch), vip.InstantOf(now)
}

// Use is how a target is probed.
type Use struct {
	Namespace string // whose share of the limits the probes use
	Local     bool   // one of its backends runs on this host, which does not matter to an Engine
	Slow      int    // how many times longer the interval is, up to maxSlow; 0 means 1
	Begins    Result // where the health starts, such as the row of an earlier run; zero: Unknown
}

// Start adds a target. Its row is in the table when Start returns. A new target is probed at once; many
// are spread over 80% of their interval, at most 10 s. A slow one is probed at a random time within its
// interval, so that many hosts that start slowly at the same time make no burst. The interval while the
// health is in doubt stays. Start of a target that is already there changes its interval. Start of one
// with a check that sends nothing does nothing.
func (e *Engine) Start(t Target, use Use) {
	c := t.Check()
	if c.Type == 0 || c.Type >= checkTypes {
		return
	}
	slow := min(max(use.Slow, 1), maxSlow)
	now, wall := e.now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.targets[t]; n != nil {
		e.setSlow(n, slow, now)
		return
	}
	l := &e.lanes[laneOf(c.Type)]
	n := &target{Target: t, group: l.join(use.Namespace), slow: slow, state: restoreState(use.Begins, wall)}
	e.targets[t] = n
	e.needPath(t, 1)
	switch {
	case l.limit > 0 && slow > 1:
		e.plan(n, now+random(e.chance, interval(&c, slow)))
	case l.limit > 0:
		e.plan(n, now+e.spread.next(&c, now))
	default:
		n.state = newState(wall)
		n.state.add(&c, Local, "checks of type "+c.Type.String()+" are not enabled", now, wall)
	}
	e.o.Results.Set(n.state.row(t))
}

// maxSlow bounds how many times longer an interval gets.
const maxSlow = 1000

// setSlow changes how many times longer the interval of a target is. A probe that waits for its time
// comes at a random time within the new interval, but not later than planned. The caller holds mu.
func (e *Engine) setSlow(t *target, slow int, now time.Duration) {
	if t.slow == slow {
		return
	}
	t.slow = slow
	c := t.Check()
	if at := now + random(e.chance, interval(&c, slow)); e.queue.Has(t) && at < t.due {
		e.plan(t, at)
	}
}

// Stop removes a target and its row. A probe that runs ends without effect.
func (e *Engine) Stop(t Target) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.targets[t]; n != nil {
		n.stopped = true
		delete(e.targets, t)
		e.lanes[laneOf(t.Check().Type)].leave(n)
		e.needPath(t, -1)
		e.queue.Drop(n)
		e.o.Results.Delete(t)
	}
}

// withoutPath ends a probe that can't begin, because its path has no mark. The caller holds mu.
func (e *Engine) withoutPath(t *target, err error, now time.Duration, wall vip.Instant) {
	if t.without == 0 {
		t.without = max(now, 1)
	}
	if now-t.without >= pathGrace {
		e.count(&done{t, NoPath, clip(t.Path().String() + ": " + err.Error()), 0}, now, wall)
		return
	}
	e.lanes[laneOf(t.Check().Type)].ended(t)
	e.plan(t, now+pathPause)
}

// plan puts a target into the queue. The caller holds mu.
func (e *Engine) plan(t *target, due time.Duration) {
	t.due = due
	e.queue.Set(t, e.epoch.Add(due))
	if due < e.planned {
		e.wake.Set()
	}
}

// report receives results of probes, from any goroutine.
func (e *Engine) report(results []done) {
	e.resultsMu.Lock()
	e.results = append(e.results, results...)
	e.resultsMu.Unlock()
	e.wake.Set()
}

// Run probes until ctx ends. It returns when all sockets are closed and all commands have ended.
// The rows stay. It returns an error only if it can't start. Call it once.
func (e *Engine) Run(ctx context.Context) error {
	sockets, err := newPoller(e.report)
	if err != nil {
		return err
	}
	running, ctx := parallel.NewGroup(ctx)
	running.Go(sockets.run)
	running.Go(func() error {
		defer sockets.close()
		r := &routines{ctx: ctx, all: running, run: e.probeFunc, report: e.report}
		e.run(ctx, [lanes]prober{sockets, r, r})
		return nil
	})
	return running.Wait()
}

// probeFunc returns the function for a type that runs in a goroutine.
func (e *Engine) probeFunc(t vip.CheckType) probeFunc {
	switch t {
	case vip.CheckGRPC:
		return e.grpc
	case vip.CheckExec:
		return runCommand
	}
	return e.http
}

// run is Run with the given probers.
func (e *Engine) run(ctx context.Context, probers [lanes]prober) {
	e.mu.Lock()
	for i := range e.lanes {
		e.lanes[i].prober = probers[i]
	}
	e.planned, _ = e.now()
	e.respread(e.planned)
	e.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-e.wake:
		}
		timer.Reset(e.turn())
		if !backoff.Sleep(ctx, pace) {
			return
		}
	}
}

// turn counts results, starts the probes that are due and writes changed rows. It returns the time
// until the next turn is needed.
func (e *Engine) turn() time.Duration {
	e.resultsMu.Lock()
	results := e.results
	e.results = nil
	e.resultsMu.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	now, wall := e.now()
	e.delays.add(now, now-e.planned)
	if now-e.planned > stall {
		e.counters.stalls++
		e.respread(now)
	}
	for i := range results {
		e.count(&results[i], now, wall)
	}
	for t := range e.queue.Due(e.epoch.Add(now)) {
		e.queue.Drop(t)
		e.lanes[laneOf(t.Check().Type)].wait(t)
	}
	running := 0
	for i := range e.lanes {
		running += e.startWaiting(i, now, wall)
	}
	next := min(e.rows.write(now, &e.counters), now+idle)
	if running > 0 {
		next = min(next, now+heartbeat)
	}
	if _, at, ok := e.queue.First(); ok {
		next = min(next, at.Sub(e.epoch))
	}
	e.faults.write(e.o.Log, now)
	e.planned = max(next, now+pace)
	return e.planned - now
}

// count applies the result of a probe. The caller holds mu.
func (e *Engine) count(d *done, now time.Duration, wall vip.Instant) {
	t, c := d.t, d.t.Check()
	e.lanes[laneOf(c.Type)].ended(t)
	if t.stopped {
		return
	}
	if d.outcome == TimedOut || d.outcome == Exited { // a command can have timeouts of its own
		if why := e.delays.starved(t.began, now, c.Timeout, d.took); why != "" {
			d.outcome, d.reason = Starved, why
		}
	}
	if p := t.Path(); !p.IsZero() && d.reason != "" && d.outcome != NoPath {
		d.reason = clip(d.reason + " (as clients, at " + p.VIP.String() + ")")
	}
	if d.outcome.IsLocal() && !t.Private() { // the dataplane tells of a VIP that is not there yet
		e.faults.add(t.Target, d.outcome, d.reason, now, wall)
	}
	e.counters.add(c.Type, d.outcome, d.took)
	if t.state.add(&c, d.outcome, d.reason, now, wall) && !t.changed {
		t.changed = true
		e.rows.add(t)
	}
	if t.stalls != e.counters.stalls { // else all that ran would be due at once
		e.plan(t, now+e.spread.next(&c, now))
	} else {
		e.plan(t, following(e.chance, &c, t.slow, t.state.doubtful(&c), t.began, now))
	}
}

// startWaiting starts the waiting probes of a lane that are within its limit, and returns how many
// run. The caller holds mu.
func (e *Engine) startWaiting(of int, now time.Duration, wall vip.Instant) (running int) {
	l := &e.lanes[of]
	for t := l.next(); t != nil; t = l.next() {
		c := t.Check()
		if now-t.due > interval(&c, t.slow) {
			e.counters.late++
			e.faults.late[of].add("", now, wall)
		}
		t.began, t.stalls = now, e.counters.stalls
		if mark, err := e.markOf(t); err != nil {
			e.withoutPath(t, err, now, wall)
		} else {
			t.without = 0
			l.add(t, mark)
		}
	}
	l.flush()
	return l.running
}

// respread delays the probes that became due while nothing ran, so that they don't start all at
// once: they are spread like those of new targets. The caller holds mu.
func (e *Engine) respread(now time.Duration) {
	for t := range e.queue.Due(e.epoch.Add(now)) {
		c := t.Check()
		t.due = now + 1 + e.spread.next(&c, now) // Due needs a time after now
		e.queue.Set(t, e.epoch.Add(t.due))
	}
}

// Assigned is closed: an engine probes every target that is started.
func (e *Engine) Assigned() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// LastFailure returns when a probe of a target last failed, also if others passed since, and why; zero and
// "" if none did. It costs O(1).
func (e *Engine) LastFailure(t Target) (at vip.Instant, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.targets[t]; n != nil {
		return n.state.failed, n.state.failure
	}
	return at, why
}

// Stats returns the counters since New.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, _ := e.now()
	s := e.counters.stats()
	s.Targets = len(e.targets)
	for i := range e.lanes {
		l := &e.lanes[i]
		s.Running += l.running
		s.Waiting += l.waiting
		if f := e.faults.late[i].current(now); f.Probes > 0 {
			s.Delayed = append(s.Delayed, Delayed{Fault: f, Types: laneTypes[i], Limit: l.limit, Running: l.running, Queue: l.waiting})
		}
	}
	for o := range e.faults.of {
		if f := e.faults.of[o].current(now); f.Probes > 0 {
			if s.Faults == nil {
				s.Faults = map[Outcome]Fault{}
			}
			s.Faults[Outcome(o)] = f
		}
	}
	return s
}
