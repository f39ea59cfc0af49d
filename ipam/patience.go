package ipam

import (
	"math/rand/v2"
	"time"

	"github.com/ironvip/ironvip/vip"
)

const (
	// A host whose turn it isn't waits for so long, plus a random part of the jitter,
	// before it acts itself: from when it was asked, and again from each time that the
	// elected host brings something of what it waits for.
	turnPatience = 2 * time.Second
	turnJitter   = time.Second
	// longestPatience is how long the patience with one service grows at most by what
	// the elected host brings to others: it may not know of that one.
	longestPatience = 30 * time.Second
	// firstTries is for how many services a host acts first when it has lost patience.
	// Where the store answers within quickTry, the elected host is the one that is slow, and the
	// next ones are triesGrowth times as many; else all hosts are patient again: they
	// would only make it slower.
	firstTries  = 8
	triesGrowth = 8
	quickTry    = time.Second
	// slowMemory is how long it is remembered that a store is slow. For as long there is
	// no bound to the patience with an elected host that brings something.
	slowMemory = 5 * time.Minute
)

func patience() time.Duration { return turnPatience + rand.N(turnJitter) }

// restraint is how a host whose turn it isn't keeps from doing all that it has waited
// for in vain at once. The zero restraint is ready to use. It is guarded by
// the allocator's write lock.
type restraint struct {
	brought  time.Time     // when the elected host last brought something of what is waited for
	tries    int           // for how many services to act at a time; 0 is firstTries
	left     int           // for how many until next
	next     time.Time     // when some more may be tried
	slow     time.Duration // how long to be patient at least, until slowTill, for the last try has shown a slow store
	slowTill time.Time
}

// until returns when a host may act that has waited for a service since first; not
// after now, if that is now.
func (r *restraint) until(first, now time.Time) time.Time {
	patience, limit := r.patience(now), first.Add(longestPatience)
	if now.Before(r.slowTill) {
		limit = r.slowTill
	}
	if at := r.brought.Add(patience); at.After(now) && now.Before(limit) {
		return at
	}
	if !r.next.After(now) {
		r.left, r.next = max(r.tries, firstTries), now.Add(patience)
	}
	if r.left == 0 {
		return r.next
	}
	r.left--
	return now
}

// patience is for how long to wait for the elected host, with a store that is as
// slow as it is known to be.
func (r *restraint) patience(now time.Time) time.Duration {
	if now.Before(r.slowTill) {
		return max(patience(), r.slow)
	}
	return patience()
}

// progress notes that the elected host brought something.
func (r *restraint) progress(now time.Time) { r.brought, r.tries, r.left = now, 0, 0 }

// tried notes how long a try took, and whether anything came of it.
func (r *restraint) tried(now time.Time, took time.Duration, err error) {
	if err == nil && took < quickTry {
		r.tries, r.next, r.slowTill = triesGrowth*max(r.tries, firstTries), now, time.Time{}
		return
	}
	r.slow, r.slowTill = min(2*took, longestPatience), now.Add(slowMemory)
	r.tries, r.left, r.next = 0, 0, now.Add(r.patience(now))
}

// overdue pops the services for which this host has waited long enough, and notes
// the earliest of the times that are to come.
func (a *Allocator) overdue(g *agenda, now time.Time, next *time.Time) (act []vip.ServiceKey) {
	mine := a.mine()
	for _, k := range due(g, now, next) {
		until := now
		if !mine {
			until = a.restraint.until(g.first[k], now)
		}
		if !until.After(now) {
			act = append(act, k)
			continue
		}
		g.putOff(k, until)
		if next.IsZero() || until.Before(*next) {
			*next = until
		}
	}
	return act
}

// tried notes how a commit went that this host made because it lost patience, and
// lets those that were held back meanwhile have their turn if it went well.
func (a *Allocator) tried(began time.Time, err error) {
	now, held := a.now(), a.restraint.next
	a.restraint.tried(now, now.Sub(began), err)
	if !a.restraint.next.After(now) {
		a.later.hurry(now, held)
		a.leaving.hurry(now, held)
	}
	a.nudge()
}

// broughtBy notes that a host gave or took something of a service: if it is the
// elected one, and this one waits for that, it is at work.
func (a *Allocator) broughtBy(node string, k vip.ServiceKey) {
	if a.turn != nil && node != a.node && node == a.turn.Elected() && (a.later.has(k) || a.leaving.has(k)) {
		a.restraint.progress(a.now())
	}
}
