package server

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"
)

// buckets is the number of counters of a limiter, in 128 KiB. Prefixes with the same hash share one,
// so a flood with forged addresses can't take more memory, and can't get replies by using more
// prefixes than are counted.
const buckets = 1 << 14

// limiter limits the replies to each prefix of clients: /24 of IPv4, /56 of IPv6. A prefix can get the
// replies of one second at once. Its methods may be called concurrently.
type limiter struct {
	rate     int
	interval int64 // nanoseconds for each reply
	seed     maphash.Seed
	start    time.Time // with its monotonic clock: a step of the wall clock must not silence clients
	// paid is until when each bucket has used its replies, in nanoseconds since start. It can be up to
	// a second ahead.
	paid [buckets]atomic.Int64
}

func newLimiter(rate int) *limiter {
	return &limiter{rate: rate, interval: int64(time.Second) / int64(rate), seed: maphash.MakeSeed(), start: time.Now()}
}

// take reports whether a client gets a reply at a time, which has a monotonic clock.
func (l *limiter) take(client netip.Addr, at time.Time) bool {
	paid, now := l.bucket(client), int64(at.Sub(l.start))
	for {
		before := paid.Load()
		after := max(before, now) + l.interval
		if after > now+int64(time.Second) {
			return false
		}
		if paid.CompareAndSwap(before, after) {
			return true
		}
	}
}

// bucket returns the counter of a client.
func (l *limiter) bucket(client netip.Addr) *atomic.Int64 {
	return &l.paid[maphash.Comparable(l.seed, prefixOf(client))%buckets]
}

// prefixOf returns a number for the prefix of a client. The families don't share numbers.
func prefixOf(client netip.Addr) uint64 {
	if client.Is4() {
		b := client.As4()
		return 1<<63 | uint64(binary.BigEndian.Uint32(b[:])>>8)
	}
	b := client.As16()
	return binary.BigEndian.Uint64(b[:]) >> 8
}
