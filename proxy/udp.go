package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
)

// maxFirst bounds the datagram that a session keeps until its backend answers, to send it to
// another backend after a refusal.
const maxFirst = 2 << 10

// udpListener has a frontend's UDP socket and the sessions of its clients. Each session has its own
// socket to its backend, so that replies find their client and refusals (ICMP) their session.
// Replies leave through the frontend's socket, from the address and port that the client used. The
// loop that has received the first datagram of a session has the session's socket.
//
// Without a usable backend, the socket is closed and sessions end, so that the kernel answers port
// unreachable, which would otherwise need a raw socket. Another process can take the port
// meanwhile.
type udpListener struct {
	f   *frontend
	way arrival

	mu       sync.Mutex
	open     bool
	conn     *sockets.Unpolled // replies leave through it; nil while closed or not needed
	intake   *loop.Intake      // of conn, if datagrams arrive there
	stopped  atomic.Bool       // new datagrams are left to other processes
	sessions map[netip.AddrPort]*session
	death    error
}

// arrival is how datagrams reach a udpListener and where replies leave. The caller of a method holds
// the listener's mu.
type arrival interface {
	// begin makes datagrams arrive, and end makes the kernel answer port unreachable; the frontend
	// is gone or may begin again. After stop, end leaves datagrams to other processes.
	begin(u *udpListener) error
	end(u *udpListener, gone bool)
	// stop makes datagrams arrive no more.
	stop(u *udpListener)
	// reply prepares conn for a new session, and idle is called after the last one.
	reply(u *udpListener) error
	idle(u *udpListener)
	// died returns the error that has ended the arrival.
	died(u *udpListener) error
}

func listenUDP(f *frontend, way arrival) (listener, error) {
	u := &udpListener{f: f, way: way, sessions: make(map[netip.AddrPort]*session)}
	// Opened even if it is closed immediately, to check that the address exists and the port is
	// free.
	if err := u.usable(true); err != nil {
		return nil, err
	}
	return u, u.usable(f.spec.Usable())
}

func (u *udpListener) usable(yes bool) error {
	if !yes {
		u.shut(false)
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.open {
		if u.death = u.way.begin(u); u.death != nil {
			return u.death
		}
		u.open = true
	}
	return nil
}

// ownSocket is the arrival by a socket of the frontend.
type ownSocket struct{}

func (ownSocket) begin(u *udpListener) error {
	if err := u.f.target.balance.Capacity.AddListener(); err != nil {
		return err
	}
	socket, err := u.f.target.opts.Sockets.ListenUnpolled(context.Background(), "udp", u.f.Key.AddrPort())
	if err != nil {
		u.f.target.balance.Capacity.RemoveListener()
		return err
	}
	u.conn = socket
	u.intake = loop.NewReceiver(socket, u.receive, func(err error) { u.f.complain("receive", err) }, u.die)
	if err = u.intake.Start(&u.f.target.loops); err != nil {
		ownSocket{}.end(u, false)
	}
	return err
}

func (ownSocket) end(u *udpListener, _ bool) {
	if u.conn == nil {
		return
	}
	u.intake.Stop()
	if u.stopped.Load() {
		u.f.target.opts.Sockets.Release(u.conn)
	} else {
		u.f.target.opts.Sockets.Remove(u.conn)
	}
	u.f.target.balance.Capacity.RemoveListener()
	u.conn, u.intake = nil, nil
}

func (ownSocket) stop(u *udpListener) { u.intake.Stop() }

func (ownSocket) reply(*udpListener) error  { return nil }
func (ownSocket) idle(*udpListener)         {}
func (ownSocket) died(u *udpListener) error { return u.death }

func (u *udpListener) close() { u.shut(true) }

// stop ends the receipt of datagrams. Sessions still send the replies of their backends.
func (u *udpListener) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped.Store(true)
	if u.open {
		u.way.stop(u)
	}
	for _, s := range u.sessions {
		u.f.target.timeouts.Move(s, u.f.target.balance.Now()) // idle is shorter now
	}
}

// lastReplies is how long a session waits for more replies after its listener was stopped.
const lastReplies = 2 * time.Second

// idle returns the time without a datagram after which a session ends.
func (u *udpListener) idle() time.Duration {
	if u.stopped.Load() {
		return min(lastReplies, u.f.target.opts.UDPIdle)
	}
	return u.f.target.opts.UDPIdle
}

// shut ends the arrival and every session.
func (u *udpListener) shut(gone bool) {
	u.mu.Lock()
	if u.open || gone {
		u.way.end(u, gone)
	}
	u.open = false
	sessions := u.sessions
	u.sessions = make(map[netip.AddrPort]*session)
	u.mu.Unlock()
	for _, s := range sessions {
		s.Abort()
	}
}

