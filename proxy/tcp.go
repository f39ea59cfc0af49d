package proxy

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/sockets"
)

// tcpListener accepts a frontend's TCP clients. It stays open without a usable backend and resets
// clients: a closed port would be available to any process that listens on 0.0.0.0, and could not
// be opened again.
type tcpListener struct {
	f      *frontend
	l      *net.TCPListener
	ticket uint64 // at the acceptPoller
	ended  atomic.Bool
	death  atomic.Pointer[error]
}

func listenTCP(f *frontend) (listener, error) {
	if err := f.target.reserveListener(); err != nil {
		return nil, err
	}
	l, err := f.target.opts.Sockets.ListenTCP(f.ctx, f.key.AddrPort())
	if err != nil {
		f.target.releaseListener()
		return nil, err
	}
	t := &tcpListener{f: f, l: l}
	if t.ticket, err = f.target.acceptPoller.wait(t.l, func() { f.tasks.Go(t.accept) }); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *tcpListener) usable(bool) error { return nil }

func (t *tcpListener) close() { t.end((*sockets.Set).Remove) }

func (t *tcpListener) stop() { t.end((*sockets.Set).Release) }

func (t *tcpListener) end(how func(*sockets.Set, sockets.Socket)) {
	if !t.ended.Swap(true) {
		t.f.target.acceptPoller.cancel(t.ticket)
		how(t.f.target.opts.Sockets, t.l)
		t.f.target.releaseListener()
	}
}

func (t *tcpListener) died() error {
	if err := t.death.Load(); err != nil {
		return *err
	}
	return nil
}

// accept runs from the first client until the listener is closed or fails.
func (t *tcpListener) accept() {
	target := t.f.target
	pause := newBackoff()
	for {
		client, err := t.l.AcceptTCP()
		switch {
		case err == nil:
			pause.Reset()
		case t.f.ctx.Err() == nil && passes(err):
			t.f.complain("accept", err)
			if lacksDescriptor(err) { // the client waits
				target.refuse(t.f.backends.Load().service, noDescriptor)
			}
			backoff.Sleep(t.f.ctx, pause.Next())
			continue
		default: // closed by us: the error is not used; or broken
			t.death.Store(&err)
			t.l.Close()
			return
		}
		_ = client.SetKeepAliveConfig(keepAlive) // fails only for a client that is gone
		target.stats.accepted.Add(1)
		t.welcome(client)
	}
}

// welcome starts to serve a client, or refuses it.
func (t *tcpListener) welcome(client *net.TCPConn) {
	defer t.f.contain(t.f.backends.Load().service, func() { reset(client) })
	peer := addrPort(client.RemoteAddr()).Addr()
	announced := t.f.announced(peer)
	s := t.f.admit(peer, announced, connectionFiles)
	if s == nil {
		reset(client)
		return
	}
	t.f.target.capacity.connections.Add(1)
	t.f.tasks.Add(1)
	go t.f.serve(client, announced, s)
}

// serve connects one client to a backend and relays until both directions end. An announced client
// begins with a PROXY header. The connection is counted in s.
func (f *frontend) serve(client *net.TCPConn, announced bool, s *service) {
	c := &connection{f: f, owner: s, client: client, attempt: f.attempt(netip.AddrPort{}, s)}
	c.task(func() bool {
		ends, ok := f.ends(client, announced, s)
		if !ok {
			reset(client)
			return true
		}
		a := c.attempt
		a.client, a.to, a.mayWait = ends.Source, ends.Destination, true
		return c.connect()
	})
}

// task runs what a goroutine does for the client. It gives back the descriptor of one connect; and,
// if do reports that the client needs nothing more, or panics, what else the client has.
func (c *connection) task(do func() (done bool)) {
	defer c.f.tasks.Done()
	done := true
	defer func() {
		c.f.target.capacity.give(c.owner, backendFiles)
		if done {
			c.release()
		}
	}()
	defer c.f.contain(c.owner, c.abort)
	done = do()
}

// release gives back what the client has. Further calls do nothing.
func (c *connection) release() {
	if !c.released.Swap(true) {
		c.attempt.end()
		c.f.target.capacity.connections.Add(-1)
		c.f.target.capacity.give(c.owner, clientFiles)
	}
}

// connect connects the client to a backend and relays. Nothing has been read from the client yet, so
// any backend is possible. It reports whether the client needs nothing more: another goroutine may
// serve it.
func (c *connection) connect() (done bool) {
	switch e, err := c.attempt.connect(c.dial); {
	case e != nil:
		defer e.leave()
		defer e.remove(c)
		c.relay()
	case errors.Is(err, errElsewhere):
		return false
	default:
		if why := reasonOf(err); why != admitted {
			c.f.target.refuse(c.owner, why)
		}
		reset(c.client)
	}
	return true
}

