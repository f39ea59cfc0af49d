package sockets

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// keeper plays the service manager: it has copies of what is sent, until they are shut down.
type keeper struct {
	t        *testing.T
	mu       sync.Mutex
	fds      []int
	messages int
	fails    error
}

func newKeeper(t *testing.T) *keeper {
	k := &keeper{t: t}
	t.Cleanup(func() { closeAll(k.fds) })
	return k
}

func (k *keeper) send(fds []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails != nil {
		return k.fails
	}
	k.messages++
	for _, fd := range fds {
		k.fds = append(k.fds, dup(k.t, fd))
	}
	return nil
}

// stored drops what was shut down, and returns copies of the rest.
func (k *keeper) stored() (fds []int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fds = slices.DeleteFunc(k.fds, func(fd int) bool {
		polled := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(polled, 0)
		gone := err == nil && polled[0].Revents&unix.POLLHUP != 0
		if gone {
			unix.Close(fd)
		}
		return gone
	})
	for _, fd := range k.fds {
		fds = append(fds, dup(k.t, fd))
	}
	return fds
}

// next returns the set of the next process.
func (k *keeper) next() *Set {
	k.t.Helper()
	s := &Set{}
	expect.Empty(k.t, s.Inherit(k.stored()))
	k.t.Cleanup(s.Close)
	return s
}

// places returns where the stored sockets listen.
func (k *keeper) places() []string {
	s := k.next()
	defer s.Close()
	var out []string
	for p := range s.inherited {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return out
}

func (k *keeper) await(want []string) {
	k.t.Helper()
	slices.Sort(want)
	wait.Until(k.t, "the sockets are stored", func() bool { return slices.Equal(k.places(), want) }, func() any { return len(k.places()) })
}

// keep runs Keep until the end of the test or stop.
func (k *keeper) keep(s *Set) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { s.Keep(ctx, k.send, func(err error) { k.t.Error(err) }) })
	stop = sync.OnceFunc(func() { cancel(); work.Wait() })
	k.t.Cleanup(stop)
	return stop
}

// many opens n TCP sockets and one of UDP.
func many(t *testing.T, s *Set, n int) (all map[string]Socket) {
	all = map[string]Socket{}
	for range n {
		at := free(t, "tcp", "127.0.0.1")
		all[place{protocol: "tcp", at: at}.String()] = open(t, s, "tcp", at)
	}
	at := free(t, "udp", "127.0.0.1")
	all[place{protocol: "udp", at: at}.String()] = open(t, s, "udp", at)
	return all
}

func names(all map[string]Socket) []string { return slices.Collect(maps.Keys(all)) }

// All sockets are stored, with two descriptors for up to 253 of them, and without a message for a
// socket that is opened later. The next process adopts them.
func TestKeep(t *testing.T) {
	var s Set
	k := newKeeper(t)
	all := many(t, &s, perShelf+50)
	stop := k.keep(&s)
	k.await(names(all))
	at := free(t, "tcp", "127.0.0.1")
	all[place{protocol: "tcp", at: at}.String()] = open(t, &s, "tcp", at)
	k.await(names(all))
	if fds := k.stored(); k.messages != 2 || len(fds) != 4 {
		t.Errorf("%d messages, %d descriptors", k.messages, len(fds))
	}
	stop()
	was := cookie(t, all[place{protocol: "tcp", at: at}.String()])
	for _, l := range all {
		s.Release(l)
	}
	s.Close()
	second := k.next()
	must.Equal(t, second.Unclaimed(), len(all), "sockets")
	expect.Equal(t, cookie(t, open(t, second, "tcp", at)), was, "another socket than the one that was stored")
}

// The ports of removed sockets become free although the keeper has copies, and it keeps the others.
func TestKeeperDropsRemovedSockets(t *testing.T) {
	var s Set
	k := newKeeper(t)
	all := many(t, &s, 20)
	k.keep(&s)
	k.await(names(all))
	for name, l := range all {
		if len(all) <= 10 {
			break
		}
		delete(all, name)
		s.Remove(l)
		network, addr := "tcp", ""
		switch l := l.(type) {
		case *net.TCPListener:
			addr = l.Addr().String()
		case *net.UDPConn:
			network, addr = "udp", l.LocalAddr().String()
		}
		wait.Until(t, "the port is free", func() bool { return binds(t, network, addr) }, func() any { return addr })
	}
	k.await(names(all))
	for _, l := range all {
		s.Remove(l)
	}
	wait.Until(t, "the keeper has nothing", func() bool { fds := k.stored(); closeAll(fds); return len(fds) == 0 }, nil)
}

