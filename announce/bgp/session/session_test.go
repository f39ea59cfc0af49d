package session

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// running is a session under test, and its Owner.
type running struct {
	t      *testing.T
	routes *table.Table[netip.Prefix, announce.PrefixRoute]
	conn   *breakable
	cancel context.CancelCauseFunc
	ended  chan error

	mu     sync.Mutex
	status Status
	kept   bool
	up     chan struct{} // closed when it is established
}

// breakable is a connection on which writes fail from a moment on, or reads panic.
type breakable struct {
	net.Conn
	broken, faulty atomic.Bool
}

func (c *breakable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.faulty.Load() {
		panic("a fault")
	}
	return n, err
}

func (c *breakable) Write(b []byte) (int, error) {
	if c.broken.Load() {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(b)
}

func (r *running) Update(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.status.State
	if change(&r.status); r.status.State == Established && before != Established {
		close(r.up)
	}
}

func (r *running) Attributes(announce.Route) (message.PathAttributes, bool) {
	return message.PathAttributes{ASN: 65010}, true
}

func (r *running) AttributesChanged() <-chan struct{} { return nil }

func (r *running) HandOver(net.Conn, Kept) {}

func (r *running) KeepsRoutes(keeps bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = keeps
}

func (r *running) now() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *running) keeps() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept
}

// await returns why the session ended.
func (r *running) await() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(time.Minute):
		r.t.Fatal("the session has not ended within a minute")
		return nil
	}
}

func (r *running) awaitUp() {
	r.t.Helper()
	select {
	case <-r.up:
	case err := <-r.ended:
		r.t.Fatalf("not established: %v", err)
	}
}

// start runs a session with a router in memory.
func start(t *testing.T) (*bgptest.Conn, *running) {
	t.Helper()
	ours, theirs := bgptest.Pipe()
	ctx, cancel := context.WithCancelCause(t.Context())
	routes := announce.NewPrefixRoutes()
	routes.Initializer() // it is never ready
	r := &running{t: t, routes: routes, conn: &breakable{Conn: ours}, cancel: cancel, ended: make(chan error, 1), up: make(chan struct{})}
	settings := Settings{BGPPeer: announce.BGPPeer{ASN: 65000, LocalASN: 65010}, RouterID: netip.MustParseAddr("10.0.0.2")}
	s := New(settings, r.conn, false, r.routes, r)
	go func() {
		_, err := s.Run(ctx)
		r.ended <- err
	}()
	t.Cleanup(func() { cancel(nil); r.await() })
	return bgptest.NewConn(t, theirs), r
}

