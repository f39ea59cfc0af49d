package proxy

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// stuck is the owner of a socket. Its loop hangs until released is closed.
type stuck struct{ hangs, released chan struct{} }

func (w stuck) ready(*socket, uint32) {
	close(w.hangs)
	<-w.released
}

// LastTurn stops when the receipt of a datagram hangs, and goes on afterwards.
func TestAHungReceiverIsNoticed(t *testing.T) {
	for name, makes := range map[string]func(*testing.T) *bench{
		"own socket": func(t *testing.T) *bench { return newTarget(t, Options{}) },
		"sk_lookup":  func(t *testing.T) *bench { return newSteered(t, Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			p := makes(t)
			key := freeKey(t, "127.96.0.1", vip.UDP)
			p.must(onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a")))
			client := udpClient(t, key)
			mustAsk(t, client, "x")
			listener := p.frontend(key).listener.(*udpListener)
			listener.mu.Lock()
			release := sync.OnceFunc(listener.mu.Unlock)
			defer release()
			must.Get(client.Write([]byte("y")))(t)
			wait.Until(t, "no turn for longer than without work", func() bool { return time.Since(p.LastTurn()) > longestTurn+500*time.Millisecond })
			hangs := p.LastTurn()
			release()
			wait.Until(t, "a later turn", func() bool { return p.LastTurn().After(hangs) })
		})
	}
}

// LastTurn goes on without any work, and stops when one of the loops that relay TCP hangs.
// Slow: a loop without work takes a turn once a second.
func TestAHungEventLoopIsNoticed(t *testing.T) {
	p, key := serve(t, tcpBackend(t, "127.0.0.1", named("web")))
	who(t, key) // starts the loops
	goesOn := func(what string) {
		t.Helper()
		from := time.Now()
		wait.Until(t, what, func() bool { return p.LastTurn().After(from) })
	}
	goesOn("a turn after the client")
	goesOn("a turn without work")

	loop := must.Get(p.loops.pick())(t)
	ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(ends[1])
	s, w := newSocket(ends[0]), stuck{make(chan struct{}), make(chan struct{})}
	defer s.close()
	release := sync.OnceFunc(func() { close(w.released) })
	defer release()
	must.Succeed(t, loop.add(s, w))
	<-w.hangs
	last := loop.lastTurn()
	wait.Until(t, "no turn for longer than without work", func() bool { return time.Since(p.LastTurn()) > longestTurn+500*time.Millisecond })
	must.True(t, p.LastTurn().Equal(last))
	release()
	goesOn("a turn after the loop has hung")
}
