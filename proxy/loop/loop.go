// Package loop is the event loops of the userspace proxy: epoll instances that own nonblocking sockets, and call a Watcher
// when one is ready.
//
// Loops has the loops. An Intake takes the clients or datagrams of a listening socket in them, Socket is a connection or
// a session to a backend, Batch is the room for datagrams, and Deadlines is a timer for many entries. The package knows
// sockets and addresses, and nothing of services, frontends and backends: callers pass functions. A Watcher is called in
// the goroutine of a loop, which serves all its sockets, so it must not block. Linux only.
package loop

import (
	"cmp"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Loops are the epoll loops that take what arrives at listeners and relay TCP connections. They start with the
// first listeners. A connection belongs to one loop, which calls it when one of its sockets is ready; a TCP listener is
// in all of them. Neither has a goroutine of its own. Go's own poller would wake a goroutine for each message, and
// keep two stacks for each idle connection. The zero value is ready. Its methods may be called concurrently.
type Loops struct {
	held chan struct{} // closed when the loops may begin; nil: from the beginning

	mu     sync.Mutex
	all    []*Loop
	closed bool
	tasks  sync.WaitGroup
}

// most returns how many loops there are: one for every two processors. The kernel's part of receiving
// and sending, about as much work, runs beside them. With a loop for each of two processors, a request
// costs 1.5 times as much: each loop finds fewer events at a time, and sockets change processors.
func most() int { return max(runtime.GOMAXPROCS(0)/2, 1) }

// Hold keeps the loops from beginning until Release. It is called before the first listener starts.
func (l *Loops) Hold() { l.held = make(chan struct{}) }

// Release lets the loops begin.
func (l *Loops) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		select {
		case <-l.held:
		default:
			close(l.held)
		}
	}
}

// begin returns the loops, which it starts first. Without descriptors for all, these are those that there are, at least
// one.
func (l *Loops) begin() ([]*Loop, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A loop keeps the processor of Go's scheduler for a while when it waits in the kernel, and another goroutine keeps it
	// for up to 10 ms when the loop goes on. With two, the kernel decides, which prefers the one that has waited.
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.GOMAXPROCS(2)
	}
	for len(l.all) < most() || l.closed {
		if err := l.grow(); len(l.all) == 0 || l.closed {
			return nil, err
		} else if err != nil {
			break
		}
	}
	return slices.Clone(l.all), nil
}

// slack is how many sockets more than another one a loop has before it gives away its new connections.
const slack = 32

// Share returns the loop of a connection that one loop has accepted: the same one, so that the connection stays with
// the processor that has it in its caches, unless another one has much less to do. Listeners alone would not balance
// the loops: the kernel wakes the one that has waited for the shortest time.
func (l *Loops) Share(accepted *Loop) *Loop {
	least := l.Least()
	if n := least.load.Load(); accepted.load.Load() > n+n/8+slack {
		return least
	}
	return accepted
}

// Least returns the loop with the fewest sockets. There is one, after begin.
func (l *Loops) Least() *Loop {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.MinFunc(l.all, func(a, b *Loop) int { return cmp.Compare(a.load.Load(), b.load.Load()) })
}

// LastTurn returns the last turn of the loop that is furthest behind, and zero before the first listener.
// It does not wait for a turn that hangs: nothing blocks while it has mu.
func (l *Loops) LastTurn() (last time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.all {
		if at := one.lastTurn(); last.IsZero() || at.Before(last) {
			last = at
		}
	}
	return last
}

// grow starts another loop. The caller holds mu.
func (l *Loops) grow() error {
	if l.closed {
		return net.ErrClosed
	}
	one, err := newEventLoop()
	if err == nil {
		l.all = append(l.all, one)
		l.tasks.Go(func() {
			if l.held != nil {
				<-l.held
				one.look()
			}
			one.run()
		})
	}
	return err
}

// Close ends the loops, which have no sockets any more, and waits for them.
func (l *Loops) Close() {
	l.Release()
	l.mu.Lock()
	l.closed = true
	for _, one := range l.all {
		one.wake()
	}
	l.mu.Unlock()
	l.tasks.Wait()
}

// Watcher gets the events of its sockets. It is called in the goroutine of their loop, and must not
// block.
type Watcher interface {
	Ready(s *Socket, events uint32)
}

// Loop is one epoll instance and the goroutine that waits for it.
type Loop struct {
	fd, alarm int          // alarm is an eventfd that ends the loop
	began     time.Time    // on the monotonic clock, so a step of the host's clock doesn't look like a loop that hangs
	turn      atomic.Int64 // nanoseconds from then to the last turn of run
	turns     int64        // of run, in its goroutine
	batch     *Batch       // for calls of run; nil before the first

	load atomic.Int64 // sockets

	mu    sync.Mutex
	slots []*Socket
	free  []uint32 // slots without a socket
	last  uint32   // id
}

