package loop

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// stuck is the owner of a socket. Its loop hangs until released is closed.
type stuck struct{ hangs, released chan struct{} }

func (w stuck) Ready(*Socket, uint32) {
	close(w.hangs)
	<-w.released
}

// Clients that one loop accepts are served by all of them, and stay with that loop as long as the others have about as
// much to do.
func TestLoopsShareConnections(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	var loops Loops
	defer loops.Close()
	l, _ := listen(t)
	in, _ := accepting(t, &loops, l, nil)
	all := must.Get(loops.begin())(t)
	must.Equal(t, len(all), 2, "loops")
	expect.Equal(t, len(in.doors), 2, "loops that accept")
	const clients = 3 * slack
	for i := range clients {
		all[0].load.Add(1)
		if i < slack {
			must.True(t, loops.Share(all[0]) == all[0])
		}
	}
	must.True(t, loops.Share(all[0]) == all[1])
	must.True(t, loops.Share(all[1]) == all[1])
	all[0].load.Add(-clients)
}

// One processor of Go's scheduler is not enough for a loop and the rest of the process.
func TestALoopLeavesAProcessorToOthers(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var loops Loops
	defer loops.Close()
	must.Get(loops.begin())(t)
	expect.Equal(t, runtime.GOMAXPROCS(0), 2, "processors")
}

// More processors mean more loops, but without descriptors, those that run serve the clients.
func TestLoopsThatRunServeClientsWithoutDescriptors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	var loops Loops
	defer loops.Close()
	must.Get(loops.begin())(t)
	runtime.GOMAXPROCS(6)
	free := descriptors.Exhaust(t)
	expect.Equal(t, len(must.Get(loops.begin())(t)), 1, "loops without descriptors")
	free()
	expect.Equal(t, len(must.Get(loops.begin())(t)), 3, "loops with descriptors")
}

// LastTurn goes on without any work, and stops when one of the loops hangs.
// Slow: a loop without work takes a turn once a second.
func TestAHungLoopIsNoticed(t *testing.T) {
	var loops Loops
	defer loops.Close()
	must.Get(loops.begin())(t)
	goesOn := func(what string) {
		t.Helper()
		from := time.Now()
		wait.Until(t, what, func() bool { return loops.LastTurn().After(from) })
	}
	goesOn("a turn without work")

	loop := loops.Least()
	ends := must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(ends[1])
	s, w := NewSocket(ends[0]), stuck{make(chan struct{}), make(chan struct{})}
	defer s.Close()
	release := sync.OnceFunc(func() { close(w.released) })
	defer release()
	must.Succeed(t, loop.Add(s, w))
	must.Get(unix.Write(ends[1], []byte("x")))(t)
	<-w.hangs
	last := loop.lastTurn()
	wait.Until(t, "no turn for longer than without work", func() bool { return time.Since(loops.LastTurn()) > longestTurn+500*time.Millisecond })
	must.True(t, loops.LastTurn().Equal(last))
	release()
	goesOn("a turn after the loop has hung")
}