// binds reports whether another program can bind to an address, without SO_REUSEADDR.
func binds(t *testing.T, network, addr string) bool {
	t.Helper()
	at := netip.MustParseAddrPort(addr)
	kind := unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd := must.Get(unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}) == nil
}

// Through two more processes, one started by the keeper and one by a take-over, the keeper has each
// socket once, and none that nobody needs.
func TestKeptByOneProcessAfterTheOther(t *testing.T) {
	var first Set
	k := newKeeper(t)
	all := many(t, &first, perShelf+5)
	stop := k.keep(&first)
	k.await(names(all))
	stop()
	for _, l := range all {
		first.Release(l)
	}
	first.Close()

	second := k.next()
	drop := true
	for p := range second.inherited {
		if drop && p.protocol == "tcp" {
			drop = false
			delete(all, p.String())
			continue
		}
		all[p.String()] = open(t, second, p.protocol, p.at)
	}
	stop = k.keep(second)
	second.RemoveUnclaimed()
	k.await(names(all))
	wait.Until(t, "the first process's are dropped", func() bool { fds := k.stored(); closeAll(fds); return len(fds) == 4 }, nil)

	given := must.Get(second.Next())(t)
	stop()
	a, b := pair(t)
	sent := make(chan error, 1)
	go func() { sent <- given.Send(a) }()
	var third Set
	t.Cleanup(third.Close)
	if problems, err := third.Receive(b); err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	must.Succeed(t, <-sent)
	given.Close()
	for p := range third.inherited {
		l := open(t, &third, p.protocol, p.at)
		second.Release(all[p.String()])
		all[p.String()] = l
	}
	third.RemoveUnclaimed()
	k.keep(&third)
	k.await(names(all))
	wait.Until(t, "the second process's are dropped", func() bool { fds := k.stored(); closeAll(fds); return len(fds) == 4 }, nil)
	// The second process still runs, and holds nothing.
	for name, l := range all {
		if u, ok := l.(*net.UDPConn); ok {
			delete(all, name)
			third.Remove(u)
			wait.Until(t, "the port is free", func() bool { return binds(t, "udp", u.LocalAddr().String()) }, nil)
		}
	}
	k.await(names(all))
}

// A keeper that fails is reported. With the next change, it gets everything.
func TestKeeperFails(t *testing.T) {
	var s Set
	k := newKeeper(t)
	k.fails = unix.ECONNREFUSED
	all := many(t, &s, 3)
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan error, 10)
	done := make(chan struct{})
	go func() { defer close(done); s.Keep(ctx, k.send, func(err error) { reports <- err }) }()
	expect.Is(t, <-reports, unix.ECONNREFUSED)
	k.mu.Lock()
	k.fails = nil
	k.mu.Unlock()
	at := free(t, "tcp", "127.0.0.1")
	all[place{protocol: "tcp", at: at}.String()] = open(t, &s, "tcp", at)
	k.await(names(all))
	cancel()
	<-done
	if len(reports) > 0 {
		t.Error(<-reports)
	}
}

// A process that ends while it moves sockets to another shelf leaves them on both. The next one
// reports nothing.
func TestSocketOnTwoShelves(t *testing.T) {
	var s Set
	all := many(t, &s, 2)
	var ends []int
	for range 2 {
		h := must.Get(newShelf())(t)
		must.Succeed(t, h.put(slices.Collect(maps.Values(all))))
		ends = append(ends, h.ends[:]...)
	}
	next := Set{}
	defer next.Close()
	if problems := next.Inherit(ends); len(problems) > 0 || next.Unclaimed() != 3 {
		t.Errorf("%v, %d sockets", problems, next.Unclaimed())
	}
}

// BenchmarkStop measures how long it takes to release listeners that the keeper has, and those that
// nobody has.
func BenchmarkStop(b *testing.B) {
	for _, kept := range []bool{false, true} {
		b.Run(map[bool]string{false: "kept=no", true: "kept=yes"}[kept], func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				var s Set
				var all []Socket
				for i := range 10000 {
					l := must.Get(s.ListenTCP(b.Context(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 98, byte(i >> 8), byte(i)}), 8080)))(b)
					all = append(all, l)
				}
				var ends []int
				if kept {
					ctx, cancel := context.WithCancel(b.Context())
					cancel()
					s.Keep(ctx, func(fds []int) error {
						for _, fd := range fds {
							copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
							ends = append(ends, copied)
							if err != nil {
								return err
							}
						}
						return nil
					}, func(err error) { b.Fatal(err) })
				}
				b.StartTimer()
				for _, l := range all {
					s.Release(l)
				}
				s.Close()
				b.StopTimer()
				closeAll(ends)
			}
		})
	}
}
