package balance

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

var (
	one = netip.MustParseAddrPort("10.0.0.1:80")
	two = netip.MustParseAddrPort("10.0.0.2:80")
)

func always(netip.AddrPort) bool { return true }

func choosing(b netip.AddrPort) func() (netip.AddrPort, bool) {
	return func() (netip.AddrPort, bool) { return b, true }
}

func testClient(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }

// The timeout counts from the end of the client's last connection.
func TestAffinityTimeout(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAffinity(time.Minute, 10)
		is := func(want, next netip.AddrPort) {
			t.Helper()
			e, got := a.claim(testClient(1), always, choosing(next))
			expect.Equal(t, got, want, "backend")
			a.release(e)
		}
		long, _ := a.claim(testClient(1), always, choosing(one))
		time.Sleep(time.Hour)
		is(one, two) // held by the open connection
		a.release(long)
		time.Sleep(59 * time.Second)
		is(one, two)
		time.Sleep(59 * time.Second)
		is(one, two) // the use before counted
		time.Sleep(61 * time.Second)
		is(two, two)

		a.setTimeout(time.Second)
		time.Sleep(1001 * time.Millisecond)
		is(one, one)
		expect.Equal(t, a.len(), 1, "clients after a shorter timeout")
	})
}

func TestAffinityIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAffinity(time.Hour, 3)
		open, _ := a.claim(testClient(0), always, choosing(one))
		for i := 1; i < 100; i++ {
			time.Sleep(time.Second)
			e, got := a.claim(testClient(i), always, choosing(two))
			if e == nil || got != two {
				t.Fatal("newcomer not stored although there are idle ones")
			}
			a.release(e)
			must.AtMost(t, a.len(), 3, "clients of at most 3")
		}
		// The newest two remain, and the one with a connection.
		for _, i := range []int{0, 98, 99} {
			e, got := a.claim(testClient(i), always, choosing(netip.AddrPort{}))
			expect.True(t, got.IsValid(), "client %d forgotten", i)
			defer a.release(e)
		}
		// All have connections now: a new client is served but not stored.
		if e, got := a.claim(testClient(500), always, choosing(two)); e != nil || got != two {
			t.Error(e, got)
		}
		a.release(open)
	})
}

func TestAffinityMoves(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newAffinity(time.Hour, 3)
		e, _ := a.claim(testClient(1), always, choosing(one))
		a.move(e, two)
		a.release(e)
		if e, got := a.claim(testClient(1), always, choosing(one)); got != two {
			t.Error("not moved")
		} else {
			a.release(e)
		}
		e, got := a.claim(testClient(1), func(b netip.AddrPort) bool { return b != two }, choosing(one))
		expect.Equal(t, got, one, "kept on an unusable backend")
		a.release(e)
		if e, _ := a.claim(testClient(2), always, func() (netip.AddrPort, bool) { return netip.AddrPort{}, false }); e != nil || a.len() != 1 {
			t.Error("stored although no backend was found")
		}
	})
}

// len returns the number of remembered clients.
func (a *affinity) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.clients)
}
