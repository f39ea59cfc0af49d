package proxy

import (
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

// Clients that one loop accepts are served by all of them, and stay with that loop as long as the others have about as
// much to do.
func TestLoopsShareConnections(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	p, key := serve(t, tcpBackend(t, "127.0.0.1", named("web")))
	all := must.Get(p.loops.begin())(t)
	must.Equal(t, len(all), 2, "loops")
	expect.Equal(t, len(p.intake(key).doors), 2, "loops that accept")
	const clients = 3 * slack
	for i := range clients {
		all[0].load.Add(1)
		if i < slack {
			must.True(t, p.loops.share(all[0]) == all[0])
		}
	}
	must.True(t, p.loops.share(all[0]) == all[1])
	must.True(t, p.loops.share(all[1]) == all[1])
	all[0].load.Add(-clients)
}

// One processor of Go's scheduler is not enough for a loop and the rest of the process.
func TestALoopLeavesAProcessorToOthers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	serve(t, tcpBackend(t, "127.0.0.1", named("web")))
	expect.Equal(t, runtime.GOMAXPROCS(0), 2, "processors")
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

	loop := p.loops.least()
	ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(ends[1])
	s, w := newSocket(ends[0]), stuck{make(chan struct{}), make(chan struct{})}
	defer s.close()
	release := sync.OnceFunc(func() { close(w.released) })
	defer release()
	must.Succeed(t, loop.add(s, w))
	must.Get(unix.Write(ends[1], []byte("x")))(t)
	<-w.hangs
	last := loop.lastTurn()
	wait.Until(t, "no turn for longer than without work", func() bool { return time.Since(p.LastTurn()) > longestTurn+500*time.Millisecond })
	must.True(t, p.LastTurn().Equal(last))
	release()
	goesOn("a turn after the loop has hung")
}
