package server

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/heapsize"
)

// addrOf returns an address of a prefix.
func addrOf(prefix, host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(prefix >> 8), byte(prefix), byte(host)})
}

func TestLimiter(t *testing.T) {
	l := newLimiter(100)
	start := time.Now()
	taken := func(a netip.Addr, tries int, after time.Duration) (n int) {
		for range tries {
			if l.take(a, start.Add(after)) {
				n++
			}
		}
		return n
	}
	expect.Equal(t, taken(addrOf(1, 1), 1000, 0), 100, "replies at once")
	expect.Equal(t, taken(addrOf(1, 2), 1000, 0), 0, "more replies to another address of the prefix")
	expect.Equal(t, taken(addrOf(1, 1), 1000, 250*time.Millisecond), 25, "replies in a quarter of a second")
	expect.Equal(t, taken(addrOf(1, 1), 1000, time.Hour), 100, "replies after a pause")
	start = setBack(t, start, 2*time.Hour)
	expect.Equal(t, taken(addrOf(1, 1), 1000, 2*time.Hour), 100, "replies after a pause in which the wall clock was set back")
	expect.Equal(t, taken(addrOf(2000, 1), 1000, 2*time.Hour), 100, "replies to a new prefix, with the wall clock set back")
	// Other prefixes, of both families, have their own. Some of these share a counter with others.
	others := 0
	for i := range 100 {
		others += taken(addrOf(2+i, 1), 1, 0)
	}
	for i := range 100 {
		others += taken(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, byte(i)}), 1, 0)
	}
	expect.AtLeast(t, others, 190, "prefixes of 200 that get a reply")
}

// setBack returns a time of the same monotonic clock, when the wall clock was set back. Package time
// has no way to make one: the seconds of a time with both clocks are in the bits of wall from 30 on.
func setBack(t *testing.T, at time.Time, by time.Duration) time.Time {
	back := at
	(*struct{ wall uint64 })(unsafe.Pointer(&back)).wall -= uint64(by/time.Second) << 30
	if back.Sub(at) != 0 || back.UnixNano() != at.Add(-by).UnixNano() {
		t.Fatalf("%v is not %v with the wall clock set back", back, at)
	}
	return back
}

func TestPrefixOf(t *testing.T) {
	same := func(a, b string) bool { return prefixOf(netip.MustParseAddr(a)) == prefixOf(netip.MustParseAddr(b)) }
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"192.0.2.1", "192.0.2.255", true},
		{"192.0.2.1", "192.0.3.1", false},
		{"2001:db8::1", "2001:db8:0:ff::1", true},
		{"2001:db8::1", "2001:db8:0:100::1", false},
		{"::1", "0.0.0.1", false},
	} {
		expect.Equal(t, same(c.a, c.b), c.want, "%s and %s: %v", c.a, c.b, !c.want)
	}
}

// A flood with forged addresses takes no memory, and its replies are bounded by the number of
// counters, not by the number of addresses.
func TestLimiterInAFlood(t *testing.T) {
	const rate = 2
	var l *limiter
	size := heapsize.Of(func() any { l = newLimiter(rate); return l })
	expect.AtMost(t, size, 160<<10, "bytes")
	now, replies := time.Now(), 0
	if n := testing.AllocsPerRun(1, func() {
		for i := range 500_000 {
			if l.take(netip.AddrFrom4([4]byte{byte(i >> 16), byte(i >> 8), byte(i), 1}), now) {
				replies++
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	expect.AtMost(t, replies, rate*buckets, "replies, with %d counters", buckets)
}
