package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxDatagram is the largest UDP datagram, rounded up.
const maxDatagram = 64 << 10

// maxFirst bounds the datagram that a session keeps until its backend answers, to send it to
// another backend after a refusal.
const maxFirst = 2 << 10

// udpListener has a frontend's UDP socket and the sessions of its clients. Each session has its own
// socket to its backend, so that replies find their client and refusals (ICMP) their session.
// Replies leave through the frontend's socket, from the address and port that the client used. It
// has a goroutine per session, which holds no buffer while it waits.
//
// Without a usable backend, the socket is closed and sessions end, so that the kernel answers port
// unreachable, which would otherwise need a raw socket. Another process can take the port
// meanwhile.
type udpListener struct {
	f   *frontend
	way arrival

	mu       sync.Mutex
	open     bool
	conn     *net.UDPConn // replies leave through it; nil while closed or not needed
	intake   *intake      // of conn, if datagrams arrive there
	stopped  atomic.Bool  // new datagrams are left to other processes
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
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case yes && !u.open:
		if u.death = u.way.begin(u); u.death != nil {
			return u.death
		}
		u.open = true
	case !yes:
		u.shut(false)
	}
	return nil
}

// ownSocket is the arrival by a socket of the frontend.
type ownSocket struct{}

func (ownSocket) begin(u *udpListener) error {
	if err := u.f.target.reserveListener(); err != nil {
		return err
	}
	socket, err := u.f.target.opts.Sockets.ListenUDP(context.Background(), u.f.key.AddrPort())
	if err != nil {
		u.f.target.releaseListener()
		return err
	}
	u.conn = socket
	u.intake, err = newReceiver(socket, u.receive, func(err error) { u.f.complain("receive", err) }, u.die)
	if err == nil {
		err = u.intake.start(&u.f.target.loops)
	}
	if err != nil {
		ownSocket{}.end(u, false)
	}
	return err
}

func (ownSocket) end(u *udpListener, _ bool) {
	if u.conn == nil {
		return
	}
	if u.intake != nil {
		u.intake.stop()
	}
	if u.stopped.Load() {
		u.f.target.opts.Sockets.Release(u.conn)
	} else {
		u.f.target.opts.Sockets.Remove(u.conn)
	}
	u.f.target.releaseListener()
	u.conn, u.intake = nil, nil
}

func (ownSocket) stop(u *udpListener) { u.intake.stop() }

func (ownSocket) reply(*udpListener) error  { return nil }
func (ownSocket) idle(*udpListener)         {}
func (ownSocket) died(u *udpListener) error { return u.death }

func (u *udpListener) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.shut(true)
}

// stop ends the receipt of datagrams. Sessions still send the replies of their backends.
func (u *udpListener) stop() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopped.Store(true)
	if u.open {
		u.way.stop(u)
	}
	for _, s := range u.sessions {
		_ = s.server.SetReadDeadline(time.Now()) // makes answers look at idle again
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

// shut ends the arrival and every session. The caller holds mu.
func (u *udpListener) shut(gone bool) {
	if u.open || gone {
		u.way.end(u, gone)
	}
	u.open = false
	for _, s := range u.sessions {
		s.server.Close() // its reader cleans up
	}
	clear(u.sessions)
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
func (u *udpListener) receive(client netip.AddrPort, data, _ []byte) {
	defer u.f.contain(u.f.backends.Load().service, nil)
	u.forward(client, data, nil)
}

// forward sends a client's datagram to its session's backend, and creates the session if needed. If
// a backend refuses, the session ends and the datagram goes to another; refused are earlier ones.
func (u *udpListener) forward(client netip.AddrPort, data []byte, refused []*endpoint) {
	for range maxAttempts {
		s, err := u.session(client, data, refused)
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
			s.fail(err)
			refused = append(refused, s.endpoint)
		}
	}
	u.f.target.refuse(u.f.backends.Load().service, unreachable)
}

// refuse counts a datagram without a session, if that has a reason.
func (u *udpListener) refuse(err error) {
	var why reason
	switch {
	case errors.Is(err, errRefused), errors.Is(err, net.ErrClosed):
		return
	case errors.As(err, &why):
		u.f.target.refuse(u.f.backends.Load().service, why)
		return
	case lacksDescriptor(err):
		u.f.target.refuse(u.f.backends.Load().service, noDescriptor)
	}
	u.f.complain("start a session", err)
}

// errRefused means that admit has refused a client.
var errRefused = errors.New("the client is not admitted")

// session returns the client's session, or starts one.
func (u *udpListener) session(client netip.AddrPort, data []byte, refused []*endpoint) (*session, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := u.sessions[client]; s != nil {
		return s, nil
	}
	if !u.open {
		return nil, net.ErrClosed
	}
	usable := len(u.f.backends.Load().usable)
	if len(refused) > 0 && len(refused) >= usable {
		return nil, unreachable
	}
	t := u.f.target
	defer u.mayIdle()
	owner := u.f.admit(client.Addr(), false, sessionFiles)
	if owner == nil {
		return nil, errRefused
	}
	if err := u.way.reply(u); err != nil {
		t.capacity.give(owner, sessionFiles)
		return nil, err
	}
	t.capacity.sessions.Add(1)
	s := &session{listener: u, owner: owner, front: u.conn, client: client, attempt: u.f.attempt(client, owner)}
	started := false
	defer func() {
		if !started {
			s.attempt.end()
			s.give()
		}
	}()
	s.refused = refused
	s.attempt.exclude(refused)
	if _, err := s.attempt.connect(s.connectTo); err != nil {
		return nil, err
	}
	if usable > 1 && len(data) <= maxFirst {
		s.first = append([]byte{}, data...)
	}
	s.used.Store(s.listener.f.target.now())
	u.sessions[client] = s
	s.tallies.connected()
	started = true
	u.f.tasks.Add(1)
	go s.run()
	return s, nil
}

// forget removes s from the table.
func (u *udpListener) forget(s *session) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sessions[s.client] == s {
		delete(u.sessions, s.client)
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
	owner    *service
	front    *net.UDPConn // the socket that the client sends to
	client   netip.AddrPort
	attempt  *attempt
	refused  []*endpoint // what the client sent, before this session

	endpoint *endpoint
	tallies  tallies
	server   *net.UDPConn // connected to the backend
	raw      syscall.RawConn

	used atomic.Int64 // time of the last datagram in either direction, by Target.now

	mu    sync.Mutex
	first []byte // until the backend answers
}

// connectTo connects the session to a backend. It returns false if that fails, with an error if
// other backends would fail, too.
func (s *session) connectTo(e *endpoint) (done bool, err error) {
	server, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(e.addr))
	if err != nil { // no socket, or no route to this backend
		if isLocalFault(err) {
			return false, err
		}
		s.attempt.failed(e, err)
		return false, nil
	}
	raw, err := server.SyscallConn()
	if err != nil {
		server.Close()
		return false, err
	}
	s.endpoint, s.tallies, s.server, s.raw = e, s.listener.f.tallies(e), server, raw
	if !e.add(s) { // removed meanwhile
		server.Close()
		return false, nil
	}
	return true, nil
}

