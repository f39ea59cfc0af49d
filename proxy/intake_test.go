package proxy

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
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