func (u *udpListener) died() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.way.died(u)
}

func (u *udpListener) die(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.death = err
}

// receive forwards a datagram. A panic ends there.
func (u *udpListener) receive(d loop.Datagram, by *loop.Loop) {
	defer u.f.Contain(u.f.Service(), nil)
	u.forward(&sender{addr: d.Name().AddrPort(), name: *d.Name(), loop: by}, d.Data(), nil)
}

// sender is where datagrams come from.
type sender struct {
	addr netip.AddrPort
	name loop.Sockaddr // the same for the kernel
	loop *loop.Loop    // that has received one
}

// forward sends a client's datagram to its session's backend, and creates the session if needed. If
// a backend refuses, the session ends and the datagram goes to another; refused are earlier ones.
func (u *udpListener) forward(from *sender, data []byte, refused []*balance.Endpoint) {
	for range balance.MaxAttempts {
		s, err := u.session(from, data, refused)
		if err != nil {
			u.refuse(err)
			return
		}
		err = s.send(data)
		switch {
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EMSGSIZE), errors.Is(err, unix.EPERM):
			return // sent, or dropped here
		case errors.Is(err, net.ErrClosed):
			u.forget(s) // ended meanwhile
		default:
			s.takeFirst() // sent below, too
			s.end(err)
			refused = append(refused, s.endpoint)
		}
	}
	u.f.target.balance.Refuse(u.f.Service(), balance.Unreachable)
}

// refuse counts a datagram without a session, if that has a reason.
func (u *udpListener) refuse(err error) {
	var why balance.Reason
	switch {
	case errors.Is(err, errRefused), errors.Is(err, net.ErrClosed):
		return
	case errors.As(err, &why):
		u.f.target.balance.Refuse(u.f.Service(), why)
		return
	case loop.LacksDescriptor(err):
		u.f.target.balance.Refuse(u.f.Service(), balance.NoDescriptor)
	}
	u.f.complain("start a session", err)
}

// errRefused means that admit has refused a client.
var errRefused = errors.New("the client is not admitted")

// session returns the client's session, or starts one.
func (u *udpListener) session(from *sender, data []byte, refused []*balance.Endpoint) (*session, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[from.addr]; s != nil {
		return s, nil
	}
	if !u.open || u.stopped.Load() {
		return nil, net.ErrClosed
	}
	usable := u.f.Usable()
	if len(refused) > 0 && len(refused) >= usable {
		return nil, balance.Unreachable
	}
	t := u.f.target
	defer u.mayIdle()
	owner := u.f.Admit(from.addr.Addr(), false, balance.SessionFiles)
	if owner == nil {
		return nil, errRefused
	}
	if err := u.way.reply(u); err != nil {
		t.balance.Capacity.Give(owner, balance.SessionFiles)
		return nil, err
	}
	t.balance.Capacity.Sessions.Add(1)
	s := &session{listener: u, owner: owner, front: u.conn, client: *from, attempt: u.f.Attempt(from.addr, owner, false, refused...), refused: refused}
	s.used.Store(t.balance.Now())
	if usable > 1 && len(data) <= maxFirst {
		s.first = append([]byte{}, data...)
	}
	started := false
	defer func() {
		if !started {
			s.attempt.End()
			s.give()
		}
	}()
	for !started {
		e, err := s.attempt.Start(true)
		if err != nil {
			return nil, err
		}
		if started, err = s.attempt.Try(e, func() (bool, error) { return s.connectTo(e) }); err != nil {
			return nil, s.attempt.Fail(err)
		}
	}
	u.sessions[from.addr] = s
	u.f.Connected(s.tallies)
	u.f.Tasks.Add(1)
	t.timeouts.Add(s, s.expiry())
	return s, nil
}

// forget removes s from the table.
func (u *udpListener) forget(s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions[s.client.addr] == s {
		delete(u.sessions, s.client.addr)
		u.mayIdle()
	}
}

// mayIdle is called when there may be no session left. The caller holds mu.
func (u *udpListener) mayIdle() {
	if len(u.sessions) == 0 && u.open {
		u.way.idle(u)
	}
}