// abort ends the session because its endpoint is closed.
func (s *session) abort() {
	s.listener.forget(s)
	s.server.Close()
}

// give ends the count of the session.
func (s *session) give() {
	c := &s.listener.f.target.capacity
	c.sessions.Add(-1)
	c.give(s.owner, sessionFiles)
}

// fail ends the session because its backend refused.
func (s *session) fail(err error) {
	s.attempt.failed(s.endpoint, err)
	s.abort()
}

// send sends a client's datagram to the backend without waiting. It returns EAGAIN if the buffer is
// full.
func (s *session) send(data []byte) error {
	var failed error
	err := s.raw.Write(func(fd uintptr) bool {
		for {
			// Not write(2), which needn't send an empty datagram.
			if failed = unix.Send(int(fd), data, unix.MSG_NOSIGNAL); !errors.Is(failed, unix.EINTR) {
				return true
			}
		}
	})
	if err == nil {
		err = failed
	}
	if err == nil {
		s.used.Store(s.listener.f.target.now())
		s.tallies.in(len(data))
	}
	return err
}

// run forwards the backend's replies until the session is idle for too long, the backend refuses,
// or the session is closed.
func (s *session) run() {
	u := s.listener
	defer u.f.tasks.Done()
	defer u.f.contain(s.owner, func() {})
	err := s.relay()
	if first := s.takeFirst(); err != nil && first != nil {
		u.forward(s.client, first, append(s.refused, s.endpoint))
	}
}

// relay passes on the backend's answers until the session ends, and removes it. The error is the
// backend's refusal.
func (s *session) relay() error {
	defer func() {
		s.abort()
		s.endpoint.remove(s)
		s.endpoint.leave()
		s.attempt.end()
		s.give()
	}()
	err := s.answers()
	if err != nil {
		s.attempt.failed(s.endpoint, err)
	}
	return err
}

// answers returns nil if the session ended normally, else the refusal.
func (s *session) answers() error {
	buf := new(*[maxDatagram]byte)
	defer func() {
		if *buf != nil {
			datagrams.Put(*buf)
		}
	}()
	_ = s.server.SetReadDeadline(time.Now().Add(s.listener.idle()))
	for answered := false; ; {
		n, err := s.receive(buf)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// The deadline isn't moved with every datagram, so it may be early.
			left := s.listener.idle() - time.Duration(s.listener.f.target.now()-s.used.Load())
			if left <= 0 {
				return nil
			}
			_ = s.server.SetReadDeadline(time.Now().Add(left))
			continue
		case errors.Is(err, net.ErrClosed), isLocalFault(err):
			return nil
		default:
			return err
		}
		if !answered {
			answered = true
			s.takeFirst()
			s.attempt.works(s.endpoint)
			s.endpoint.outlier.answered()
		}
		s.used.Store(s.listener.f.target.now())
		_, err = s.front.WriteToUDPAddrPort((*buf)[:n], s.client)
		switch {
		case err == nil:
			s.tallies.out(n)
		case errors.Is(err, net.ErrClosed):
			return nil
		}
	}
}

func (s *session) takeFirst() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.first
	s.first = nil
	return first
}

var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// receive waits for the backend's next datagram. It takes a buffer only when there is one, and
// leaves it in *buf for the next call.
func (s *session) receive(buf **[maxDatagram]byte) (n int, err error) {
	var failed error
	err = s.raw.Read(func(fd uintptr) bool {
		if *buf == nil {
			*buf = datagrams.Get().(*[maxDatagram]byte)
		}
		for {
			n, failed = unix.Read(int(fd), (*buf)[:])
			switch {
			case errors.Is(failed, unix.EINTR):
			case errors.Is(failed, unix.EAGAIN):
				datagrams.Put(*buf)
				*buf = nil
				return false
			default:
				return true
			}
		}
	})
	if err == nil {
		err = failed
	}
	return n, err
}
