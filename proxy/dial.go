package proxy

import (
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
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
// It has no goroutine: the connection's loop reports when the socket is connected. If there is no
// answer after the delay, alarm tries another backend in a goroutine, while this one goes on. The
// first that is connected serves the client. The others are given up at once, except for one connect
// of each backend: its outcome shows whether the backend is silent or only slow.
type dialing struct {
	c     *connection
	e     *balance.Endpoint
	began int64 // by Target.now

	mu   sync.Mutex // held while it starts, so that nothing ends it before
	sock *loop.Socket
	done bool // one of the loop, cancel and dial handles the outcome

	// guarded by connection.race
	rest     time.Duration // from the end of the delay to the timeout; 0: the delay has passed
	timedOut bool
	ended    bool
	witness  bool // its outcome counts for all that the backend leaves without an answer
}

// errCanceled means that the connect is no longer needed.
var errCanceled = errors.New("the connect was canceled")

func (d *dialing) Abort() { d.cancel() }

// cancel ends the connect without waiting for that.
func (d *dialing) cancel() { go d.endWith(errCanceled) }

func (d *dialing) endWith(err error) { d.end(func() error { return err }) }

// Ready implements loop.Watcher.
func (d *dialing) Ready(s *loop.Socket, events uint32) {
	d.end(func() error {
		s.Note(events)
		if s.Broken {
			if err := s.ConnectError(); err != nil {
				return loop.DialError(d.e.Addr, err)
			}
		}
		return nil
	})
}

// end goes on after the end of the connect, which why returns, unless that was done.
func (d *dialing) end(why func() error) {
	d.mu.Lock()
	before := d.done
	d.done = true
	d.mu.Unlock()
	if before {
		return
	}
	c := d.c
	c.task(func() step {
		switch won, err := d.orLose(func() (bool, error) { return d.settle(why()) }); {
		case won:
			return connected
		case err != nil:
			return c.refuse(c.attempt.Fail(err))
		}
		go c.task(c.connect) // may wait in the queue
		return pending
	})
}

// dial starts to connect c to e. Meanwhile and afterwards, e has it as a link. If it returns false, it
// has handled the error. It returns an error if other backends would fail, too.
func (c *connection) dial(e *balance.Endpoint) (began bool, _ error) {
	d := &dialing{c: c, e: e, began: c.f.target.balance.Now()}
	return d.orLose(func() (bool, error) {
		added, err := d.begin()
		if !added || err == nil {
			return added, err
		}
		return d.settle(err)
	})
}

// orLose calls do. Without success, also after a panic, it gives the place to others. After a panic,
// nothing is left of the connect.
func (d *dialing) orLose(do func() (bool, error)) (ok bool, _ error) {
	return d.c.attempt.Try(d.e, func() (bool, error) {
		panics := true
		defer func() {
			if panics {
				d.abandon()
			}
		}()
		ok, err := do()
		panics = false
		return ok, err
	})
}

// abandon ends the connect, however far it has come, after a panic.
func (d *dialing) abandon() {
	d.c.cutOff(d.sock)
	if _, witness := d.stop(); witness {
		d.e.Passive.Settle()
	}
	d.e.Remove(d)
	d.e.Remove(d.c)
}

// begin reports whether it has added the connect to its endpoint. With an error, the connect is done.
func (d *dialing) begin() (added bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done = true // unless it begins
	if err := d.c.f.Life.Err(); err != nil {
		return false, err
	}
	if !d.e.Add(d) { // removed meanwhile
		return false, nil
	}
	d.start()
	if d.sock, err = loop.Connect(d.e.Addr, unix.SOCK_STREAM); err != nil {
		err = loop.DialError(d.e.Addr, err)
	} else {
		err = d.c.loop.Add(d.sock, d)
	}
	d.done = err != nil
	return true, err
}

// settle connects the client, or handles the error. It returns an error if other backends would fail,
// too.
func (d *dialing) settle(err error) (won bool, _ error) {
	f, e := d.c.f, d.e
	if err == nil && f.target.opts.Own(e.Addr.Addr()) && d.sock.LocalAddr() == e.Addr {
		err = loop.DialError(e.Addr, unix.ECONNREFUSED) // connected to itself: nothing listens there
	}
	if err == nil {
		won, err = d.win()
	}
	if !won && d.sock != nil {
		d.sock.Reset()
	}
	timedOut, witness := d.stop()
	if witness {
		defer e.Passive.Settle()
	}
	if won {
		return true, nil
	}
	e.Remove(d)
	switch {
	case err == nil: // removed meanwhile, or another backend was faster
	case timedOut:
		d.failed(loop.DialError(e.Addr, os.ErrDeadlineExceeded))
	case f.Life.Err() != nil, errors.Is(err, errCanceled):
	case loop.IsLocalFault(err):
		f.complain("connect to a backend", err)
		if loop.LacksDescriptor(err) {
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
	d.c.race.Lock()
	late := slices.Contains(d.c.slow, d)
	d.c.race.Unlock()
	if late {
		d.e.Passive.Refused(err)
	} else {
		d.c.attempt.Failed(d.e, err)
	}
}

// start begins to wait for the delay.
func (d *dialing) start() {
	delay := max(leastDelay, delayFactor*d.e.Passive.ConnectTime())
	if d.c.f.HasAffinity() {
		delay += resendTime
	}
	timeout := d.c.attempt.Timeout(d.began)
	delay = min(delay, timeout)
	d.c.race.Lock()
	defer d.c.race.Unlock()
	d.rest = timeout - delay
	d.wake(delay)
}

// wake calls alarm after a time.
func (d *dialing) wake(after time.Duration) {
	t := d.c.f.target
	t.dials.Add(d, t.balance.Now()+int64(after))
}

// Visit implements loop.Expirer. The time of the visit is that of the alarm.
func (d *dialing) Visit(int64) (next int64, expired bool) { return 0, true }

// Expire implements loop.Expirer.
func (d *dialing) Expire() { go d.alarm() }

// stop ends the waits. It returns whether the connect has timed out, and whether its outcome counts
// for others.
func (d *dialing) stop() (timedOut, witness bool) {
	d.c.race.Lock()
	defer d.c.race.Unlock()
	d.ended = true
	d.c.f.target.dials.Remove(d)
	witness, d.witness = d.witness, false
	return d.timedOut, witness
}

// alarm is called after the delay, and again after the timeout. A panic ends the connect, so that it
// doesn't last for as long as its backend is silent.
func (d *dialing) alarm() {
	defer d.c.f.Contain(d.c.owner, func() { d.endWith(errCanceled) })
	if d.overdue() {
		d.c.task(d.c.connect)
	}
}

// overdue reports whether to try another backend. If so, it has counted a task for that.
func (d *dialing) overdue() bool {
	c := d.c
	c.race.Lock()
	defer c.race.Unlock()
	switch {
	case d.ended:
		return false
	case d.rest == 0:
		d.timedOut = true
		d.cancel()
		return false
	}
	d.witness = d.e.Passive.Doubt(d.began, d.rest)
	d.wake(d.rest)
	d.rest = 0
	switch {
	case c.won:
		if !d.witness {
			d.cancel()
		}
		return false
	case c.f.target.balance.Capacity.Take(c.owner, balance.BackendFiles) != balance.Admitted:
		return false
	}
	c.slow = append(c.slow, d)
	c.attempt.Late(d.e)
	c.f.Tasks.Add(1)
	return true
}

// win connects the client to the backend that has answered: it sends the PROXY header, if the
// service has one. It returns false if another backend was faster, or this one was removed; and an
// error if the backend has ended the connection.
func (d *dialing) win() (bool, error) {
	c := d.c
	c.race.Lock()
	defer c.race.Unlock()
	d.e.Passive.Accepted(d.began)
	won, err := c.attempt.Win(d.e, d.connect)
	if !won {
		return false, err
	}
	c.won = true
	for _, other := range c.slow {
		if other != d && !other.ended && !other.witness {
			other.cancel()
		}
	}
	c.tallies = c.f.Tallies(d.e)
	c.f.Connected(c.tallies)
	c.request.Begin(&d.e.Passive)
	return true, nil
}

// connect makes the backend that of the client.
func (d *dialing) connect() (bool, error) {
	c := d.c
	if v := c.f.Settings().ProxyProtocol; v != 0 { // a write to a new connection doesn't block
		to := c.to
		if !to.IsValid() {
			to = c.localAddr()
		}
		h := proxyproto.Header{Source: c.attempt.Client, Destination: to}
		if _, err := unix.Write(d.sock.FD, h.Append(nil, proxyproto.Version(v))); err != nil {
			return false, loop.DialError(d.e.Addr, os.NewSyscallError("write", err))
		}
	}
	c.loop.Own(d.sock, c)
	c.become(d.sock, d.e)
	if !d.e.Swap(d, c) {
		c.become(nil, nil)
		return false, nil
	}
	return true, nil
}
