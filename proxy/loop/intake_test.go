package loop

import (
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// The kernel wakes a loop of an earlier process for a client, and that process leaves without accepting it. The loops of the
// next one, which begin then, find the client.
func TestClientsThatAnotherProcessLeaves(t *testing.T) {
	l, addr := listen(t)
	earlier := must.Get(unix.EpollCreate1(unix.EPOLL_CLOEXEC))(t)
	defer unix.Close(earlier)
	woken := make(chan int)
	must.Succeed(t, l.Control(func(fd uintptr) {
		must.Succeed(t, unix.EpollCtl(earlier, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: arrivals, Fd: int32(fd)}))
	}))
	go func() {
		n, _ := unix.EpollWait(earlier, make([]unix.EpollEvent, 1), -1)
		woken <- n
	}()

	var loops Loops
	loops.Hold()
	defer loops.Close()
	_, taken := accepting(t, &loops, l, nil)
	connect(t, addr)
	must.Equal(t, <-woken, 1, "events of the earlier process")
	must.Succeed(t, l.Control(func(fd uintptr) { must.Succeed(t, unix.EpollCtl(earlier, unix.EPOLL_CTL_DEL, int(fd), nil)) }))
	loops.Release()
	wait.Until(t, "the client", func() bool { return len(taken) == 1 })
}

// Clients that arrive while accept waits for descriptors don't shorten the wait, and start no further
// one.
func TestAcceptPausesOnceForAllClients(t *testing.T) {
	var loops Loops
	defer loops.Close()
	l, addr := listen(t)
	var attempts atomic.Int32
	in, taken := accepting(t, &loops, l, func(error) { attempts.Add(1) })
	in.mu.Lock()
	in.pause = backoff.Backoff{Lo: time.Hour, Hi: time.Hour}
	in.mu.Unlock()
	var clients [20]int
	for i := range clients {
		clients[i] = must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
		defer unix.Close(clients[i])
	}
	free := descriptors.Exhaust(t)
	for i, fd := range clients {
		must.Succeed(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}))
		wait.Until(t, "an attempt", func() bool { return attempts.Load() > 0 })
		in.takeUpTo(1, loops.Least()) // as a loop that has had its event before the pause
		must.Equal(t, attempts.Load(), 1, "attempts after %d clients", i+1)
	}
	free()
	in.resume()
	wait.Until(t, "all clients", func() bool { return len(taken) == len(clients) })
}

// A listener with more clients than it may accept in a turn goes on after it without another client.
func TestAListenerTakesTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one loop
	var loops Loops
	loops.Hold()
	defer loops.Close()
	l, addr := listen(t)
	_, taken := accepting(t, &loops, l, nil)
	const clients = takenPerTurn + 10
	for range clients {
		connect(t, addr)
	}
	loops.Release()
	wait.Until(t, "all clients", func() bool { return len(taken) == clients })
}

// A socket of UDP that another process has shut down ends its intake, and doesn't keep the loop busy.
func TestAReceiverIsShutDownWhileItWaits(t *testing.T) {
	var loops Loops
	defer loops.Close()
	set := NewSockets()
	l := must.Get(set.ListenUnpolled(t.Context(), "udp", netip.MustParseAddrPort("127.96.0.1:0")))(t)
	defer set.Remove(l)
	died := make(chan error, 1)
	in := NewReceiver(l, func(Datagram, *Loop) {}, nil, func(err error) { died <- err })
	must.Succeed(t, in.Start(&loops))
	must.Succeed(t, l.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }))
	expect.Is(t, <-died, net.ErrClosed)
}
