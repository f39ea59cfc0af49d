package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// A listener has no goroutine. Every client is accepted, including the
// first.
func TestListenersNeedNoGoroutines(t *testing.T) {
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		t.Run(protocol.String(), func(t *testing.T) {
			var a netip.AddrPort
			if protocol == vip.TCP {
				a = tcpBackend(t, "127.0.0.1", named("a"))
			} else {
				a = udpBackend(t, "127.0.0.1", "a")
			}
			p := newTarget(t, Options{})
			const n = 50
			before := runtime.NumGoroutine()
			var keys []vip.FrontendKey
			for i := range n {
				key := freeKey(t, fmt.Sprintf("127.96.0.%d", i+1), protocol)
				p.must(onVIP(key, vip.RoundRobin, a))
				keys = append(keys, key)
			}
			expect.AtMost(t, runtime.NumGoroutine()-before, 3, "goroutines of %d listeners", n)
			var clients sync.WaitGroup
			for range 3 {
				for _, key := range keys {
					clients.Go(func() {
						if protocol == vip.TCP {
							expect.Equal(t, who(t, key), "a", "%s", key)
						} else if got := mustAsk(t, udpClient(t, key), "x"); got != "a" {
							t.Errorf("%s: %q", key, got)
						}
					})
				}
				clients.Wait()
			}
		})
	}
}

// A listener that fails before its first client is detected.
func TestAListenerBreaksWhileItWaits(t *testing.T) {
	p, key := serve(t, tcpBackend(t, "127.0.0.1", named("a")))
	socket, err := p.frontend(key).listener.(*tcpListener).l.SyscallConn()
	must.Succeed(t, err)
	must.Succeed(t, socket.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_RDWR) }))
	must.Succeed(t, err)
	wait.Until(t, "death noticed", func() bool { return p.frontend(key).listener.died() != nil })
}

// Clients connect while their listener closes. No function of a closed frontend is called; the
// goroutine count of newTarget would show that.
func TestClientsComeWhileListenersGo(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	p, key := target(t)
	var clients sync.WaitGroup
	for range 200 {
		p.must(onVIP(key, vip.RoundRobin, a))
		clients.Go(func() {
			if c, err := dialerFrom("").Dial("tcp", key.AddrPort().String()); err == nil {
				c.Close()
			}
		})
		time.Sleep(100 * time.Microsecond)
		p.remove(key)
	}
	clients.Wait()
}

// A UDP frontend's socket closes and opens with its usable backends. Each new socket receives
// datagrams, whatever was sent to the previous one.
func TestDatagramsComeWhileSocketsGo(t *testing.T) {
	a := udpBackend(t, "127.0.0.1", "a")
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	with, none := onVIP(key, vip.RoundRobin, a), onVIP(key, vip.RoundRobin)
	var clients sync.WaitGroup
	for range 200 {
		p.must(with)
		clients.Go(func() {
			if c, err := net.Dial("udp", key.AddrPort().String()); err == nil {
				_, _ = c.Write([]byte("x"))
				c.Close()
			}
		})
		time.Sleep(100 * time.Microsecond)
		p.must(none)
	}
	clients.Wait()
	p.must(with)
	for range 2 {
		mustAsk(t, udpClient(t, key), "x")
	}
	expect.Succeed(t, p.frontend(key).listener.died())
}

// The kernel wakes a loop of an earlier process for a client, and that process leaves without accepting it. The loops of the
// next one, which begin then, find the client.
func TestClientsThatAnotherProcessLeaves(t *testing.T) {
	set, addr := NewSockets(), freeKey(t, "127.96.0.1", vip.TCP).AddrPort()
	l := must.Get(set.ListenUnpolled(t.Context(), "tcp", addr))(t)
	defer set.Remove(l)
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

	loops := eventLoops{held: make(chan struct{})}
	defer loops.close()
	taken := make(chan *socket, 1)
	in := newAcceptor(l, func(client *socket, _ netip.AddrPort, _ *eventLoop) { taken <- client }, nil, nil)
	must.Succeed(t, in.start(&loops))
	defer in.halt()
	client := must.Get(net.Dial("tcp", addr.String()))(t)
	defer client.Close()
	must.Equal(t, <-woken, 1, "events of the earlier process")
	must.Succeed(t, l.Control(func(fd uintptr) { must.Succeed(t, unix.EpollCtl(earlier, unix.EPOLL_CTL_DEL, int(fd), nil)) }))
	loops.release()
	wait.Until(t, "the client", func() bool { return len(taken) == 1 })
	(<-taken).close()
}

// A socket of UDP that another process has shut down ends its intake, and doesn't keep the loop busy.
func TestAReceiverIsShutDownWhileItWaits(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a")))
	l := p.frontend(key).listener.(*udpListener)
	must.Succeed(t, l.conn.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }))
	wait.Until(t, "death noticed", func() bool { return l.died() != nil })
}
