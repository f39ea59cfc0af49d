package agent

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/reconcile"
)

func TestLagIsThatOfTheOldestChange(t *testing.T) {
	var l lag
	at := time.Unix(0, 0)
	for _, step := range []struct {
		after            time.Duration
		desired, applied uint64
		want             time.Duration
	}{
		{0, 5, 5, 0},
		{time.Second, 7, 5, 0}, // seen for the first time
		{time.Second, 9, 6, time.Second},
		{time.Second, 12, 7, 0}, // what was waited for is there; something newer isn't
		{2 * time.Second, 12, 8, 2 * time.Second},
		{time.Second, 12, 12, 0},
		{time.Second, 13, 12, 0},
	} {
		at = at.Add(step.after)
		if got := l.of(reconcile.Stats{DesiredRev: step.desired, AppliedRev: step.applied}, at); got != step.want {
			t.Errorf("at %s with %d of %d: %s, want %s", at, step.applied, step.desired, got, step.want)
		}
	}
}
