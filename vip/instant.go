package vip

import (
	"math"
	"time"
)

// Instant is a point in time by the wall clock, in 8 bytes where time.Time has
// 24 and a pointer: what is kept for each service, backend or lease has these.
// It counts the nanoseconds since 1970 UTC, and the zero Instant is "not set",
// which is before all others.
//
// Instants reach from 1970-01-01T00:00:00.000000001Z to 2262-04-11T23:47:16.854775807Z.
// What lies beyond becomes the nearest of them: nobody's clock goes there, and
// "cools until the year 9999", which somebody wrote into a store, still is a
// lease that cools.
//
// An Instant knows nothing of the monotonic clock. Whoever waits for one has to
// do without, or to see when the clock is set.
type Instant int64

const (
	firstInstant Instant = 1
	lastInstant  Instant = math.MaxInt64
)

// InstantOf returns the instant of t; the zero Time's is the zero Instant.
func InstantOf(t time.Time) Instant {
	switch {
	case t.IsZero():
		return 0
	case t.Before(firstInstant.Time()):
		return firstInstant
	case t.After(lastInstant.Time()):
		return lastInstant
	}
	return Instant(t.UnixNano())
}

// Time returns the instant in UTC; the zero Instant's is the zero Time.
func (i Instant) Time() time.Time {
	if i.IsZero() {
		return time.Time{}
	}
	return time.Unix(0, int64(i)).UTC()
}

// IsZero reports whether the instant is not set.
func (i Instant) IsZero() bool { return i == 0 }

// Before reports whether i is before j.
func (i Instant) Before(j Instant) bool { return i < j }

// After reports whether i is after j.
func (i Instant) After(j Instant) bool { return i > j }

// Add returns the instant that is d later, or earlier where d is negative. One
// that is not set stays so.
func (i Instant) Add(d time.Duration) Instant {
	switch {
	case i.IsZero():
		return 0
	case d > 0 && i > lastInstant-Instant(d):
		return lastInstant
	}
	return max(firstInstant, i+Instant(d))
}

// Sub returns how much later i is than j. Both are set.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// String returns the time as MarshalText writes it, "" where it is not set.
func (i Instant) String() string {
	if i.IsZero() {
		return ""
	}
	return i.Time().Format(time.RFC3339Nano)
}

// MarshalText writes RFC 3339 in UTC, with as many digits of the second's
// fraction as it has: what a time.Time writes, "0001-01-01T00:00:00Z" of the zero
// one included.
func (i Instant) MarshalText() ([]byte, error) { return i.Time().MarshalText() }

// UnmarshalText reads what a time.Time writes.
func (i *Instant) UnmarshalText(b []byte) error {
	var t time.Time
	if err := t.UnmarshalText(b); err != nil {
		return err
	}
	*i = InstantOf(t)
	return nil
}
