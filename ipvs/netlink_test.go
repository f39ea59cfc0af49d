package ipvs

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func testConn(t *testing.T) (*conn, *counters) {
	t.Helper()
	var stats counters
	c, err := dial(unix.NETLINK_GENERIC, &stats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c, &stats
}

// getFamily asks for a family's number, which needs no rights.
func getFamily(b []byte, name string) []byte {
	b = append(beginMessage(b, unix.GENL_ID_CTRL, 0), unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
	return appendAttrString(b, unix.CTRL_ATTR_FAMILY_NAME, name)
}

// Each of many messages gets its own outcome, though only the last of a pack
// asks for an answer.
func TestWriteTellsEachOutcome(t *testing.T) {
	c, stats := testConn(t)
	for _, n := range []int{0, 1, 2, packMessages, packMessages + 1, 3*packMessages + 7} {
		before := stats.sends.Load()
		bad := func(i int) bool { return i%3 == 1 || i == n-1 && n%2 == 0 }
		told := 0
		err := c.write(t.Context(), n, func(b []byte, i int) []byte {
			if bad(i) {
				return getFamily(b, "no such family")
			}
			return getFamily(b, "nlctrl")
		}, func(i int, err error) {
			if i != told {
				t.Fatalf("%d messages: told of %d, want %d", n, i, told)
			}
			told++
			if bad(i) != (err == unix.ENOENT) || !bad(i) && err != nil {
				t.Errorf("%d messages: outcome of %d is %v", n, i, err)
			}
		})
		if err != nil || told != n {
			t.Errorf("%d messages: told of %d, %v", n, told, err)
		}
		if got, want := stats.sends.Load()-before, uint64((n+packMessages-1)/packMessages); got != want {
			t.Errorf("%d messages took %d sends, want %d", n, got, want)
		}
	}
}

func TestWriteKeepsPacksBounded(t *testing.T) {
	c, stats := testConn(t)
	const size, n = 8 << 10, 10
	err := c.write(t.Context(), n, func(b []byte, i int) []byte {
		return appendAttr(getFamily(b, "nlctrl"), 0x7f, make([]byte, size)...)
	}, func(int, error) {})
	if err != nil {
		t.Fatal(err)
	}
	if got := stats.sends.Load(); got != 4 { // 3 fit into 32 KiB
		t.Errorf("%d sends, want 4", got)
	}
	if cap(c.out) > 4*packBytes {
		t.Errorf("the buffer grew to %d bytes", cap(c.out))
	}
}

// Where answers overrun the receive buffer, what isn't known is said to be
// unknown, nothing hangs, and the next question gets its own answer.
func TestLostAnswersAreUnknown(t *testing.T) {
	c, stats := testConn(t)
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	unknown := 0
	err := c.write(t.Context(), packMessages, func(b []byte, i int) []byte {
		return getFamily(b, "no such family")
	}, func(i int, err error) {
		switch err {
		case errUnknown:
			unknown++
		case unix.ENOENT:
		default:
			t.Errorf("outcome of %d is %v", i, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if unknown == 0 || uint64(unknown) != stats.lost.Load() {
		t.Errorf("%d unknown, %d counted as lost", unknown, stats.lost.Load())
	}
	for _, name := range []string{"nlctrl", "no such family", "nlctrl"} {
		answers := 0
		err := c.query(t.Context(), func(b []byte) []byte { return getFamily(b, name) }, func(uint16, []byte) error { answers++; return nil })
		if found := err == nil; found != (name == "nlctrl") || found && answers != 1 {
			t.Errorf("%s: %d answers, %v", name, answers, err)
		}
	}
}

func TestEndedContextSendsNothing(t *testing.T) {
	c, stats := testConn(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.write(ctx, 1, func(b []byte, i int) []byte { return getFamily(b, "nlctrl") }, func(int, error) { t.Error("an outcome") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("write: %v", err)
	}
	err = c.query(ctx, func(b []byte) []byte { return getFamily(b, "nlctrl") }, func(uint16, []byte) error { t.Error("an answer"); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("query: %v", err)
	}
	if n := stats.sends.Load(); n != 0 {
		t.Errorf("%d sends", n)
	}
}

// A dump, and the reopening of a socket whose answer made no sense to the
// reader.
func TestQueryAfterAFailedReader(t *testing.T) {
	c, _ := testConn(t)
	dump := func(b []byte) []byte {
		return append(beginMessage(b, unix.GENL_ID_CTRL, unix.NLM_F_DUMP), unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
	}
	if err := c.query(t.Context(), dump, func(uint16, []byte) error { return errMalformed }); err != errMalformed {
		t.Errorf("a reader's error comes back as %v", err)
	}
	families := 0
	if err := c.query(t.Context(), dump, func(uint16, []byte) error { families++; return nil }); err != nil || families < 2 {
		t.Errorf("%d families, %v", families, err)
	}
	if id, err := lookupFamily(t.Context(), c); err == nil && id < unix.GENL_MIN_ID {
		t.Errorf("IPVS has family %d", id)
	}
}

// dropAnswers makes a socket deaf: nothing that the kernel sends gets through.
func dropAnswers(fd int) error {
	short := unix.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &short); err != nil {
		return err
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
}

// Where an answer never comes, the outcome is unknown, a question fails, and
// the next one is asked on a new socket.
func TestAnswerThatNeverComes(t *testing.T) {
	c, stats := testConn(t)
	if err := dropAnswers(c.fd); err != nil {
		t.Fatal(err)
	}
	unknown := 0
	err := c.write(t.Context(), 3, func(b []byte, _ int) []byte { return getFamily(b, "nlctrl") }, func(_ int, err error) {
		if err == errUnknown {
			unknown++
		}
	})
	if err != nil || unknown != 3 || stats.lost.Load() != 3 {
		t.Errorf("%d unknown, %d counted as lost, %v", unknown, stats.lost.Load(), err)
	}
	ask := func() error {
		return c.query(t.Context(), func(b []byte) []byte { return getFamily(b, "nlctrl") }, func(uint16, []byte) error { return nil })
	}
	if err := ask(); err != nil {
		t.Errorf("on a new socket: %v", err)
	}
	if err := dropAnswers(c.fd); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err != unix.EAGAIN {
		t.Errorf("a question without an answer: %v", err)
	}
	if err := ask(); err != nil {
		t.Errorf("on a new socket: %v", err)
	}
}