// connection is one client's connection to one backend.
type connection struct {
	f              *frontend
	owner          *service
	attempt        *attempt
	client, server *net.TCPConn // server is nil until it is connected
	released       atomic.Bool
	endpoint       *endpoint
	tallies        tallies
	up, down       direction
	activity
	request
}

// in and out count bytes passed on to the backend and to the client.
func (c *connection) in(bytes int) {
	c.asks(c.used())
	c.tallies.in(bytes)
}

func (c *connection) out(bytes int) {
	c.getsAnswer(c.used())
	c.tallies.out(bytes)
}

// abort resets both sides immediately.
func (c *connection) abort() {
	reset(c.client)
	if c.server != nil {
		reset(c.server)
	}
}

// direction is one of a connection's two streams.
type direction struct {
	stream
	finished atomic.Bool // the end of the stream was passed on to dst
	readErr  error       // of the copy, after its end
	writeErr error
}

// relay copies in both directions until both end. It passes on each end separately (half-close),
// and a reset as a reset. It needs one goroutine in addition to the caller's.
func (c *connection) relay() {
	up, down := &c.up, &c.down
	up.dst, up.src, up.pipes, up.count = c.server, c.client, c.f.target.pipes, c.in
	down.dst, down.src, down.pipes, down.count = c.client, c.server, c.f.target.pipes, c.out
	c.watch()
	defer c.f.target.wheel.remove(&c.timed)
	var both sync.WaitGroup
	both.Go(func() {
		defer c.f.contain(c.owner, c.abort)
		c.pump(down, up)
	})
	c.pump(up, down)
	both.Wait()
	c.judge()
	if up.writeErr != nil {
		// The backend answered and closed without reading everything, as for a rejected upload.
		// Closing a socket with unread bytes sends a reset, which can overtake the answer, so flush
		// the answer to the client first.
		flush(c.client)
	}
	c.client.Close()
	c.server.Close()
}

// judge takes in a connection without an answer as evidence about the backend. A client that ends
// its direction first may be the cause of a reset.
func (c *connection) judge() {
	switch {
	case c.answered.Load():
	case (isReset(c.down.readErr) || isReset(c.up.writeErr)) && !c.up.finished.Load():
		c.endpoint.outlier.reset()
	case c.down.finished.Load():
		c.endpoint.outlier.closed()
	case c.up.finished.Load():
		c.givesUp()
	}
}

// pump runs one direction; back is the other.
func (c *connection) pump(d, back *direction) {
	readErr, writeErr := d.copy()
	d.readErr, d.writeErr = readErr, writeErr
	if d == &c.up && writeErr == nil && (readErr == nil || isReset(readErr)) {
		c.givesUp()
	}
	if d == &c.down && (readErr == nil || isReset(readErr)) && !c.up.finished.Load() {
		c.isClosed()
	}
	switch {
	case readErr == nil && writeErr == nil && (back.finished.Load() || !dead(d.src)):
		d.finished.Store(true)
		_ = d.dst.CloseWrite()
		c.halfClose()
	case writeErr != nil && dead(d.dst):
		// The source may have sent data before it failed: the other direction reads this to its end
		// and then ends the connection.
	default:
		// The source was reset; or it has ended, and the other direction found the reset. The
		// destination gets the data sent before and then a reset, because an end would make an
		// incomplete response look complete.
		flush(d.dst)
		reset(d.src)
		reset(d.dst)
	}
}

// dead reports whether the kernel or this process has closed the connection.
func dead(c *net.TCPConn) bool {
	_, alive := unsent(c)
	return !alive
}

// unsent returns the number of written bytes that the peer has not acknowledged, and whether the
// connection is alive.
func unsent(c *net.TCPConn) (n int, alive bool) {
	const closed = 7 // TCP_CLOSE
	open := control(c, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.State == closed {
			return
		}
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		alive = err == nil
	})
	return n, open && alive
}

// flushTime bounds the wait of flush.
const flushTime = 2 * time.Second

// flush waits until the peer has received everything written to c, or the connection ends.
func flush(c *net.TCPConn) {
	wait := 200 * time.Microsecond
	for end := time.Now().Add(flushTime); time.Now().Before(end); time.Sleep(wait) {
		if n, alive := unsent(c); n == 0 || !alive {
			return
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}