// session connects one client to one backend.
type session struct {
	listener *udpListener
	owner    *balance.Service
	front    *sockets.Unpolled // the socket that the client sends to
	client   sender
	attempt  *balance.Attempt
	refused  []*balance.Endpoint // what the client sent, before this session

	endpoint *balance.Endpoint
	tallies  balance.Tallies
	loop     *loop.Loop // of server
	answered bool       // of the loop

	used atomic.Int64 // time of the last datagram in either direction, by Target.now

	mu     sync.Mutex
	server *loop.Socket // connected to the backend; closed at the end
	ended  bool
	first  []byte // until the backend answers
}

// connectTo connects the session to a backend. It returns false if that fails, with an error if
// other backends would fail, too.
func (s *session) connectTo(e *balance.Endpoint) (done bool, err error) {
	s.mu.Lock() // the loop waits until the session is complete
	defer s.mu.Unlock()
	server, err := loop.Connect(e.Addr, unix.SOCK_DGRAM)
	if err != nil { // no socket, or no route to this backend
		if loop.IsLocalFault(err) {
			return false, err
		}
		s.attempt.Failed(e, &net.OpError{Op: "dial", Net: "udp", Addr: net.UDPAddrFromAddrPort(e.Addr), Err: err})
		return false, nil
	}
	s.endpoint, s.tallies, s.server = e, s.listener.f.Tallies(e), server
	s.loop = s.listener.f.target.loops.Share(s.client.loop)
	if !e.Add(s) { // removed meanwhile
		server.Close()
		return false, nil
	}
	if err := s.loop.Add(server, s); err != nil {
		e.Remove(s)
		server.Close()
		s.ended = true // in case that the endpoint is closed at this moment
		return false, err
	}
	return true, nil
}

// abort ends the session because its endpoint or its listener is closed.
func (s *session) Abort() { s.end(nil) }

// give ends the count of the session.
func (s *session) give() {
	c := &s.listener.f.target.balance.Capacity
	c.Sessions.Add(-1)
	c.Give(s.owner, balance.SessionFiles)
}

// end ends the session. If its backend has refused before the first answer, the client's first datagram goes to another
// one. Further calls do nothing.
func (s *session) end(refusal error) {
	s.mu.Lock()
	before := s.ended
	s.ended = true
	s.server.Close()
	s.mu.Unlock()
	if before {
		return
	}
	u := s.listener
	defer u.f.Tasks.Done()
	u.forget(s)
	u.f.target.timeouts.Remove(s)
	if refusal != nil {
		s.attempt.Failed(s.endpoint, refusal)
	}
	s.endpoint.Remove(s)
	s.endpoint.Leave()
	s.attempt.End()
	s.give()
	if first := s.takeFirst(); refusal != nil && first != nil {
		u.forward(&s.client, first, append(s.refused, s.endpoint))
	}
}

// expiry returns when the session ends if no datagram comes.
func (s *session) expiry() int64 { return s.used.Load() + int64(s.listener.idle()) }

// Visit and Expire implement loop.Expirer.
func (s *session) Visit(now int64) (next int64, expired bool) {
	next = s.expiry()
	return next, now >= next
}

func (s *session) Expire() { s.end(nil) }

// send sends a client's datagram to the backend without waiting. It returns EAGAIN if the buffer is
// full.
func (s *session) send(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return net.ErrClosed
	}
	for {
		// Not write(2), which needn't send an empty datagram.
		switch err := unix.Send(s.server.FD, data, unix.MSG_NOSIGNAL); {
		case err == nil:
			s.used.Store(s.listener.f.target.balance.Now())
			s.tallies.In(len(data))
			return nil
		case !errors.Is(err, unix.EINTR):
			return err
		}
	}
}

// Ready implements loop.Watcher: it passes on the backend's replies. The session ends if the backend refuses.
func (s *session) Ready(*loop.Socket, uint32) {
	defer s.listener.f.Contain(s.owner, s.Abort)
	room := s.loop.Room()
	n, err := s.receive(room)
	switch {
	case errors.Is(err, net.ErrClosed), errors.Is(err, unix.EAGAIN):
		return
	case err != nil && loop.IsLocalFault(err):
		s.end(nil)
		return
	case err != nil:
		s.end(err)
		return
	}
	if !s.answered {
		s.answered = true
		s.takeFirst()
		s.attempt.Stay(s.endpoint)
		s.endpoint.Passive.Answered()
	}
	s.used.Store(s.listener.f.target.balance.Now())
	_ = s.front.Control(func(fd uintptr) { s.tallies.Out(room.SendTo(int(fd), n, &s.client.name)) }) // closed: the session ends
}

func (s *session) receive(room *loop.Batch) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.server.IsOpen() {
		return 0, net.ErrClosed
	}
	return room.Receive(s.server.FD)
}

func (s *session) takeFirst() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.first
	s.first = nil
	return first
}
