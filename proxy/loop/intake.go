package loop

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/sockets"
)

// Intake takes what arrives at a listening socket: clients of TCP, in every loop, or datagrams, in one. Its methods may
// be called concurrently.
type Intake struct {
	socket *sockets.Unpolled // which the intake doesn't close
	single bool              // one loop takes, so that datagrams keep their order
	loops  *Loops            // nil before start
	ended  atomic.Bool

	take   func(*Loop) error // takes one client or datagram, or returns EAGAIN without one. It must not block
	failed func(error)       // called with an error that passes
	died   func(error)       // called with the last error

	taking sync.RWMutex // held for reading while something is taken

	mu     sync.Mutex
	doors  []*door // none: nothing is taken
	rested atomic.Bool
	pause  backoff.Backoff
}

// door is the place of the listening socket in one loop, whose goroutine has most and turn.
type door struct {
	in     *Intake
	loop   *Loop
	socket *Socket
	most   int   // to take in a turn
	turn   int64 // of the loop, at the last event
}

// takenPerTurn bounds what is taken before the loop's connections have their turn.
const takenPerTurn = 64

func newIntake(of *sockets.Unpolled, failed, died func(error)) *Intake {
	return &Intake{socket: of, failed: failed, died: died, pause: backoff.Backoff{Lo: 5 * time.Millisecond, Hi: time.Second}}
}

// NewAcceptor returns the intake of a TCP listener. It calls welcome with each client and the loop that has
// accepted it, which must not block.
func NewAcceptor(of *sockets.Unpolled, welcome func(client *Socket, peer netip.AddrPort, by *Loop), failed, died func(error)) *Intake {
	in := newIntake(of, failed, died)
	in.take = func(loop *Loop) (err error) {
		var client *Socket
		var peer netip.AddrPort
		if closed := in.socket.Control(func(fd uintptr) { client, peer, err = accept(int(fd)) }); closed != nil {
			return closed
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return err
		case err != nil:
			return os.NewSyscallError("accept", err)
		}
		welcome(client, peer, loop)
		return nil
	}
	return in
}

// NewReceiver returns the intake of an unconnected UDP socket. It calls deliver with each datagram and the loop that has
// received it. Deliver must not block, and must not keep the datagram.
func NewReceiver(of *sockets.Unpolled, deliver func(d Datagram, by *Loop), failed, died func(error)) *Intake {
	in := newIntake(of, failed, died)
	in.single = true
	in.take = func(loop *Loop) (err error) {
		n, room := 0, loop.Room()
		if closed := in.socket.Control(func(fd uintptr) { n, err = room.Receive(int(fd)) }); closed != nil {
			return closed
		}
		for i := range n {
			deliver(Datagram{room, i}, loop)
		}
		return err
	}
	return in
}

// Start begins to take what arrives, and what has arrived before.
func (in *Intake) Start(loops *Loops) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.loops = loops
	return in.open()
}

// open enters the listening socket into loops. The caller holds mu.
func (in *Intake) open() error {
	if in.ended.Load() {
		return nil
	}
	loops, err := in.loops.begin()
	if err != nil {
		return err
	}
	if in.single {
		loops = []*Loop{in.loops.Least()}
	}
	for _, loop := range loops {
		d := &door{in: in, loop: loop, most: 1}
		if closed := in.socket.Control(func(fd uintptr) {
			d.socket = &Socket{FD: int(fd), events: arrivals}
			err = loop.Add(d.socket, d)
		}); closed != nil {
			err = closed
		}
		if err != nil {
			in.shut()
			return err
		}
		in.doors = append(in.doors, d)
	}
	return nil
}

// shut removes the listening socket from the loops. Closing it would not: another process may have it. The caller holds
// mu.
func (in *Intake) shut() {
	for _, d := range in.doors {
		d.loop.forget(d.socket) // first, see look
		_ = in.socket.Control(func(fd uintptr) { _ = unix.EpollCtl(d.loop.fd, unix.EPOLL_CTL_DEL, int(fd), nil) })
	}
	in.doors = nil
}

// Ready implements Watcher. The first client of a burst is taken alone, which costs one call; if there are more, the
// next turns take more. Datagrams are taken many at a time. Only an event says that a socket of UDP was shut down.
func (d *door) Ready(_ *Socket, events uint32) {
	if d.in.single && events&unix.EPOLLHUP != 0 {
		d.in.Stop()
		d.in.died(net.ErrClosed)
		return
	}
	if !d.in.single && d.loop.turns == d.turn+1 {
		d.most = min(2*d.most, takenPerTurn)
	} else {
		d.most = 1
	}
	d.turn = d.loop.turns
	d.in.takeUpTo(d.most, d.loop)
}

// takeUpTo takes what has arrived. More than most is an event of the next turn.
func (in *Intake) takeUpTo(most int, by *Loop) {
	in.taking.RLock()
	defer in.taking.RUnlock()
	for range most {
		if in.ended.Load() {
			return
		}
		switch err := in.take(by); {
		case err == nil:
			in.works()
		case errors.Is(err, unix.EAGAIN), in.ended.Load():
			return
		case passes(err):
			in.rest(err)
			return
		default:
			in.Stop()
			in.died(err)
			return
		}
	}
}

// rest takes nothing for a while, after an error that passes.
func (in *Intake) rest(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.doors) == 0 { // another loop had an error as well
		return
	}
	in.failed(err)
	in.shut()
	in.rested.Store(true)
	time.AfterFunc(in.pause.Next(), in.resume)
}

func (in *Intake) resume() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err := in.open(); err != nil {
		in.failed(err)
		time.AfterFunc(in.pause.Next(), in.resume)
	}
}

// works makes the next pause short again.
func (in *Intake) works() {
	if in.rested.Load() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.rested.Store(false)
		in.pause.Reset()
	}
}

// Stop ends the taking. It may be called before start.
func (in *Intake) Stop() {
	in.ended.Store(true)
	in.mu.Lock()
	defer in.mu.Unlock()
	in.shut()
}

// Halt is stop, and returns when nothing is taken any more.
func (in *Intake) Halt() {
	in.Stop()
	in.taking.Lock()
	defer in.taking.Unlock()
}
