package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/event"
)

// Cleaner is the optional interface of a Target with changes that leave outdated state, such as connections with removed
// backends, where ending it costs a search of more than what changed. The Reconciler calls it outside of changes. The
// goroutine of Apply calls its methods.
type Cleaner interface {
	// Unclean reports whether Clean has something to do. It costs O(1).
	Unclean() bool
	// Clean ends what changes have made outdated since the last Clean. After an error, nothing is forgotten.
	Clean(ctx context.Context) error
	// Suspect makes the next Clean search for what an earlier process may have left. It is called once, when everything
	// desired has been tried.
	Suspect()
}

const (
	cleanPause    = 9 // the pause after a Clean, in units of the time that it took
	maxCleanPause = time.Second
	lastClean     = 2 * time.Second // bounds the Clean at the end of Run
)

// cleaning calls a Cleaner: immediately after a change, and then for at most about a tenth of the time. A burst of changes
// shares a Clean.
type cleaning struct {
	target Cleaner // nil: none
	timer  *time.Timer
	armed  bool // the timer runs
	next   time.Time
	faults int // failures in a row
}

func newCleaning(target any) cleaning {
	c := cleaning{timer: stoppedTimer()}
	c.target, _ = target.(Cleaner)
	return c
}

// arm starts the timer if there is something to clean.
func (c *cleaning) arm() {
	if !c.armed && c.unclean() {
		c.armed = true
		c.timer.Reset(max(0, time.Until(c.next)))
	}
}

func (c *cleaning) unclean() bool { return c.target != nil && c.target.Unclean() }

// suspect is called when everything desired has been tried.
func (c *cleaning) suspect() {
	if c.target != nil {
		c.target.Suspect()
	}
}

// clean is called when the timer fires. A failure is retried with a backoff. The first one is an event.
func (r *Reconciler[K, V]) clean(ctx context.Context) {
	c, start := &r.cleaning, time.Now()
	c.armed = false
	if !c.unclean() { // no longer, or not while the target doesn't know what it has
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
	if !r.cleaning.unclean() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastClean)
	defer cancel()
	if err := r.cleaning.target.Clean(ctx); err != nil {
		r.Log.Error("clean the dataplane at the end", "err", err)
	}
}