// Each case has the messages of a router in a handshake, the speaker's answers, and the reason for operators.
func TestHandshakes(t *testing.T) {
	with := func(change func(*message.Open)) []byte {
		o := bgptest.Open()
		change(&o)
		return o.Append(nil)
	}
	update := func(size uint16) []byte { // the header of an UPDATE
		return append(message.AppendKeepalive(nil)[:16], byte(size>>8), byte(size), byte(message.TypeUpdate))
	}
	for _, c := range []struct {
		name      string
		send      [][]byte
		then      func(*bgptest.Conn)
		code, sub uint8 // of the answer; 0: closed without one
		reason    string
	}{
		{"wrong ASN", [][]byte{with(func(o *message.Open) { o.ASN = 65001 })}, nil, message.CodeOpen, message.OpenBadPeerAS, "ASN wrong: the router has ASN 65001, the configuration has 65000"},
		{"wrong ASN for the router", [][]byte{bgptest.Notification(message.CodeOpen, message.OpenBadPeerAS)}, nil, 0, 0, "ASN wrong: the router expects another ASN than 65010"},
		{"router ID for the router", [][]byte{bgptest.Notification(message.CodeOpen, message.OpenBadIdentifier)}, nil, 0, 0, "router ID wrong: the router rejects 10.0.0.2"},
		{"router ID", [][]byte{with(func(o *message.Open) { o.RouterID = netip.IPv4Unspecified() })}, nil, message.CodeOpen, message.OpenBadIdentifier, "router ID wrong"},
		{"hold time", [][]byte{with(func(o *message.Open) { o.HoldTime = time.Second })}, nil, message.CodeOpen, message.OpenHoldTime, "unacceptable hold time"},
		{"rejected", [][]byte{bgptest.Notification(message.CodeCease, message.CeaseRejected)}, nil, 0, 0, "connection rejected by the router"},
		{"max prefixes", [][]byte{with(func(*message.Open) {}), message.AppendKeepalive(nil), bgptest.Notification(message.CodeCease, message.CeaseMaxPrefixes)}, nil, 0, 0, "maximum prefixes exceeded"},
		{"closed before OPEN", nil, func(l *bgptest.Conn) { l.Close() }, 0, 0, "before its OPEN: it has no neighbor with this host's address"},
		{"silent", nil, nil, message.CodeHoldTimer, 0, "sent no OPEN or KEEPALIVE within 30s"},
		{"silent after OPEN", [][]byte{with(func(*message.Open) {})}, nil, message.CodeHoldTimer, 0, "sent no OPEN or KEEPALIVE within 30s"},
		{"KEEPALIVE instead of OPEN", [][]byte{message.AppendKeepalive(nil)}, nil, message.CodeFSM, message.FSMOpenSent, "KEEPALIVE instead of OPEN"},
		{"two OPEN", [][]byte{with(func(*message.Open) {}), with(func(*message.Open) {})}, nil, message.CodeFSM, message.FSMOpenConfirm, "OPEN instead of KEEPALIVE"},
		{"OPEN later", [][]byte{with(func(*message.Open) {}), message.AppendKeepalive(nil), with(func(*message.Open) {})}, nil, message.CodeFSM, message.FSMEstablished, "second OPEN"},
		{"garbage", [][]byte{[]byte("HTTP/1.1 400 Bad Request\r\n")}, nil, message.CodeHeader, message.HeaderNotSynchronized, "connection not synchronized"},
		{"hold timer", [][]byte{with(func(*message.Open) {}), message.AppendKeepalive(nil)}, nil, message.CodeHoldTimer, 0, "hold timer expired: nothing received from the router for 30s"},
		{"reset in an UPDATE", [][]byte{with(func(*message.Open) {}), message.AppendKeepalive(nil), append(update(256), 9)},
			func(l *bgptest.Conn) { l.Close() }, 0, 0, "closed the connection in the middle of an UPDATE"},
		{"oversized UPDATE", [][]byte{with(func(*message.Open) {}), message.AppendKeepalive(nil), update(0xffff)},
			nil, message.CodeHeader, message.HeaderBadLength, "bad message length"},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			l, r := start(t)
			l.Next()
			for _, b := range c.send {
				l.Send(b)
			}
			if c.then != nil {
				c.then(l)
			}
			l.Ends(c.code, c.sub)
			l.Close()
			err := r.await()
			expect.Contains(t, err.Error(), c.reason, err)
		})
	}
}

func TestKeepalives(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, _ := start(t)
		l.Establish(bgptest.Open())
		began, n := time.Now(), 0
		for time.Since(began) < 10*time.Minute {
			must.Equal(t, l.Read().Type, message.TypeKeepalive, "type")
			n++
			if n%2 == 0 {
				l.Send(message.AppendKeepalive(nil)) // within 20 s
			}
		}
		// A third of 30 s with 75 to 100 % of it, and the one of the handshake.
		expect.Between(t, n, 60, 82, "keepalives in 10 minutes")
		l.Close()
	})
}

// A router that reads nothing doesn't block the session for ever.
func TestRouterThatReadsNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l, r := start(t)
		l.Establish(bgptest.Open())
		r.awaitUp()
		synctest.Wait() // the router waits for the next message
		l.Mute()
		r.routes.Set(plain("10.96.0.1/32"))
		l.Expect("+10.96.0.1/32")
		var sending sync.WaitGroup
		defer sending.Wait()
		sending.Go(func() { // the router goes on sending
			for range 3 {
				time.Sleep(9 * time.Second)
				l.Send(message.AppendKeepalive(nil))
			}
		})
		synctest.Wait()
		sent := time.Now()
		expect.True(t, r.now().Sending.IsZero(), "everything was sent")
		time.Sleep(time.Second)
		r.routes.Set(plain("10.96.0.2/32"))
		time.Sleep(time.Second)
		expect.Equal(t, r.now().Sending, sent, "since when something waits")
		expect.Equal(t, r.now().Prefixes[message.IPv4], 1, "prefixes that were sent")
		expect.Equal(t, r.await().Error(), "send hold timer expired: the router has read nothing for 30s", "error")
		l.Close()
	})
}

