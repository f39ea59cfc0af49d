package l2

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/parallel"
)

// Pace of announcements: 20,000 addresses a second on each LAN. Each is a frame per interface.
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
		readers.Go(func() { failed <- parallel.Recovered(read) })
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
			s.mu.Lock()
			for _, l := range s.lans {
				l.machine.Run(now, burst)
			}
			_ = s.changeGate() // it is tried again with the whole gate
			s.mu.Unlock()
			s.join()
			resume = now.Add(tick)
		}
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
	sooner(s.repairs.at)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lans {
		if first, ok := l.machine.First(); ok {
			if first.Before(resume) {
				first = resume
			}
			sooner(first)
		}
	}
	if len(s.joins) > 0 {
		sooner(resume)
	}
	sooner(s.alive)
	return at
}

// step takes in everything new.
func (s *Speaker) step(ctx context.Context, now time.Time) {
	s.mu.Lock()
	s.checkAlive(now)
	alive := !s.alive.IsZero()
	if alive && !s.opened {
		s.opened = true
		s.report(Report{State: GateOpen})
	}
	former, state := s.seen, s.state
	s.seen = state
	if s.takeLinks(now, former, state) {
		s.dirty = max(s.dirty, unsure)
		s.repairs.at = now
	}
	for _, l := range s.lans {
		l.machine.SetUsable(now, alive && l.usable(state))
	}
	for a, o := range s.observed {
		if l := s.lanOf(a); l != nil {
			l.machine.Observe(now, a, o.kind, o.from)
		}
	}
	if len(s.observed) > 0 {
		s.observed = map[netip.Addr]observation{} // a map never shrinks
	}
	_ = s.changeGate() // it is tried again with the whole gate
	dirty := s.dirty
	s.dirty = intact
	s.mu.Unlock()

	s.followLinks(ctx, former, state)
	s.restore(ctx, now, dirty)
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
			s.wake.Set()
		}
		s.mu.Unlock()
	}
}

var _ claim.Output = output{}
