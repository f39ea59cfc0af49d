package proxy

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"time"

	"github.com/ironvip/ironvip/proxy/proxyproto"
)

// After the delay, a client without an answer is connected to another backend, too (as in RFC 8305,
// which calls this the Connection Attempt Delay). It is a multiple of the time that connects to the
// backend usually take, so that distant backends are not all tried at once.
const (
	leastDelay  = 300 * time.Millisecond
	delayFactor = 4
	// resendTime is when the kernel repeats a SYN (RFC 6298). With affinity, clients wait for the
	// answer to that, because a lost packet shouldn't take a session to another backend.
	resendTime = time.Second
)

// dialing is a connect to a backend, as a link of its endpoint.
//
// It runs in the client's goroutine. If it has no answer after the delay, its timer tries another
// backend in a goroutine of its own, while this one goes on. The first that is connected serves the
// client. The others are given up at once, except for one connect of each backend: its outcome shows
// whether the backend is silent or only slow. A connect that is answered within the delay needs no
// second goroutine.
type dialing struct {
	c      *connection
	e      *endpoint
	began  int64 // by Target.now
	cancel context.CancelFunc

	// guarded by attempt.mu
	timer    *time.Timer
	rest     time.Duration // from the end of the delay to the timeout; 0: the delay has passed
	timedOut bool
	ended    bool
	witness  bool // its outcome counts for all that the backend leaves without an answer
}

func (d *dialing) abort() { d.cancel() }

// dial tries to connect c to e, or handles the error. Meanwhile and afterwards, e has it as a link.
// It returns an error if other backends would fail, too.
func (c *connection) dial(e *endpoint) (bool, error) {
	f := c.f
	if err := f.ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	d := &dialing{c: c, e: e, began: f.target.now(), cancel: cancel}
	if !e.add(d) { // removed meanwhile
		return false, nil
	}
	d.start()
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", e.addr.String())
	won := false
	if err == nil {
		won, err = d.win(conn.(*net.TCPConn))
	}
	timedOut, witness := d.end()
	if witness {
		defer e.outlier.settle()
	}
	if won {
		return true, nil
	}
	e.remove(d)
	switch {
	case err == nil: // removed meanwhile, or another backend was faster
	case timedOut:
		d.failed(&net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(e.addr), Err: os.ErrDeadlineExceeded})
	case f.ctx.Err() != nil, errors.Is(err, context.Canceled): // the same
	case isLocalFault(err):
		f.complain("connect to a backend", err)
		if lacksDescriptor(err) {
			return false, err
		}
	default:
		d.failed(err)
	}
	return false, nil
}

// failed records that the backend refused the client or did not answer. If it was late before, the
// client has already counted as sent to another backend, or does so with the next one.
func (d *dialing) failed(err error) {
	a := d.c.attempt
	a.mu.Lock()
	late := slices.Contains(a.slow, d)
	a.mu.Unlock()
	if late {
		a.record(d.e, err)
	} else {
		a.failed(d.e, err)
	}
}

// start starts the timer.
func (d *dialing) start() {
	a := d.c.attempt
	b := a.f.backends.Load()
	delay := max(leastDelay, delayFactor*time.Duration(d.e.outlier.connectTime.Load()))
	if b.affinity != nil {
		delay += resendTime
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	timeout := min(b.relay.ConnectTimeout, time.Duration(a.deadline-d.began))
	delay = min(delay, timeout)
	d.rest = timeout - delay
	d.timer = time.AfterFunc(delay, d.alarm)
}

// end stops the timer. It returns whether the connect has timed out, and whether its outcome counts
// for others.
func (d *dialing) end() (timedOut, witness bool) {
	d.c.attempt.mu.Lock()
	defer d.c.attempt.mu.Unlock()
	d.ended = true
	d.timer.Stop()
	return d.timedOut, d.witness
}

// alarm is called after the delay, and again after the timeout.
func (d *dialing) alarm() {
	if d.overdue() {
		d.c.task(d.c.connect)
	}
}

// overdue reports whether to try another backend. If so, it has counted a task for that.
func (d *dialing) overdue() bool {
	c, a := d.c, d.c.attempt
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case d.ended:
		return false
	case d.rest == 0:
		d.timedOut = true
		d.cancel()
		return false
	}
	d.witness = d.e.outlier.doubt(d.began, d.rest)
	d.timer.Reset(d.rest)
	d.rest = 0
	switch {
	case a.over:
		if !d.witness {
			d.cancel()
		}
		return false
	case c.f.target.capacity.take(c.owner, backendFiles) != admitted:
		return false
	}
	a.slow = append(a.slow, d)
	a.lost = d.e
	a.remember(d.e)
	c.f.tasks.Add(1)
	return true
}

// win connects the client to the backend that has answered: it sends the PROXY header, if the
// service has one. It returns false if another backend was faster, or this one was removed; and an
// error if the backend has ended the connection. If it returns false, it has closed conn.
func (d *dialing) win(conn *net.TCPConn) (bool, error) {
	c, a := d.c, d.c.attempt
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.e.outlier.accepted(d.began); a.over {
		reset(conn)
		return false, nil
	}
	if v := c.f.backends.Load().relay.ProxyProtocol; v != 0 { // a write to a new connection doesn't block
		h := proxyproto.Header{Source: a.client, Destination: a.to}
		if _, err := conn.Write(h.Append(nil, proxyproto.Version(v))); err != nil {
			conn.Close()
			return false, err
		}
	}
	c.server, c.endpoint = conn, d.e
	if !d.e.swap(d, c) {
		c.server = nil
		reset(conn)
		return false, nil
	}
	a.over = true
	for _, other := range a.slow {
		if other != d && !other.ended && !other.witness {
			other.cancel()
		}
	}
	c.tallies = c.f.tallies(d.e)
	c.tallies.connected()
	c.before = d.e.compare()
	a.works(d.e)
	return true, nil
}