// A router may end the session while this host writes. Its reason is read nevertheless.
func TestReasonBehindAFailedWrite(t *testing.T) {
	for _, reason := range []string{"maximum prefixes exceeded", "closed the connection without a NOTIFICATION"} {
		bubble.Test(t, func(t *testing.T) {
			l, r := start(t)
			l.Establish(bgptest.Open())
			r.awaitUp()
			r.conn.broken.Store(true)
			r.routes.Set(plain("10.96.0.1/32"))
			time.Sleep(100 * time.Millisecond)
			if strings.HasPrefix(reason, "maximum") {
				l.Send(bgptest.Notification(message.CodeCease, message.CeaseMaxPrefixes))
			}
			l.Close()
			err := r.await()
			expect.Contains(t, err.Error(), reason, err)
		})
	}
}

// A fault ends the session, and not the sessions with other routers.
func TestFaultOfASession(t *testing.T) {
	for _, established := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			l, r := start(t)
			if established {
				l.Establish(bgptest.Open())
				r.awaitUp()
			}
			r.conn.faulty.Store(true)
			l.Send(message.AppendKeepalive(nil))
			expect.Equal(t, r.await().Error(), "panic: a fault", "error")
			l.Close()
		})
	}
}

// The end of the context ends a session at any point, with a NOTIFICATION if its cause is one, or if
// the router would not keep the routes.
func TestEndOfTheContext(t *testing.T) {
	without := bgptest.Open()
	without.GracefulRestart = false
	for _, c := range []struct {
		name      string
		theirs    *message.Open // nil: before its OPEN
		cause     error
		code, sub uint8
		keeps     bool
	}{
		{"restart", new(bgptest.Open()), nil, 0, 0, true},
		{"restart before OPEN", nil, nil, message.CodeCease, message.CeaseShutdown, false},
		{"restart without graceful restart", &without, nil, message.CodeCease, message.CeaseShutdown, false},
		{"notification", new(bgptest.Open()), &message.Notification{Code: message.CodeCease, Subcode: message.CeaseReset}, message.CodeCease, message.CeaseReset, false},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			l, r := start(t)
			if c.theirs != nil {
				l.Establish(*c.theirs)
				r.awaitUp()
			}
			go r.cancel(c.cause)
			l.Ends(c.code, c.sub)
			l.Close()
			if err := r.await(); c.cause != nil && err != c.cause || c.cause == nil && err != context.Canceled {
				t.Errorf("%v, want %v", err, c.cause)
			}
			expect.Equal(t, r.keeps(), c.keeps, "the router keeps the routes")
		})
	}
}

// FuzzRouter sends arbitrary bytes instead of an OPEN, and in an established session. Each session
// ends with an error, and a NOTIFICATION answers a malformed message.
func FuzzRouter(f *testing.F) {
	update := append(message.AppendKeepalive(nil)[:16], 0, 23, byte(message.TypeUpdate), 0, 0, 0, 0)
	for _, b := range [][]byte{nil, []byte("HTTP/1.1 400 Bad Request\r\n"), new(bgptest.Open()).Append(nil), update, update[:20],
		append(update[:16:16], 0xff, 0xff, byte(message.TypeUpdate)), bytes.Repeat(update, 50), message.AppendKeepalive(update[:len(update):len(update)]),
		bgptest.Notification(message.CodeCease, message.CeaseMaxPrefixes, 0, 1, 1, 0, 0, 0, 100),
		message.AppendKeepalive((&message.Open{ASN: 65000, RouterID: bgptest.Addr}).Append(nil))} { // without a hold timer
		f.Add(b, false)
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, established bool) {
		bubble.Test(t, func(t *testing.T) {
			l, r := start(t)
			if established {
				l.Establish(bgptest.Open())
				r.awaitUp()
			} else {
				l.Next()
			}
			l.Send(b)
			// Bytes may be a handshake without a hold timer, or with a long one. Half a second keeps the
			// end by the router apart from that of a timer.
			defer time.AfterFunc(45*time.Second+time.Second/2, func() { l.Close() }).Stop()
			answered := false
			for m := l.Read(); m.Err == nil; m = l.Read() {
				answered = answered || m.Type == message.TypeNotification
			}
			l.Close()
			err := r.await()
			var sent *message.Notification
			if errors.As(err, &sent) != answered {
				t.Errorf("answered with a NOTIFICATION: %t; the session ended by %v", answered, err)
			}
		})
	})
}
