package vip

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
)

// Documents have times as time.Time writes them.
func TestInstantsAreWrittenAsTimesAre(t *testing.T) {
	for _, at := range []time.Time{
		{},
		time.Date(2026, 11, 8, 12, 0, 0, 5, time.UTC),
		time.Date(2026, 11, 8, 12, 0, 0, 120_000_000, time.UTC),
		time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC),
		time.Date(1970, 1, 1, 0, 0, 0, 1, time.UTC),
		time.Date(2262, 4, 11, 23, 47, 16, 854775807, time.UTC),
	} {
		want, _ := json.Marshal(at)
		got, err := json.Marshal(InstantOf(at))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is written, want %s, %v", got, want, err)
		}
		var back Instant
		if err := json.Unmarshal(want, &back); err != nil || back != InstantOf(at) || !back.Time().Equal(at) || back.IsZero() != at.IsZero() {
			t.Errorf("%s is read as %s, %v", want, back.Time(), err)
		}
	}
	var elsewhere Instant
	if err := json.Unmarshal([]byte(`"2026-11-08T13:00:00+01:00"`), &elsewhere); err != nil || elsewhere.String() != "2026-11-08T12:00:00Z" {
		t.Errorf("a time of another zone is read as %s, %v", elsewhere, err)
	}
	for _, wrong := range []string{`"yesterday"`, `""`, `"2026-11-08"`, `5`} {
		before := elsewhere
		if err := json.Unmarshal([]byte(wrong), &before); err == nil || before != elsewhere {
			t.Errorf("%s is read as %s", wrong, before)
		}
	}
	expect.Equal(t, Instant(0).String(), "", "one that is not set is written as")
}

// The zero Instant means "not set", so no time may become it. No time may wrap around to the other
// end.
func TestTimesBeyondInstants(t *testing.T) {
	for at, want := range map[string]string{
		"1970-01-01T00:00:00Z":           "1970-01-01T00:00:00.000000001Z",
		"1970-01-01T00:00:00.000000001Z": "1970-01-01T00:00:00.000000001Z",
		"1969-12-31T23:59:59Z":           "1970-01-01T00:00:00.000000001Z",
		"0001-01-01T00:00:01Z":           "1970-01-01T00:00:00.000000001Z",
		"2262-04-11T23:47:16.854775807Z": "2262-04-11T23:47:16.854775807Z",
		"2262-04-11T23:47:16.854775808Z": "2262-04-11T23:47:16.854775807Z",
		"9999-12-31T23:59:59Z":           "2262-04-11T23:47:16.854775807Z",
	} {
		var i Instant
		if err := i.UnmarshalText([]byte(at)); err != nil || i.String() != want {
			t.Errorf("%s becomes %s, want %s, %v", at, i, want, err)
		}
	}
}

func TestInstantsAddUp(t *testing.T) {
	at := InstantOf(time.Date(2026, 11, 8, 12, 0, 0, 5, time.UTC))
	for _, c := range []struct {
		from Instant
		add  time.Duration
		want Instant
	}{
		{at, time.Hour, InstantOf(at.Time().Add(time.Hour))},
		{at, -time.Hour, InstantOf(at.Time().Add(-time.Hour))},
		{at, 0, at},
		{at, math.MaxInt64, lastInstant},
		{at, math.MinInt64, firstInstant},
		{lastInstant, 1, lastInstant},
		{lastInstant, -1, lastInstant - 1},
		{firstInstant, -1, firstInstant},
		{firstInstant, math.MinInt64, firstInstant},
		{0, time.Hour, 0},
	} {
		expect.Equal(t, c.from.Add(c.add), c.want, "%d and %s make", c.from, c.add)
	}
	later := at.Add(time.Minute)
	if later.Sub(at) != time.Minute || at.Sub(later) != -time.Minute || lastInstant.Sub(firstInstant) < 0 {
		t.Error("what lies between two instants is wrong")
	}
	if !at.Before(later) || later.Before(at) || at.Before(at) || !later.After(at) || at.After(at) || !Instant(0).Before(firstInstant) {
		t.Error("instants are in another order than times")
	}
}
