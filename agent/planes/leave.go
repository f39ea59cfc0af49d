package planes

import (
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

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/plane"
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

// add adds a dataplane that shall leave, and returns the context for that. L is nil if it was not found.
func (p *Planes) add(ctx context.Context, mode string, l plane.Leaver) (*leaving, context.Context) {
	ctx, stop := context.WithCancel(ctx)
	x := &leaving{mode: mode, plane: l, stop: stop, ended: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving[mode] = x
	return x, ctx
}

// found records that a dataplane that shall leave is there.
func (p *Planes) found(x *leaving, l plane.Leaver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x.plane = l
}

// drop closes a dataplane that has left, or shall not leave.
func (p *Planes) drop(x *leaving) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.leaving, x.mode)
	if x.plane != nil {
		if err := x.plane.Close(); err != nil {
			p.o.Log.Debug("close a dataplane that has left", "dataplane", x.mode, "err", err)
		}
	}
	close(x.ended)
}

// of returns the dataplane of a mode if it leaves, or nil.
func (p *Planes) of(mode string) *leaving {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.leaving[mode]
}

// shown returns those that leave and have been counted, by mode.
func (p *Planes) shown() (out []*leaving) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, x := range p.leaving {
		if x.state.Load() != nil {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b *leaving) int { return strings.Compare(a.mode, b.mode) })
	return out
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
func (p *Planes) findLeft(ctx context.Context, mode string) (plane.Leaver, error) {
	k, before := configs.DataplaneOf(mode), p.ranBefore(mode)
	switch {
	case k.Userspace && before:
		return p.findProxy(ctx)
	case k.Find == nil:
		return nil, nil
	}
	h := p.host()
	if before { // what is on record may have been deleted
		h.Owns = p.o.Owns
	}
	l, err := k.Find(ctx, h)
	if _, blind := errors.AsType[plane.Blind](err); blind {
		err = nil
	}
	if err != nil || l == nil {
		return nil, err
	}
	left, err := l.Left(ctx)
	if err == nil && left.Any() {
		return l, nil
	}
	return nil, errors.Join(err, l.Close())
}

// leaveOthers ends what other dataplanes have left here, once this one serves all clients alone: until then, they serve what
// this one does not serve yet.
func (p *Planes) leaveOthers(ctx context.Context) error {
	var all []func()
	for _, mode := range otherModes(p.Mode()) { // it already has connections to count
		x, ctx := p.add(ctx, mode, p.lookFor(ctx, mode))
		all = append(all, func() { p.leave(ctx, x) })
	}
	close(p.looked)
	if wake.Wait(ctx, p.o.Settled) == nil {
		p.noteServing()
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
func (p *Planes) lookFor(ctx context.Context, mode string) plane.Leaver {
	for range firstLooks {
		l, err := p.findLeft(ctx, mode)
		if err == nil || errors.Is(err, fs.ErrPermission) || !backoff.Sleep(ctx, lookPause) {
			return l
		}
	}
	return nil
}

// leave ends a dataplane, however often a step of that fails, until it is stopped.
func (p *Planes) leave(ctx context.Context, x *leaving) {
	defer p.drop(x)
	for ctx.Err() == nil {
		err := p.end(ctx, x)
		if err == nil || ctx.Err() != nil || errors.Is(err, fs.ErrPermission) { // without the rights, there is nothing that this agent may end
			return
		}
		p.o.Log.Warn("state of another dataplane not removed; trying again", "dataplane", x.mode, "err", err)
		x.state.Store(&leavingState{err: err})
		backoff.Sleep(ctx, leaveEvery)
	}
}

// end lets a dataplane take no new connections, and removes it with its last connection, or after hard_stop_after.
func (p *Planes) end(ctx context.Context, x *leaving) (err error) {
	if x.plane == nil {
		found, err := p.findLeft(ctx, x.mode)
		if err != nil {
			return err
		}
		if found == nil { // it may have ended without this agent, with a reboot
			p.forgetLeaving(x.mode)
			return nil
		}
		p.found(x, found)
	}
	now := p.Mode()
	what := fmt.Sprintf("%s replaces %s", now, x.mode)
	since := p.leavesSince(x.mode)
	p.o.Log.Info("another dataplane leaves", "dataplane", x.mode, "since", since, "connections_end_within", p.hardStopAfter())
	var left map[vip.Protocol]int
	if keepsOpen(x.mode, now) {
		if err := x.plane.Leave(ctx); err != nil {
			return fmt.Errorf("let %s leave: %w", x.mode, err)
		}
		p.o.Events.Add(event.Event{Kind: "dataplane_retired", Object: x.mode, Message: what + ": new connections no longer go there"})
		if left, err = p.drained(ctx, x, since); err != nil {
			return err
		}
	}
	if err := x.plane.Remove(ctx); err != nil {
		return fmt.Errorf("remove %s: %w", x.mode, err)
	}
	p.forgetLeaving(x.mode)
	message := what + ": everything that was left is removed"
	if total(left) > 0 {
		message += ", with " + connectionsText(left)
	}
	p.o.Log.Info("another dataplane removed", "dataplane", x.mode, "connections_ended", total(left))
	p.o.Events.Add(event.Event{Kind: "dataplane_removed", Object: x.mode, Message: message})
	return nil
}

// drained waits until a dataplane that takes no new connections has none, or until their time is over. It returns those that
// are left.
func (p *Planes) drained(ctx context.Context, x *leaving, since time.Time) (left map[vip.Protocol]int, err error) {
	for {
		until := since.Add(p.hardStopAfter())
		open, err := x.plane.Open(ctx)
		switch {
		case err != nil && time.Now().Before(until):
			return nil, fmt.Errorf("count the connections of %s: %w", x.mode, err)
		case err != nil:
			p.o.Log.Warn("connections of another dataplane are ended without a count of them", "dataplane", x.mode, "err", err)
			return left, nil
		}
		left = map[vip.Protocol]int{}
		for key, n := range open {
			left[key.Protocol] += n
		}
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
