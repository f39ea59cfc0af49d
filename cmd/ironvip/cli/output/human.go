package output

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// None is the text for a missing value in a table.
const None = "-"

// units are the displayed units of time with their letters, largest first.
var units = []struct {
	size   time.Duration
	letter string
}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}

// Age returns a duration in its largest unit, rounded down: "12d", "3h", "4m", "9s". A negative
// duration (clocks differ between hosts) is "0s".
func Age(d time.Duration) string {
	s, _, _ := largest(d)
	return s
}

// Span returns a duration in its two largest units: "4d3h", "2m10s".
func Span(d time.Duration) string {
	s, rest, next := largest(d)
	if next == len(units) || rest < units[next].size {
		return s
	}
	return s + Age(rest)
}

// largest returns d in its largest unit, the remainder, and the index of the next smaller unit.
func largest(d time.Duration) (s string, rest time.Duration, next int) {
	d = max(d, 0)
	i := 0
	for i < len(units)-1 && d < units[i].size {
		i++
	}
	return strconv.FormatInt(int64(d/units[i].size), 10) + units[i].letter, d % units[i].size, i + 1
}

// Ago returns how long before now t was: "2h ago"; "in 4m" for a future time, "never" for the zero
// time.
func Ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	if d := t.Sub(now); d >= time.Second {
		return "in " + Age(d)
	}
	return Age(now.Sub(t)) + " ago"
}

// Since returns the age of t for a table, or None for the zero time.
func Since(t, now time.Time) string {
	if t.IsZero() {
		return None
	}
	return Age(now.Sub(t))
}

// Count returns a number with separated thousands: "1 204".
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(s) - 3; i > first; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// Join joins the texts that are not empty.
func Join(separator string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), separator)
}

// When returns a text, or "" unless a condition holds.
func When(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// Plural returns a number of things: "1 service", "2 services".
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return Count(int64(n)) + " " + thing + "s"
}

// Bytes returns an amount of bytes in its largest binary unit, truncated to one decimal: "0 B",
// "1.5 KiB", "16.0 EiB".
func Bytes(n uint64) string {
	if n < 1<<10 {
		return strconv.FormatUint(n, 10) + " B"
	}
	unit := (bits.Len64(n) - 1) / 10
	shift := 10 * unit
	tenths := (n >> (shift - 10) & (1<<10 - 1)) * 10 >> 10
	return strconv.FormatUint(n>>shift, 10) + "." + strconv.FormatUint(tenths, 10) + " " + "KMGTPE"[unit-1:unit] + "iB"
}
