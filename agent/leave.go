package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/api"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// leaving is a dataplane that leaves, because another one serves.
type leaving struct {
	mode  string
	plane plane.Leaver // nil: not found yet
	state atomic.Pointer[leavingState]
	stop  context.CancelFunc // before it serves again
	ended chan struct{}      // it has left, or was stopped
}

// leavingState is how far a dataplane has left.
type leavingState struct {
	open  map[vip.Protocol]int
	until time.Time // the last connection ends then
	err   error     // why it can't be ended
}

// leaveEvery is the interval at which the connections of a dataplane that leaves are counted, and at which a failed step is
// repeated.
const leaveEvery = 2 * time.Second

// The first look for what other dataplanes have left, which the first counts wait for.
const (
	firstLooks = 5
	lookPause  = 200 * time.Millisecond // between two looks
)

// findLeft returns a dataplane that has left something here, or nil.
func (a *agent) findLeft(ctx context.Context, mode string) (plane.Leaver, error) {
	k, before := configs.DataplaneOf(mode), a.ranBefore(mode)
	switch {
	case k.Userspace && before:
		return a.findProxy(ctx)
	case k.Find == nil:
		return nil, nil
	}
	h := a.planeHost()
	if before { // what is on record may have been deleted
		h.Owns = a.allocator.Owns
	}
	l, err := k.Find(ctx, h)
	if _, blind := errors.AsType[plane.Blind](err); blind {
		err = nil
	}
	if err != nil || l == nil {
		return nil, err
	}
	return leaverOf(ctx, l)
}

// leaverOf returns l, or nil if t has left nothing.
func leaverOf(ctx context.Context, l plane.Leaver) (plane.Leaver, error) {
	left, err := l.Left(ctx)
	if err == nil && left.Any() {
		return l, nil
	}
	return nil, errors.Join(err, l.Close())
}

// proxyLeaver is the userspace proxy after a switch to a dataplane of the kernel.
type proxyLeaver struct {
	*remote.Client
	within func() time.Duration // from now on, its connections may go on
	end    func()
}

// proxyWait bounds the wait for its answer.
const proxyWait = 5 * time.Second

// findProxy returns the proxy, if it has frontends, or connections of earlier ones.
func (a *agent) findProxy(ctx context.Context) (plane.Leaver, error) {
	if a.config.startedWith().Dataplane.ProxySocket == "" { // the process has ended, and they with it
		return nil, nil
	}
	l := a.proxyOf(ctx)
	report, err := l.report(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask the proxy for its frontends: %w", err), l.Close())
	}
	if report.Frontends+report.Draining == 0 {
		return nil, l.Close()
	}
	return l, nil
}

// proxyOf returns the proxy as one that leaves, until it is closed.
func (a *agent) proxyOf(ctx context.Context) *proxyLeaver {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	l := &proxyLeaver{a.proxyClient(nil), nil, end}
	l.within = func() time.Duration {
		return max(0, time.Until(a.leavesSince(configs.ModeProxy).Add(a.hardStopAfter())))
	}
	go func() { _ = l.Run(running) }()
	return l
}

// handshakeTime is how long a proxy that leaves still accepts the clients that are connecting to it: as long as TCP waits
// before it repeats a packet. The kernel serves all later clients, and nobody accepts those once the proxy's listeners are
// closed.
const handshakeTime = time.Second

