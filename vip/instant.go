package vip

import (
	"math"
	"time"
)

// Instant is a point in time by the wall clock. It counts nanoseconds since 1970 UTC. The zero
// Instant means "not set" and is before all others. It takes 8 bytes and no pointer, where
// time.Time takes 24 with a pointer, because every service, backend and lease has some.
//
// Instants range from 1970-01-01T00:00:00.000000001Z to 2262-04-11T23:47:16.854775807Z. Times
// outside this range become the nearest Instant. A stored lease with a cooldown until the year 9999
// therefore remains in its cooldown.
//
// An Instant has no monotonic clock reading. Code that waits for one must accept or detect clock
// changes.
type Instant int64

const (
	firstInstant Instant = 1
	lastInstant  Instant = math.MaxInt64
)

// InstantOf returns the instant of t; the zero Time becomes the zero Instant.
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

// Time returns the instant in UTC; the zero Instant becomes the zero Time.
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

// Add returns the instant that is d later, or earlier if d is negative. The zero Instant remains
// zero.
func (i Instant) Add(d time.Duration) Instant {
	switch {
	case i.IsZero():
		return 0
	case d > 0 && i > lastInstant-Instant(d):
		return lastInstant
	}
	return max(firstInstant, i+Instant(d))
}

// Sub returns i - j. Both must be set.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// String returns the time as MarshalText writes it, or "" if not set.
func (i Instant) String() string {
	if i.IsZero() {
		return ""
	}
	return i.Time().Format(time.RFC3339Nano)
}

// MarshalText writes the same as time.Time: RFC 3339 in UTC, with as many fractional digits as
// needed. The zero Instant is "0001-01-01T00:00:00Z".
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