// The events of sockets. The events of a connection are reported when they begin (edge-triggered), so one system call registers a
// socket for all its life. EPOLLRDHUP and EPOLLPRI say when a read that returns less than it could has not emptied the
// socket; see socket.careful. The others are reported as long as something waits, and those of a listener to one of the
// loops that wait for it.
const (
	incoming = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLPRI | unix.EPOLLET // of a connection
	outgoing = unix.EPOLLOUT                                                 // of one that is connecting, or has had no room
	arrivals = unix.EPOLLIN | unix.EPOLLEXCLUSIVE                            // of a listener
	replies  = unix.EPOLLIN                                                  // of a UDP session
)

func (s *Socket) event() *unix.EpollEvent {
	return &unix.EpollEvent{Events: s.events, Fd: int32(s.slot), Pad: int32(s.id)}
}

// eventsPerTurn bounds the events of one system call.
const eventsPerTurn = 256

func newEventLoop() (*Loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &Loop{fd: fd, alarm: alarm, began: time.Now(), slots: make([]*Socket, 1)} // slot 0 is the alarm's
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, alarm, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		unix.Close(fd)
		unix.Close(alarm)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	return l, nil
}

// longestTurn is how long a loop without work waits until its next turn.
const longestTurn = time.Second

// lastTurn returns the time of the last turn. It does not wait for a turn that hangs.
func (l *Loop) lastTurn() time.Time { return l.began.Add(time.Duration(l.turn.Load())) }

func (l *Loop) wake() {
	_, _ = unix.Write(l.alarm, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Add starts to call owner with the events of s, until s is closed. A descriptor that is ready already is an event.
func (l *Loop) Add(s *Socket, owner Watcher) error {
	l.mu.Lock()
	var slot uint32
	if n := len(l.free); n > 0 {
		slot, l.free = l.free[n-1], l.free[:n-1]
		l.slots[slot] = s
	} else {
		slot = uint32(len(l.slots))
		l.slots = append(l.slots, s)
	}
	l.last++
	s.loop, s.owner, s.slot, s.id = l, owner, slot, l.last
	l.mu.Unlock()
	l.load.Add(1)
	if err := unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, s.FD, s.event()); err != nil {
		l.forget(s)
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// Again reports what is ready already as an event, after those of the other sockets. Before s is added to a loop, it
// does nothing.
func (s *Socket) Again() {
	if s.loop != nil {
		_ = unix.EpollCtl(s.loop.fd, unix.EPOLL_CTL_MOD, s.FD, s.event())
	}
}

// AwaitRoom reports when s accepts more to send. Before it is added to a loop, the loop will.
func (s *Socket) AwaitRoom() {
	if s.events&outgoing == 0 {
		s.events |= outgoing
		s.Again()
	}
}

// Room returns room for datagrams. The caller is called by the loop, and keeps nothing there.
func (l *Loop) Room() *Batch {
	if l.batch == nil {
		l.batch = newBatch()
	}
	return l.batch
}

// forget ends the events of s.
func (l *Loop) forget(s *Socket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots[s.slot] = nil
	l.free = append(l.free, s.slot)
	l.load.Add(-1)
	s.loop = nil
}

// of returns the socket of an event and its owner, or nil if the socket has been closed since.
func (l *Loop) of(e *unix.EpollEvent) (*Socket, Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.slots[uint32(e.Fd)]; s != nil && s.id == uint32(e.Pad) {
		return s, s.owner
	}
	return nil, nil
}

// look looks at the listeners again, before the first turn of a loop that was held. Meanwhile, the kernel may have woken a
// loop of another process for a client that it has not accepted, and wakes nobody else for it.
func (l *Loop) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.slots {
		if s != nil && s.events == arrivals { // which can't be modified
			_ = unix.EpollCtl(l.fd, unix.EPOLL_CTL_DEL, s.FD, nil)
			_ = unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, s.FD, s.event())
		}
	}
}

// Own changes the owner of a socket that has events.
func (l *Loop) Own(s *Socket, owner Watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.owner = owner
}

// run calls the owners of ready sockets until the alarm.
func (l *Loop) run() {
	defer unix.Close(l.fd)
	defer unix.Close(l.alarm)
	ready := make([]unix.EpollEvent, eventsPerTurn)
	for {
		n, err := unix.EpollWait(l.fd, ready, int(longestTurn.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(os.NewSyscallError("epoll_wait", err)) // the descriptor is open, and the arguments are right
		}
		l.turn.Store(int64(time.Since(l.began)))
		l.turns++
		for i := range ready[:max(n, 0)] {
			e := &ready[i]
			if e.Fd == 0 {
				return
			}
			if s, owner := l.of(e); s != nil {
				owner.Ready(s, e.Events)
			}
		}
	}
}
