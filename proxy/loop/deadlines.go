package loop

import (
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
)

// Deadlines visits its entries at the times that they ask for. A deadline that moves with every byte
// needs no change here: the entry is visited at the old deadline and asks for a later one. There is one timer
// for all entries. Adding, removing and visiting an entry cost O(log(entries)). The methods may be called concurrently.
type Deadlines struct {
	now   func() int64
	grain time.Duration

	mu    sync.Mutex
	queue delayqueue.Queue[Expirer]
	timer *time.Timer
	alarm time.Time // what timer is set to; zero: not set
}

// NewDeadlines returns deadlines without entries. now returns the time of all visits, in nanoseconds. Deadlines are met
// late by up to a grain, so that many of them share a wake-up.
func NewDeadlines(now func() int64, grain time.Duration) *Deadlines {
	return &Deadlines{now: now, grain: grain}
}

// Expirer is something with a deadline.
type Expirer interface {
	// Visit returns whether the deadline has passed, else when to visit again. It is called with
	// the deadlines locked.
	Visit(now int64) (next int64, expired bool)
	// Expire is called once, after visit has returned true. It must not block.
	Expire()
}

// timeOf returns a time in nanoseconds as that of a visit.
func (d *Deadlines) timeOf(at int64) time.Time {
	grain := int64(d.grain)
	return time.Unix(0, (at+grain-1)/grain*grain)
}

// Add visits e at a time, and from then on.
func (d *Deadlines) Add(e Expirer, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue.Set(e, d.timeOf(at))
	d.arm()
}

// Move visits e at another time. It does nothing after remove or expire.
func (d *Deadlines) Move(e Expirer, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue.Has(e) {
		d.queue.Set(e, d.timeOf(at))
		d.arm()
	}
}

// Remove ends the visits of e. A call of expire may be in progress.
func (d *Deadlines) Remove(e Expirer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue.Drop(e)
}

// Close ends all visits.
func (d *Deadlines) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.queue = delayqueue.Queue[Expirer]{}
}

// arm sets the timer to the first deadline. The caller holds mu.
func (d *Deadlines) arm() {
	_, first, ok := d.queue.First()
	if !ok || !d.alarm.IsZero() && !first.Before(d.alarm) {
		return
	}
	d.alarm = first
	wait := time.Duration(first.UnixNano() - d.now())
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.turn)
	} else {
		d.timer.Reset(wait)
	}
}

// turn visits the entries whose time has come.
func (d *Deadlines) turn() {
	d.mu.Lock()
	now := d.now()
	d.alarm = time.Time{}
	var expired []Expirer
	for e := range d.queue.Due(time.Unix(0, now)) {
		if again, over := e.Visit(now); over {
			d.queue.Drop(e)
			expired = append(expired, e)
		} else {
			d.queue.Set(e, d.timeOf(max(again, now+1)))
		}
	}
	d.arm()
	d.mu.Unlock()
	for _, e := range expired {
		e.Expire()
	}
}
