package haproxy

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/vip/spec"
)

// time reads a time, in milliseconds or with a unit, and bounds it. It returns 0 for 0, which HAProxy
// has for no limit, and nil for what isn't a time.
func (p *proxy) time(l *migrate.Statement, text string, least, most time.Duration) *spec.Duration {
	d, err := parseTime(text)
	if err != nil {
		p.Note(l.Place, "%v: ignored", err)
		return nil
	}
	if d != 0 {
		return p.Bounded(l.Place, "a time", d, least, most)
	}
	return new(spec.Duration(0))
}

// positive reads a time as time does. HAProxy's 0 is nil: unset.
func (p *proxy) positive(l *migrate.Statement, text string, least, most time.Duration) *spec.Duration {
	if d := p.time(l, text, least, most); d != nil && *d != 0 {
		return d
	}
	return nil
}

// parseTime reads HAProxy's times: a number of milliseconds, or with a unit. A time that is too long
// for a Duration is the longest one.
func parseTime(text string) (time.Duration, error) {
	digits := strings.TrimRight(text, "usmhd")
	n, err := strconv.ParseUint(digits, 10, 63)
	units := map[string]time.Duration{"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second,
		"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	unit, known := units[text[len(digits):]]
	if err != nil && !errors.Is(err, strconv.ErrRange) || !known {
		return 0, fmt.Errorf("%q is not a time", text)
	}
	if err != nil || n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * unit, nil
}
