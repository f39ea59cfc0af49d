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

// LastTurn stops when the receiver of one frontend, or the common one, hangs, and goes on afterwards. Receivers
// that have ended don't count.
// Slow: a loop without work takes a turn once a second.
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
			wait.Until(t, "the end of the first datagram", func() bool { return p.receivers.lastTurn().IsZero() })

			listener := p.frontend(key).listener.(*udpListener)
			listener.mu.Lock()
			release := sync.OnceFunc(listener.mu.Unlock)
			defer release()
			must.Get(client.Write([]byte("y")))(t)
			wait.Until(t, "the receiver hangs", func() bool { return !p.receivers.lastTurn().IsZero() })
			hangs := p.receivers.lastTurn()
			wait.Until(t, "the turn of the receiver, while others go on", func() bool {
				return p.acceptPoller.turns.at().After(hangs) && p.LastTurn().Equal(hangs)
			})
			release()
			wait.Until(t, "a later turn", func() bool { return p.LastTurn().After(hangs) })

			p.Drain(t.Context())
			wait.Until(t, "no receiver", func() bool {
				p.receivers.mu.Lock()
				defer p.receivers.mu.Unlock()
				return len(p.receivers.all) == 0
			})
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
	last, since := loop.turns.at(), time.Now()
	wait.Until(t, "the turn of the loop that hangs, while others go on", func() bool {
		return p.acceptPoller.turns.at().After(since) && p.LastTurn().Equal(last)
	})
	release()
	goesOn("a turn after the loop has hung")
}
