package proxy

import (
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
)

// Deadlines are met late by up to a grain, so that many of them share a wake-up: those of timeouts, and of connects.
const (
	timeoutGrain = 250 * time.Millisecond
	dialGrain    = 10 * time.Millisecond
)

// deadlines visits its entries at the times that they ask for. A deadline that moves with every byte
// needs no change here: the entry is visited at the old deadline and asks for a later one. There is one timer
// for all entries. Adding, removing and visiting an entry cost O(log(entries)). The methods may be called concurrently.
type deadlines struct {
	now   func() int64 // the time of all visits, in nanoseconds
	grain time.Duration

	mu    sync.Mutex
	queue delayqueue.Queue[expirer]
	timer *time.Timer
	alarm time.Time // what timer is set to; zero: not set
}

// expirer is something with a deadline.
type expirer interface {
	// visit returns whether the deadline has passed, else when to visit again. It is called with
	// the deadlines locked.
	visit(now int64) (next int64, expired bool)
	// expire is called once, after visit has returned true. It must not block.
	expire()
}

// timeOf returns a time in nanoseconds as that of a visit.
func (d *deadlines) timeOf(at int64) time.Time {
	grain := int64(d.grain)
	return time.Unix(0, (at+grain-1)/grain*grain)
}

// add visits e at a time, and from then on.
func (d *deadlines) add(e expirer, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue.Set(e, d.timeOf(at))
	d.arm()
}

// move visits e at another time. It does nothing after remove or expire.
func (d *deadlines) move(e expirer, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.queue.Has(e) {
		d.queue.Set(e, d.timeOf(at))
		d.arm()
	}
}

// remove ends the visits of e. A call of expire may be in progress.
func (d *deadlines) remove(e expirer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue.Drop(e)
}

// close ends all visits.
func (d *deadlines) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.queue = delayqueue.Queue[expirer]{}
}

// arm sets the timer to the first deadline. The caller holds mu.
func (d *deadlines) arm() {
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
func (d *deadlines) turn() {
	d.mu.Lock()
	now := d.now()
	d.alarm = time.Time{}
	var expired []expirer
	for e := range d.queue.Due(time.Unix(0, now)) {
		if again, over := e.visit(now); over {
			d.queue.Drop(e)
			expired = append(expired, e)
		} else {
			d.queue.Set(e, d.timeOf(max(again, now+1)))
		}
	}
	d.arm()
	d.mu.Unlock()
	for _, e := range expired {
		e.expire()
	}
}
