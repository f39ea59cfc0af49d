package proxy

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/proxy/passive"
)

// tcpListener accepts a frontend's TCP clients. It stays open without a usable backend and resets
// clients: a closed port would be available to any process that listens on 0.0.0.0, and could not
// be opened again.
type tcpListener struct {
	f      *frontend
	l      *sockets.Unpolled
	intake *loop.Intake
	ended  atomic.Bool
	death  atomic.Pointer[error]
}

func listenTCP(f *frontend) (listener, error) {
	if err := f.target.balance.Capacity.AddListener(); err != nil {
		return nil, err
	}
	l, err := f.target.opts.Sockets.ListenUnpolled(context.Background(), "tcp", f.Key.AddrPort())
	if err != nil {
		f.target.balance.Capacity.RemoveListener()
		return nil, err
	}
	t := &tcpListener{f: f, l: l}
	t.intake = loop.NewAcceptor(l, f.welcome, t.fails, t.die)
	if err := t.intake.Start(&f.target.loops); err != nil {
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
		t.intake.Halt()
		how(t.f.target.opts.Sockets, t.l)
		t.f.target.balance.Capacity.RemoveListener()
	}
}

func (t *tcpListener) died() error {
	if err := t.death.Load(); err != nil {
		return *err
	}
	return nil
}

// fails takes in an error of accept that passes.
func (t *tcpListener) fails(err error) {
	t.f.complain("accept", err)
	if loop.LacksDescriptor(err) { // the client waits
		t.f.target.balance.Refuse(t.f.Service(), balance.NoDescriptor)
	}
}

func (t *tcpListener) die(err error) {
	t.death.Store(&err)
	t.l.Close()
}

// welcome starts to serve a client, or refuses it.
func (f *frontend) welcome(client *loop.Socket, peer netip.AddrPort, by *loop.Loop) {
	defer f.Contain(f.Service(), client.Reset)
	announced := f.announced(peer.Addr())
	s := f.Admit(peer.Addr(), announced, balance.ConnectionFiles)
	if s == nil {
		client.Reset()
		return
	}
	f.target.balance.Capacity.Connections.Add(1)
	f.Tasks.Add(1)
	c := &connection{f: f, owner: s, loop: f.target.loops.Share(by), client: client, attempt: f.Attempt(peer, s, true)}
	if announced {
		go c.task(c.readHeader)
	} else {
		c.task(c.connectNow)
	}
}

// step is how far a task of a client has come.
type step uint8

const (
	// over: the client needs nothing more.
	over step = iota
	// elsewhere: another task serves the client.
	elsewhere
	// pending: the task goes on in another goroutine, or with an event of a socket.
	pending
	// connected: the client's bytes can be relayed.
	connected
)

// task takes the next step of a client. Each task of a client has the descriptor of one connect. It
// gives that back when it ends; and, if the client needs nothing more, or do panics, what else the
// client has.
func (c *connection) task(do func() step) {
	if c.take(do) == connected {
		c.relay()
	}
}

func (c *connection) take(do func() step) (next step) {
	next = over // after a panic
	defer func() { c.leave(next) }()
	defer c.f.Contain(c.owner, c.Abort)
	next = do()
	return next
}

// leave ends a task that doesn't go on.
func (c *connection) leave(last step) {
	if last == over || last == elsewhere {
		c.f.target.balance.Capacity.Give(c.owner, balance.BackendFiles)
		if last == over {
			c.release()
		}
		c.f.Tasks.Done()
	}
}

// release gives back what the client has. Further calls do nothing.
func (c *connection) release() {
	if !c.released.Swap(true) {
		c.attempt.End()
		c.f.target.balance.Capacity.Connections.Add(-1)
		c.f.target.balance.Capacity.Give(c.owner, balance.ClientFiles)
	}
}

// connect starts to connect the client to a backend. Nothing has been read from the client yet, so any
// backend is possible. It may wait in the queue.
func (c *connection) connect() step { return c.tryAll(true) }

// connectNow is connect for a goroutine that can't wait.
func (c *connection) connectNow() step { return c.tryAll(false) }

func (c *connection) tryAll(canWait bool) step {
	for {
		e, err := c.attempt.Start(canWait)
		switch {
		case errors.Is(err, balance.ErrMustWait):
			go c.task(c.connect)
			return pending
		case err != nil:
			return c.refuse(err)
		}
		switch began, err := c.dial(e); {
		case began:
			return pending
		case err != nil:
			return c.refuse(c.attempt.Fail(err))
		}
	}
}

// refuse resets the client, unless another task serves it.
func (c *connection) refuse(err error) step {
	if errors.Is(err, balance.ErrElsewhere) {
		return elsewhere
	}
	why := balance.Unreachable
	switch {
	case errors.As(err, &why): // one of the attempt
	case loop.LacksDescriptor(err):
		why = balance.NoDescriptor
	case errors.Is(err, context.Canceled): // the frontend was closed, which is intended
		why = balance.Admitted
	}
	if why != balance.Admitted {
		c.f.target.balance.Refuse(c.owner, why)
	}
	c.Abort()
	return over
}

// connection is one client's connection to one backend.
type connection struct {
	f        *frontend
	owner    *balance.Service
	attempt  *balance.Attempt
	to       netip.AddrPort // the address that the client connected to, if a PROXY header says it
	loop     *loop.Loop
	released atomic.Bool
	endpoint *balance.Endpoint
	tallies  balance.Tallies
	activity
	request passive.Request

	race sync.Mutex // guards the next ones, and the state of each dialing. It is taken before the locks of attempts
	won  bool       // the client has a backend
	slow []*dialing // those after which another backend was tried

	io             sync.Mutex   // guards the next ones. Locks of attempts are taken before it
	client, server *loop.Socket // server is nil until it is connected
	relays         bool         // until the sockets are closed
	flushes        bool         // the client gets an answer before its socket is closed
	flushed        bool
	up, down       direction
}

// localAddr returns the address that the client has connected to.
func (c *connection) localAddr() netip.AddrPort {
	c.io.Lock()
	defer c.io.Unlock()
	return c.client.LocalAddr()
}

// become sets the backend.
func (c *connection) become(server *loop.Socket, e *balance.Endpoint) {
	c.io.Lock()
	defer c.io.Unlock()
	c.server, c.endpoint = server, e
}

// in and out count bytes passed on to the backend and to the client.
func (c *connection) in(bytes int) {
	c.request.Ask(c.used())
	c.tallies.In(bytes)
}

func (c *connection) out(bytes int) {
	c.request.Answer(&c.endpoint.Passive, c.used())
	c.tallies.Out(bytes)
}
