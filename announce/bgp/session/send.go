package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/transport"
	"github.com/ironvip/ironvip/internal/parallel"
)

// sendTimeout bounds a write without a hold timer (RFC 9687, section 4).
const sendTimeout = 8 * time.Minute

// established runs the session after the handshake.
func (s *Session) established(ctx context.Context) error {
	s.upSince = time.Now()
	if s.resumed != nil {
		s.upSince = s.resumed.Since
		s.unsent = message.AppendKeepalive(s.resumed.Unsent) // the last one may be long ago
	}
	nextHop := transport.NextHops(s.conn, s.VRF, s.remote.ExtendedNextHop)
	s.out = newAdjRIBOut(s.routes, s.remote.Families, nextHop, s.attributes)
	defer s.out.feed.Close()
	if s.resumed != nil {
		s.out.resume(s.resumed.Prefixes)
	}
	s.owner.KeepsRoutes(s.restarts())
	s.enter(Established, func(st *Status) {
		st.Lacks, st.Sending = s.lacks(nextHop), s.upSince
		st.RouterID, st.HoldTime, st.GracefulRestart, st.RouterRestart = s.remote.RouterID, s.hold, s.restarts(), s.remote.RestartTime
	})
	failed := make(chan error, 1)
	s.reading = make(chan struct{})
	go func() {
		defer close(s.reading)
		failed <- parallel.Recovered(s.readAll)
	}()
	err := s.sendAll(ctx, failed)
	if s.torn && ctx.Err() == nil {
		err = notificationAfter(err, failed)
	}
	s.owner.Update(func(st *Status) {
		st.Prefixes, st.Lacks, st.Sending = [message.Families]int{}, [message.Families]string{}, time.Time{}
	})
	return err
}

// notificationAfter returns the router's NOTIFICATION if it comes after a write has failed with err, and
// else err. A router sends its reason and closes the connection, also in the middle of a write of this
// host.
func notificationAfter(err error, failed <-chan error) error {
	timer := time.NewTimer(notifyTimeout)
	defer timer.Stop()
	var received *NotificationReceived
	select {
	case read := <-failed:
		if errors.As(read, &received) {
			return read
		}
	case <-timer.C:
	}
	return err
}

// sendAll sends the prefixes, their changes and keepalives until the session ends.
func (s *Session) sendAll(ctx context.Context, failed <-chan error) error {
	keepalive := time.NewTimer(s.untilKeepalive())
	defer keepalive.Stop()
	var late <-chan time.Time
	if s.resumed != nil {
		late = time.After(RestartTime)
	}
	for all := s.upSince; ; { // when everything had been sent
		var more bool
		if s.unsent, more = s.out.appendUpdates(s.unsent); len(s.unsent) > 0 {
			s.owner.Update(func(st *Status) { st.Sending = all })
		}
		if err := s.flush(ctx); err != nil {
			return err
		}
		if !more {
			all = time.Now()
			s.owner.Update(func(st *Status) { st.Prefixes, st.Sending = s.out.prefixes, time.Time{} })
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-failed:
			return err
		case <-keepalive.C:
			s.unsent = message.AppendKeepalive(s.unsent)
			keepalive.Reset(s.untilKeepalive())
		case <-s.out.changed:
		case <-s.out.ready:
		case <-late: // as if the session had ended
			s.unsent = s.out.appendGone(s.unsent)
		case <-s.owner.AttributesChanged():
			s.unsent = s.out.appendChanged(s.unsent)
		case <-s.refresh:
			for f := range message.Families {
				if s.refreshed[f].Swap(false) {
					s.unsent = s.out.appendAgain(s.unsent, f)
				}
			}
		}
	}
}

// attributes returns the encoded attributes of a route; "": the router does not get it.
func (s *Session) attributes(r announce.Route) string {
	a, gets := s.owner.Attributes(r)
	if !gets {
		return ""
	}
	return string(a.Append(nil, s.remote.AS4))
}

// untilKeepalive returns the time to the next KEEPALIVE: a third of the hold time, with jitter (RFC
// 4271, 4.4 and 10).
func (s *Session) untilKeepalive() time.Duration {
	if s.hold == 0 {
		return time.Hour // anything: no KEEPALIVE is needed
	}
	d := s.hold / 3
	return d*3/4 + rand.N(d/4)
}

// flush sends the appended messages.
func (s *Session) flush(ctx context.Context) error {
	if len(s.unsent) == 0 {
		return nil
	}
	limit := s.hold
	if limit == 0 {
		limit = sendTimeout
	}
	s.conn.SetWriteDeadline(time.Now().Add(limit))
	if ctx.Err() != nil { // otherwise its end sets another deadline
		return context.Cause(ctx)
	}
	_, err := s.conn.Write(s.unsent)
	s.unsent = s.unsent[:0]
	if cap(s.unsent) > 1<<16 { // of an announcement of everything
		s.unsent = nil
	}
	if err == nil {
		return nil
	}
	s.torn = true
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("send hold timer expired: the router has read nothing for %s", limit)
	}
	return s.broken(err)
}
