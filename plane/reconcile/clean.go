package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/event"
)

const (
	cleanPause    = 9 // the pause after a Clean, in units of the time that it took
	maxCleanPause = time.Second
	lastClean     = 2 * time.Second // bounds the Clean at the end of Run
)

// cleaning calls Clean of a Target: immediately after a change, and then for at most about a tenth of the time. A burst of
// changes shares a call.
type cleaning struct {
	target interface {
		Unclean() bool
		Clean(context.Context) error
	}
	timer  *time.Timer
	armed  bool // the timer runs
	next   time.Time
	faults int // failures in a row
}

// arm starts the timer if there is something to clean.
func (c *cleaning) arm() {
	if !c.armed && c.target.Unclean() {
		c.armed = true
		c.timer.Reset(max(0, time.Until(c.next)))
	}
}

// clean is called when the timer fires. A failure is retried with a backoff. The first one is an event.
func (r *Reconciler[K, V]) clean(ctx context.Context) {
	c, start := &r.cleaning, time.Now()
	c.armed = false
	if !c.target.Unclean() { // no longer, or not while the target doesn't know what it has
		return
	}
	err := c.target.Clean(ctx)
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	pause := min(cleanPause*now.Sub(start), maxCleanPause)
	said := ""
	switch {
	case err != nil:
		if c.faults++; c.faults == 1 {
			r.Events.Add(event.Event{Kind: eventError, Message: fmt.Sprintf("clean the dataplane: %v", err)})
		}
		pause, said = max(pause, r.backoff(c.faults)), err.Error()
		level := slog.LevelError
		if c.faults > 1 {
			level = slog.LevelDebug
		}
		r.Log.Log(ctx, level, "clean the dataplane", "err", err, "try", c.faults, "retry_in", pause)
	case c.faults > 0:
		c.faults = 0
		r.Log.Info("dataplane is clean again")
		r.Events.Add(event.Event{Kind: eventRecovered, Message: "the dataplane is clean again"})
	}
	c.next = now.Add(pause)
	r.note(func(s *Stats) { s.Unclean, s.CleanError = c.target.Unclean(), said })
}

// cleanLast leaves nothing unclean when Run ends.
func (r *Reconciler[K, V]) cleanLast(ctx context.Context) {
	if !r.Target.Unclean() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastClean)
	defer cancel()
	if err := r.Target.Clean(ctx); err != nil {
		r.Log.Error("clean the dataplane at the end", "err", err)
	}
}
