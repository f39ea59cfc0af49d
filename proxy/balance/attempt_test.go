package balance

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// A connection counts as soon as its backend is chosen, before it is dialed. Clients that arrive at
// the same time therefore don't all choose the backend with the fewest connections.
func TestAConnectionCountsFromTheChoiceOn(t *testing.T) {
	for _, c := range []struct {
		scheduler vip.Scheduler
		affinity  time.Duration
		want      int // of 6 clients; 3 more are on web1 already
	}{
		{vip.LeastConnection, 0, 4}, // or 5: among equals, the turn decides
		{vip.WeightedLeastConnection, 0, 4},
		{vip.LeastConnection, time.Hour, 4},
	} {
		spec := specOf(c.scheduler, 0, 0, 0, web1, web2)
		spec.Affinity = c.affinity
		f := front(t, spec)
		ends := f.wakened().all
		ends.of(web1).State.Open.Add(3)
		n := 0
		for i := range 6 {
			a := f.Attempt(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), 40000), f.Service(), false)
			e, why := a.take()
			must.True(t, e != nil, why)
			if e.Addr == web2 {
				n++
			}
			defer a.End()
			defer e.Leave()
		}
		if n != c.want && n != c.want+1 {
			t.Errorf("%s, affinity %s: %d of 6 went to the backend with the fewest", c.scheduler, c.affinity, n)
		}
		expect.Equal(t, ends.of(web2).State.Open.Load(), int64(n), "%s: connections counted", c.scheduler)
		ends.of(web1).State.Open.Add(-3)
	}
}

// A client with affinity counts on its backend, too.
func TestARememberedClientCounts(t *testing.T) {
	spec := specOf(vip.RoundRobin, 0, 0, 0, web1, web2)
	spec.Affinity = time.Hour
	f := front(t, spec)
	for want := 1; want <= 3; want++ {
		a := f.Attempt(client, f.Service(), false)
		e, _ := a.take()
		defer a.End()
		defer e.Leave()
		expect.Equal(t, e.State.Open.Load(), int64(want), "connections of one client")
	}
}

// If one goroutine of a client waits in the queue, another one ends at once, and gives back what it
// has. The wait goes on.
func TestOneGoroutineOfAClientWaits(t *testing.T) {
	f := front(t, specOf(vip.RoundRobin, 0, 10, 1, web1))
	s := f.Service()
	for _, ends := range []bool{false, true} {
		first, second := f.Attempt(client, s, true), f.Attempt(client, s, true)
		e := must.Get(first.Start(true))(t)
		waits := make(chan error)
		go func() {
			_, err := second.Start(true)
			waits <- err
		}()
		wait.Until(t, "it waits", func() bool { return s.queue.length.Load() == 1 })
		_, err := second.Start(true)
		expect.Is(t, err, ErrElsewhere, "another goroutine")
		expect.Equal(t, s.queue.length.Load(), 1, "clients wait")
		if ends {
			second.End()
			expect.Is(t, <-waits, ErrElsewhere, "after the end of the client")
		}
		e.Leave()
		first.End()
		if !ends {
			expect.Succeed(t, <-waits)
			e.Leave()
			second.End()
		}
	}
}

// A client that waits has its turn, and a panic then. The others go on.
func TestPanicInAQueue(t *testing.T) {
	f := front(t, specOf(vip.RoundRobin, 1, 10, 1, web1))
	s := f.Service()
	first := f.Attempt(client, s, true)
	e := must.Get(first.Start(true))(t)
	next := func(panics bool) (started chan struct{}) {
		a := f.Attempt(client, s, true)
		before := s.queue.length.Load()
		started = make(chan struct{})
		go func() {
			defer close(started)
			defer a.End()
			defer func() { expect.Equal(t, recover() != nil, panics, "a panic") }()
			e, err := a.Start(true)
			expect.Succeed(t, err)
			e.Leave()
		}()
		wait.Until(t, "the client waits", func() bool { return s.queue.length.Load() == before+1 })
		return started
	}
	second, third := next(true), next(false)
	f.breakPicks(1)
	e.Leave()
	first.End()
	<-second
	<-third
}

// Without limits or waiting clients, the places of a connection cost no memory.
func TestPlacesCostNothing(t *testing.T) {
	f := front(t, specOf(vip.RoundRobin, 10, 10, 10, web1))
	a := f.Attempt(client, f.Service(), false)
	if n := testing.AllocsPerRun(100, func() {
		a.tried = a.tried[:0]
		e, _ := a.place(true)
		e.Leave()
		a.exit()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