func (l *proxyLeaver) Leave(ctx context.Context) error {
	if !backoff.Sleep(ctx, handshakeTime) {
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	return unlessEnded(l.Retire(ctx, l.within()))
}

// report returns the state of the proxy.
func (l *proxyLeaver) report(ctx context.Context) (process.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	r, err := l.Ask(ctx)
	return r, unlessEnded(err)
}

// unlessEnded returns err, unless it says that the process of the proxy has ended, and all connections with it.
func unlessEnded(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

// Open returns the number of connections of each protocol.
func (l *proxyLeaver) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	r, err := l.report(ctx)
	out := map[vip.FrontendKey]int{}
	if r.Draining > 0 {
		out[vip.FrontendKey{Protocol: vip.TCP}] = int(r.Draining)
	}
	return out, err // UDP clients have moved with their next datagram
}

// Left has nothing to do: the proxy knows what it has.
func (l *proxyLeaver) Left(context.Context) (usage.Left, error) { return usage.Left{}, nil }

// Remove has nothing to do: the proxy ends its connections in time.
func (l *proxyLeaver) Remove(context.Context) error { return nil }

func (l *proxyLeaver) Close() error {
	l.end()
	return nil
}

// leaveOthers ends what other dataplanes have left here, once this one serves all clients alone: until then, they serve what
// this one does not serve yet.
func (a *agent) leaveOthers(ctx context.Context) error {
	var all []func()
	for _, mode := range otherModes(a.plane().about.Mode) { // it already has connections to count
		x, ctx := a.planes.add(ctx, mode, a.lookFor(ctx, mode))
		all = append(all, func() { a.leave(ctx, x) })
	}
	close(a.planes.looked)
	select {
	case <-ctx.Done():
	case <-a.settled:
		a.notePlane()
	}
	var leaves sync.WaitGroup
	for _, f := range all {
		leaves.Go(f)
	}
	leaves.Wait()
	return nil
}

// lookFor finds what another dataplane has left. It tries again, because a list of the kernel fails if something changes
// meanwhile. The end of the dataplane reports an error that stays.
func (a *agent) lookFor(ctx context.Context, mode string) plane.Leaver {
	for range firstLooks {
		l, err := a.findLeft(ctx, mode)
		if err == nil || errors.Is(err, fs.ErrPermission) || !backoff.Sleep(ctx, lookPause) {
			return l
		}
	}
	return nil
}

// otherModes returns the other dataplanes.
func otherModes(mode string) []string {
	return slices.DeleteFunc(configs.Modes(), func(m string) bool { return m == mode })
}

// leave ends a dataplane, however often a step of that fails, until it is stopped.
func (a *agent) leave(ctx context.Context, x *leaving) {
	defer a.planes.drop(x, a.log)
	for ctx.Err() == nil {
		err := a.end(ctx, x)
		if err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrPermission) { // without the rights, there is nothing that this agent may end
			return
		}
		a.log.Warn("state of another dataplane not removed; trying again", "dataplane", x.mode, "err", err)
		x.state.Store(&leavingState{err: err})
		backoff.Sleep(ctx, leaveEvery)
	}
}

// end lets a dataplane take no new connections, and removes it with its last connection, or after hard_stop_after.
func (a *agent) end(ctx context.Context, x *leaving) (err error) {
	if x.plane == nil {
		found, err := a.findLeft(ctx, x.mode)
		if err != nil {
			return err
		}
		if found == nil { // it may have ended without this agent, with a reboot
			a.forgetLeaving(x.mode)
			return nil
		}
		a.planes.found(x, found)
	}
	now := a.plane().about.Mode
	what := fmt.Sprintf("%s replaces %s", now, x.mode)
	since := a.leavesSince(x.mode)
	a.log.Info("another dataplane leaves", "dataplane", x.mode, "since", since, "connections_end_within", a.hardStopAfter())
	var left map[vip.Protocol]int
	if keepsOpen(x.mode, now) {
		if err := x.plane.Leave(ctx); err != nil {
			return fmt.Errorf("let %s leave: %w", x.mode, err)
		}
		a.events.Add(event.Event{Kind: "dataplane_retired", Object: x.mode, Message: what + ": new connections no longer go there"})
		if left, err = a.drained(ctx, x, since); err != nil {
			return err
		}
	}
	if err := x.plane.Remove(ctx); err != nil {
		return fmt.Errorf("remove %s: %w", x.mode, err)
	}
	a.forgetLeaving(x.mode)
	message := what + ": everything that was left is removed"
	if total(left) > 0 {
		message += ", with " + connectionsText(left)
	}
	a.log.Info("another dataplane removed", "dataplane", x.mode, "connections_ended", total(left))
	a.events.Add(event.Event{Kind: "dataplane_removed", Object: x.mode, Message: message})
	return nil
}

