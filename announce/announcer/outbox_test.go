package announcer

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/heartbeat"
	"github.com/ironvip/ironvip/test/expect"
)

// A packet that finds no room is sent again, a few times and only if it is the newest one of its
// peer. Other errors are returned and not repeated.
func TestOutboxRepeats(t *testing.T) {
	one, two := loopback(1, 7481), loopback(2, 7481)
	var sent []string
	fault := map[netip.AddrPort]error{}
	o := outbox{write: func(to netip.AddrPort, packet []byte) error {
		sent = append(sent, fmt.Sprintf("%s to %d", packet, to.Addr().As4()[3]))
		return fault[to]
	}}
	now := time.Unix(0, 0)
	after := func(d time.Duration, want ...string) {
		t.Helper()
		for end := now.Add(d); now.Before(end); {
			now = now.Add(time.Millisecond)
			if at, ok := o.next(); ok && !now.Before(at) {
				o.resend(now)
			}
		}
		expect.SameList(t, sent, want, "sent")
		sent = nil
	}
	buffer := []byte("a")
	fault[one] = heartbeat.ErrBusy
	expect.Succeed(t, errors.Join(o.send(one, buffer, now), o.send(two, buffer, now)))
	buffer[0] = 'x' // the caller uses it again
	after(resendAfter, "a to 1", "a to 2", "a to 1")
	_ = o.send(one, []byte("b"), now)
	fault[one] = nil
	after(time.Second, "b to 1", "b to 1")

	fault[one] = heartbeat.ErrBusy
	_ = o.send(one, []byte("c"), now)
	after(time.Second, "c to 1", "c to 1", "c to 1", "c to 1", "c to 1", "c to 1")
	expect.Equal(t, o.busy, 9, "packets found no room")
	_ = o.send(one, []byte("d"), now)
	fault[one] = nil
	_ = o.send(one, []byte("e"), now)
	after(time.Second, "d to 1", "e to 1")

	fault[one] = unix.EHOSTUNREACH
	if err := o.send(one, []byte("f"), now); err != unix.EHOSTUNREACH {
		t.Error(err)
	}
	after(time.Second, "f to 1")
}

// Packets that find full queues for some seconds are a problem; single ones are not.
func TestFullQueueIsReportedIfItLasts(t *testing.T) {
	var f fullQueue
	now := time.Unix(0, 0)
	busy := uint64(0)
	for _, c := range []struct {
		seconds int
		busy    bool
		want    string
	}{
		{10, false, ""}, {1, true, ""}, {10, false, ""}, // once
		{3, true, ""}, {2, true, "no room for packets for"}, {2, false, "no room for packets for"}, {5, false, ""}, {2, true, ""}, {3, true, "no room for packets for"},
	} {
		var problem error
		for range c.seconds {
			now = now.Add(time.Second)
			if c.busy {
				busy += 7
			}
			problem = f.look(busy, now)
		}
		if got := fmt.Sprint(problem); (problem == nil) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %v", c, problem)
		}
	}
}
