package announcer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/announce/heartbeat"
)

const (
	// resendAfter is the pause before a packet that the kernel had no room for is sent again, and
	// resends how often. The next heartbeat ends the attempts.
	resendAfter = 5 * time.Millisecond
	resends     = 5

	// fullFor is for how long packets must find full queues until that is a problem to report. It is
	// also how long they must not, until it is none.
	fullFor = 3 * time.Second
)

// outbox sends packets of heartbeats. The newest one of each peer is sent again if the kernel has no
// room for it: three lost ones in a row would make this host dead for the peer. Older packets are
// replaced, because a peer refuses them after a newer one.
type outbox struct {
	write  func(to netip.AddrPort, packet []byte) error
	unsent map[netip.AddrPort]*unsent
	busy   uint64 // packets that found no room
}

type unsent struct {
	packet []byte
	at     time.Time // of the next attempt
	left   int       // attempts
}

// send sends a packet. It returns an error other than that of a full queue.
func (o *outbox) send(to netip.AddrPort, packet []byte, now time.Time) error {
	delete(o.unsent, to)
	err := o.write(to, packet)
	if !errors.Is(err, heartbeat.ErrBusy) {
		return err
	}
	o.busy++
	if o.unsent == nil {
		o.unsent = map[netip.AddrPort]*unsent{}
	}
	o.unsent[to] = &unsent{slices.Clone(packet), now.Add(resendAfter), resends}
	return nil
}

// resend sends again what is due.
func (o *outbox) resend(now time.Time) {
	for to, u := range o.unsent {
		if now.Before(u.at) {
			continue
		}
		if errors.Is(o.write(to, u.packet), heartbeat.ErrBusy) {
			o.busy++
			u.at = now.Add(resendAfter)
			if u.left--; u.left > 0 {
				continue
			}
		}
		delete(o.unsent, to)
	}
}

// next returns when resend has something to do.
func (o *outbox) next() (at time.Time, ok bool) {
	for _, u := range o.unsent {
		if !ok || u.at.Before(at) {
			at, ok = u.at, true
		}
	}
	return at, ok
}

// fullQueue notices that packets find full queues again and again.
type fullQueue struct {
	busy  uint64    // at the last look
	since time.Time // of the first look with more; zero: none
	last  time.Time // of the newest look with more
}

// look takes in the number of packets that found no room so far, and returns a problem that lasts.
func (f *fullQueue) look(busy uint64, now time.Time) error {
	if busy > f.busy {
		f.busy, f.last = busy, now
		if f.since.IsZero() {
			f.since = now
		}
	}
	if now.Sub(f.last) >= fullFor {
		f.since = time.Time{}
	}
	if f.since.IsZero() || f.last.Sub(f.since) < fullFor {
		return nil
	}
	return fmt.Errorf("the kernel has had no room for packets for %s (ENOBUFS): the queue of an interface is full, or a rule drops what this host sends", now.Sub(f.since).Round(time.Second))
}