// drained waits until a dataplane that takes no new connections has none, or until their time is over. It returns those that
// are left.
func (a *agent) drained(ctx context.Context, x *leaving, since time.Time) (left map[vip.Protocol]int, err error) {
	for {
		until := since.Add(a.hardStopAfter())
		open, err := x.plane.Open(ctx)
		switch {
		case err != nil && time.Now().Before(until):
			return nil, fmt.Errorf("count the connections of %s: %w", x.mode, err)
		case err != nil:
			a.log.Warn("connections of another dataplane are ended without a count of them", "dataplane", x.mode, "err", err)
			return left, nil
		}
		left = byProtocol(open)
		x.state.Store(&leavingState{open: left, until: until})
		if total(left) == 0 || !time.Now().Before(until) {
			return left, nil
		}
		if !backoff.Sleep(ctx, min(leaveEvery, time.Until(until))) {
			return nil, ctx.Err()
		}
	}
}

// keepsOpen reports whether the connections of one dataplane continue while another one serves new clients. IPVS takes
// every packet of its services before the sockets of the userspace proxy, so both can't have one address and port.
func keepsOpen(from, to string) bool {
	return !configs.DataplaneOf(from).BeforeSockets || !configs.DataplaneOf(to).Userspace
}

func byProtocol(open map[vip.FrontendKey]int) map[vip.Protocol]int {
	out := map[vip.Protocol]int{}
	for key, n := range open {
		out[key.Protocol] += n
	}
	return out
}

func total(open map[vip.Protocol]int) (n int) {
	for _, x := range open {
		n += x
	}
	return n
}

// connectionsText returns "2 connections by tcp, 1 connection by udp".
func connectionsText(open map[vip.Protocol]int) string {
	var out []string
	for _, p := range slices.Sorted(maps.Keys(open)) {
		if n := open[p]; n > 0 {
			out = append(out, fmt.Sprintf("%s by %s", text.Plural(n, "connection"), p))
		}
	}
	return strings.Join(out, ", ")
}

func (x *leaving) String() string {
	s := x.state.Load()
	if s.err != nil {
		return s.err.Error()
	}
	return fmt.Sprintf("%s drains: %s, %s at most", x.mode, cmp.Or(connectionsText(s.open), "no connections"), max(0, time.Until(s.until).Round(time.Second)))
}

// dataplane returns the dataplane for the API.
func (a *agent) dataplane() api.Dataplane {
	about := a.plane().now()
	about.Switching = a.switching()
	if how := a.connect.String(); how != "" {
		about.Reason += "; " + how
	}
	for _, x := range a.planes.shown() {
		s := x.state.Load()
		row := v1.LeavingDataplane{Mode: x.mode, Connections: total(s.open)}
		if s.err != nil {
			row.Problem = s.err.Error()
		} else {
			row.Until = &s.until
		}
		about.Leaving = append(about.Leaving, row)
	}
	return about
}

// leavingChecks returns the line of `ironvip status` about the dataplanes that leave.
func (a *agent) leavingChecks() []v1.Check {
	all := a.planes.shown()
	if len(all) == 0 {
		return nil
	}
	c := v1.Check{Name: "leaving dataplane", Level: v1.LevelOK, Message: text.Join(all, "; ", (*leaving).String)}
	if slices.ContainsFunc(all, func(x *leaving) bool { return x.state.Load().err != nil }) {
		c.Level, c.Hint = v1.LevelWarn, "it is tried again; ironvip events"
	}
	return []v1.Check{c}
}
