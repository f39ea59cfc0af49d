package l2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/announce/l2/link"
	"github.com/ironvip/ironvip/internal/netlink"
)

// Pace of announcements: 20,000 addresses a second. Each is a frame per interface.
const (
	burst = 100
	tick  = 5 * time.Millisecond
	// joining is the part of a tick for joining groups. The kernel needs about 0.1 ms for one of
	// 10,000.
	joining = 2 * time.Millisecond
)

// Run announces until the context ends or a socket fails. At the end it closes the gate and all
// sockets, and returns the cause, or nil if the context ended. It may be called once.
func (s *Speaker) Run(ctx context.Context) error {
	failed := make(chan error, 4)
	var readers sync.WaitGroup
	for _, read := range []func() error{s.receiveARP, s.receiveND, s.watchGate, func() error { return s.links.Run(ctx) }} {
		readers.Go(func() { failed <- read() })
	}
	err := s.loop(ctx, failed)
	s.mu.Lock()
	s.ended = true
	shut := s.gate.Shut(context.WithoutCancel(ctx))
	s.mu.Unlock()
	s.close()
	readers.Wait()
	return errors.Join(err, shut)
}

// loop joins decisions, links, claims and time.
func (s *Speaker) loop(ctx context.Context, failed <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var resume time.Time // the next burst
	for {
		now := time.Now()
		s.step(ctx, now)
		if !now.Before(resume) {
			s.machine.Run(now, burst)
			s.join()
			resume = now.Add(tick)
		}
		s.changeGate()
		s.deliver()
		timer.Reset(time.Until(s.next(resume)))
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-s.wake:
		case <-timer.C:
		}
	}
}

// next returns when the loop has something to do without being woken.
func (s *Speaker) next(resume time.Time) time.Time {
	at := time.Now().Add(time.Hour)
	sooner := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	if first, ok := s.machine.First(); ok {
		if first.Before(resume) {
			first = resume
		}
		sooner(first)
	}
	if len(s.joins) > 0 {
		sooner(resume)
	}
	sooner(s.repairs.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	sooner(s.alive)
	return at
}

// step takes in everything new.
func (s *Speaker) step(ctx context.Context, now time.Time) {
	s.mu.Lock()
	s.checkAlive(now)
	orders, state, alive, dirty := s.orders, s.state, !s.alive.IsZero(), s.dirty
	s.orders, s.dirty = nil, intact
	var observed map[netip.Addr]observation
	if len(s.observed) > 0 {
		observed, s.observed = s.observed, map[netip.Addr]observation{}
	}
	s.mu.Unlock()

	if i := slices.IndexFunc(orders, func(o order) bool { return o.kind == orderClear }); i >= 0 {
		s.forgetAll()
	}
	if alive && !s.opened {
		s.opened = true
		s.report(Report{State: GateOpen})
	}
	if s.takeLinks(ctx, now, state) {
		dirty = max(dirty, unsure)
		s.repairs.at = now
	}
	s.machine.SetUsable(now, alive && slices.ContainsFunc(state.Links, link.Link.Usable))
	for _, o := range orders {
		switch o.kind {
		case orderOwn:
			s.own(now, o.addr, o.probe)
		case orderRelease:
			s.release(o.addr)
		case orderReannounce:
			s.machine.Reannounce(now)
		case orderMeet:
			s.meet(ctx, o.addr)
		}
	}
	for a, h := range observed {
		s.machine.Observe(now, a, h.kind, h.from)
	}
	s.restore(ctx, now, dirty)
}

// forgetAll follows from the dead-man switch. The caller's orders since then are new ones.
func (s *Speaker) forgetAll() {
	s.machine.Clear()
	s.open, s.shut = s.open[:0], s.shut[:0]
	s.groups.Close()
	clear(s.joined)
	s.joins = nil
	if s.opened {
		s.opened = false
		s.report(Report{State: GateClosed, Reason: "no refresh in time: all addresses are released"})
	}
}

func (s *Speaker) own(now time.Time, a netip.Addr, probe bool) {
	if slices.Contains(s.seen.Own, a) {
		s.report(Report{Addr: a, State: Conflict, Reason: "another interface of this host has the address"})
		return
	}
	s.machine.Own(now, a, probe)
	if a.Is6() {
		s.joins = append(s.joins, a)
	}
}

func (s *Speaker) release(a netip.Addr) {
	s.machine.Release(a)
	s.leave(a)
	s.report(Report{Addr: a, State: Released})
}

// meet asks for the link address of another host, as its kernel answers.
func (s *Speaker) meet(ctx context.Context, a netip.Addr) {
	w, ok := s.links.To(ctx, a)
	if !ok {
		return
	}
	s.buffer = frame.AppendSolicit(s.buffer[:0], w.Link.MAC, w.Source, a.WithZone(""))
	if err := s.socket(a).Send(w.Link.Index, s.buffer); err != nil { // the next heartbeat asks again
		s.log.Debug("ask for the link address of another host", "addr", a, "interface", w.Link.Name, "err", err)
	}
}

// watchGate waits for changes of the tables until Close.
func (s *Speaker) watchGate() error {
	for {
		e, err := s.events.Next()
		lost := errors.Is(err, netlink.ErrLost)
		switch {
		case err != nil && !lost:
			return fmt.Errorf("follow nftables: %w", err)
		case !lost && !gate.Touches(e):
			continue
		}
		s.mu.Lock()
		switch {
		case lost || e.Port == 0: // the kernel itself drops the chain of a vanished interface
			s.dirty = max(s.dirty, unsure)
		case e.Port != s.gate.Port():
			s.dirty = max(s.dirty, foreign)
		}
		if s.dirty != intact {
			s.notify()
		}
		s.mu.Unlock()
	}
}

var _ claim.Output = output{}
