package vip

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
)

func TestReason(t *testing.T) {
	now := time.Date(2026, 11, 8, 12, 0, 0, 0, time.UTC)
	last := InstantOf(now.Add(-12500 * time.Millisecond))
	for _, c := range []struct {
		reason Reason
		want   string
	}{
		{Reason{}, ""},
		{ReasonText(""), ""},
		{ReasonText("Consul check critical: web"), "Consul check critical: web"},
		{NoHeartbeat(last, 10*time.Second), "no heartbeat for 12s (ttl 10s)"},
		{NoHeartbeat(InstantOf(now), 10*time.Second), "no heartbeat for 10s (ttl 10s)"}, // the clock was set back
	} {
		expect.Equal(t, c.reason.Text(now), c.want)
	}
	if one, two := NoHeartbeat(last, time.Second), NoHeartbeat(last, time.Second); one != two || ReasonText("a") == ReasonText("b") || ReasonText("a") == (Reason{}) {
		t.Error("equal reasons are those of equal content")
	}
}
