package netlink

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlinktest"
)

func testConn(t *testing.T) (*Conn, *Counters) {
	t.Helper()
	var stats Counters
	c := must.Get(Dial(unix.NETLINK_GENERIC, &stats))(t)
	t.Cleanup(c.Close)
	return c, &stats
}

// getFamily asks for a family's number, which needs no rights.
func getFamily(b []byte, name string) []byte {
	b = append(BeginMessage(b, unix.GENL_ID_CTRL, 0), unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
	return AppendAttrString(b, unix.CTRL_ATTR_FAMILY_NAME, name)
}

// Each of many messages gets its own outcome, though only the last of a pack
// asks for an answer.
func TestWriteReportsEachOutcome(t *testing.T) {
	c, stats := testConn(t)
	for _, n := range []int{0, 1, 2, PackMessages, PackMessages + 1, 3*PackMessages + 7} {
		before := stats.Sends.Load()
		bad := func(i int) bool { return i%3 == 1 || i == n-1 && n%2 == 0 }
		reported := 0
		err := c.Write(t.Context(), n, func(b []byte, i int) []byte {
			if bad(i) {
				return getFamily(b, "no such family")
			}
			return getFamily(b, "nlctrl")
		}, func(i int, err error) {
			must.Equal(t, i, reported, "%d messages: outcome of %d, want of %d", n, i, reported)
			reported++
			if bad(i) != (err == unix.ENOENT) || !bad(i) && err != nil {
				t.Errorf("%d messages: outcome of %d is %v", n, i, err)
			}
		})
		if err != nil || reported != n {
			t.Errorf("%d messages: %d outcomes, %v", n, reported, err)
		}
		expect.Equal(t, stats.Sends.Load()-before, uint64((n+PackMessages-1)/PackMessages), "sends of %d messages", n)
	}
}

func TestWriteKeepsPacksBounded(t *testing.T) {
	c, stats := testConn(t)
	const size, n = 8 << 10, 10
	err := c.Write(t.Context(), n, func(b []byte, i int) []byte {
		return AppendAttr(getFamily(b, "nlctrl"), 0x7f, make([]byte, size)...)
	}, func(int, error) {})
	must.Succeed(t, err)
	if got := stats.Sends.Load(); got != 4 { // 3 fit into 32 KiB
		t.Errorf("%d sends, want 4", got)
	}
	expect.AtMost(t, cap(c.out), 4*packBytes, "bytes of the buffer")
}

// Where answers overrun the receive buffer, what isn't known is said to be
// unknown, nothing hangs, and the next question gets its own answer.
func TestLostAnswersAreUnknown(t *testing.T) {
	c, stats := testConn(t)
	must.Succeed(t, unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	unknown := 0
	err := c.Write(t.Context(), PackMessages, func(b []byte, i int) []byte {
		return getFamily(b, "no such family")
	}, func(i int, err error) {
		switch err {
		case ErrUnknown:
			unknown++
		case unix.ENOENT:
		default:
			t.Errorf("outcome of %d is %v", i, err)
		}
	})
	must.Succeed(t, err)
	if unknown == 0 || uint64(unknown) != stats.Lost.Load() {
		t.Errorf("%d unknown, %d counted as lost", unknown, stats.Lost.Load())
	}
	for _, name := range []string{"nlctrl", "no such family", "nlctrl"} {
		answers := 0
		err := c.Query(t.Context(), func(b []byte) []byte { return getFamily(b, name) }, func(uint16, []byte) error { answers++; return nil })
		if found := err == nil; found != (name == "nlctrl") || found && answers != 1 {
			t.Errorf("%s: %d answers, %v", name, answers, err)
		}
	}
}

func TestEndedContextSendsNothing(t *testing.T) {
	c, stats := testConn(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.Write(ctx, 1, func(b []byte, i int) []byte { return getFamily(b, "nlctrl") }, func(int, error) { t.Error("an outcome") })
	expect.Is(t, err, context.Canceled, "write")
	err = c.Query(ctx, func(b []byte) []byte { return getFamily(b, "nlctrl") }, func(uint16, []byte) error { t.Error("an answer"); return nil })
	expect.Is(t, err, context.Canceled, "query")
	expect.Equal(t, stats.Sends.Load(), 0, "sends")
}

// A dump, and the reopening of a socket whose answer made no sense to the
// reader.
func TestQueryAfterAFailedReader(t *testing.T) {
	c, _ := testConn(t)
	dump := func(b []byte) []byte {
		return append(BeginMessage(b, unix.GENL_ID_CTRL, unix.NLM_F_DUMP), unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
	}
	if err := c.Query(t.Context(), dump, func(uint16, []byte) error { return ErrMalformed }); err != ErrMalformed {
		t.Errorf("a reader's error comes back as %v", err)
	}
	families := 0
	if err := c.Query(t.Context(), dump, func(uint16, []byte) error { families++; return nil }); err != nil || families < 2 {
		t.Errorf("%d families, %v", families, err)
	}
	if id, err := FamilyID(t.Context(), c, "IPVS"); err == nil && id < unix.GENL_MIN_ID {
		t.Errorf("IPVS has family %d", id)
	}
}

// Where an answer never comes, the outcome is unknown, a question fails, and
// the next one is asked on a new socket.
func TestAnswerThatNeverComes(t *testing.T) {
	c, stats := testConn(t)
	must.Succeed(t, netlinktest.DropAnswers(c.fd))
	unknown := 0
	err := c.Write(t.Context(), 3, func(b []byte, _ int) []byte { return getFamily(b, "nlctrl") }, func(_ int, err error) {
		if err == ErrUnknown {
			unknown++
		}
	})
	if err != nil || unknown != 3 || stats.Lost.Load() != 3 {
		t.Errorf("%d unknown, %d counted as lost, %v", unknown, stats.Lost.Load(), err)
	}
	ask := func() error {
		return c.Query(t.Context(), func(b []byte) []byte { return getFamily(b, "nlctrl") }, func(uint16, []byte) error { return nil })
	}
	expect.Succeed(t, ask(), "on a new socket")
	must.Succeed(t, netlinktest.DropAnswers(c.fd))
	if err := ask(); err != unix.EAGAIN {
		t.Errorf("a question without an answer: %v", err)
	}
	expect.Succeed(t, ask(), "on a new socket")
}

// emptyBatch is one message, whatever it asks for.
type emptyBatch struct{}

func (emptyBatch) End(_, last, port uint32) []byte {
	b := BeginMessage(nil, unix.NLMSG_NOOP, unix.NLM_F_ACK)
	EndMessage(b, last, port)
	return b
}

// Transact succeeds when the last message is answered. It fails with every error
// that the kernel reports, also with one of the batch itself, after which no
// answer comes.
func TestTransact(t *testing.T) {
	answer := func(seq uint32, errno unix.Errno) []byte {
		b := BeginMessage(nil, unix.NLMSG_ERROR, 0)
		b = binary.NativeEndian.AppendUint32(b, -uint32(errno))
		b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
		EndMessage(b, seq, 0)
		return b
	}
	for name, c := range map[string]struct {
		answers [][]byte
		want    []error
	}{
		"done":               {[][]byte{answer(6, 0)}, nil},
		"an old answer":      {[][]byte{answer(4, unix.EPERM), answer(6, 0)}, nil},
		"a message":          {[][]byte{answer(5, unix.ENOENT), answer(6, 0)}, []error{unix.ENOENT}},
		"two messages":       {[][]byte{answer(5, unix.EEXIST), answer(5, unix.ENOENT), answer(6, 0)}, []error{unix.EEXIST, unix.ENOENT}},
		"the last":           {[][]byte{answer(6, unix.EBUSY)}, []error{unix.EBUSY}},
		"the batch":          {[][]byte{answer(5, unix.EPERM)}, []error{unix.EPERM}},
		"no answer":          {nil, []error{ErrUnknown}},
		"a malformed answer": {[][]byte{{1, 2, 3}}, []error{ErrMalformed}},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			must.Succeed(t, err)
			defer unix.Close(fds[1])
			conn := &Conn{fd: fds[0], in: make([]byte, recvBytes), stats: &Counters{}, seq: 4}
			defer conn.Close()
			for _, a := range c.answers {
				must.Get(unix.Write(fds[1], a))(t)
			}
			if c.answers == nil {
				timeout := unix.NsecToTimeval((10 * time.Millisecond).Nanoseconds())
				must.Succeed(t, unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
			}
			err = conn.Transact(t.Context(), emptyBatch{})
			must.Equal(t, err == nil, c.want == nil, err)
			for _, want := range c.want {
				expect.Is(t, err, want)
			}
		})
	}
}
