package allocator

import (
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/delayqueue"
	"github.com/ironvip/ironvip/vip"
)

// Leadership reports which of the hosts that share a store is the leader. The leader allocates
// what services lack and releases what deleted services held; the other hosts step in when it
// doesn't. This prevents a stampede and nothing else: the conditions of every Op hold without it.
type Leadership interface {
	// Mine reports whether this host is the leader.
	Mine() bool
	// Elected returns the name of the leader, or "" if there is none.
	Elected() string
	// Changed returns a channel that is closed when either changes. Every change replaces it.
	Changed() <-chan struct{}
}

// leads reports whether this host is the leader.
func (a *Allocator) leads() bool { return a.leadership == nil || a.leadership.Mine() }

// leaderActed restarts the grace period if the leader wrote something that this host waits for.
func (a *Allocator) leaderActed(node string, k vip.ServiceKey) {
	if a.leadership != nil && node != a.state.Node && node == a.leadership.Elected() && (a.waiting.has(k) || a.releases.has(k)) {
		a.grace.leaderActed(a.now())
	}
}

// waitingProblem says that a service waits for the leader.
func (a *Allocator) waitingProblem() vip.Problem {
	message := "waiting for the leader: no node is elected to allocate the fleet's addresses"
	if leader := a.leadership.Elected(); leader != "" {
		message = fmt.Sprintf("waiting for the leader: node %s allocates the fleet's addresses", leader)
	}
	return vip.Problem{Code: vip.CodeWaiting, Message: message,
		Hint: fmt.Sprintf("wait: this node allocates them itself after %s", stepInAfter+stepInJitter)}
}

const (
	// stepInAfter is less than what the leader's session lasts after a crash, 20 to 40 s: nothing
	// depends on there being one leader.
	stepInAfter = 15 * time.Second
	// stepInJitter spreads the hosts that step in. Each draws its part once.
	stepInJitter = 5 * time.Second
	// longestGrace bounds the wait for a leader that is busy with other services: it may not
	// know this one.
	longestGrace = time.Minute
	// firstBatch is for how many services a host steps in at first. Each batch doubles, one
	// every batchPause, while the store takes them within slowCommit.
	firstBatch = 8
	batchPause = time.Second
	slowCommit = time.Second
)

// gracePeriod decides when a host that isn't the leader acts itself: the leader has done nothing
// that this host waits for during stepInAfter plus jitter. The caller holds Allocator.write.
type gracePeriod struct {
	length   time.Duration // stepInAfter and this host's jitter
	progress time.Time     // when the leader last did something that this host waits for
	batch    int           // how many services the next batch has; 0 is firstBatch
	left     int           // how many services may still join the current batch
	next     time.Time     // when the next batch may begin
}

// end returns when this host may act for a service that has waited since then; now or earlier
// if it may act now, as a part of the current batch.
func (g *gracePeriod) end(since, now time.Time) time.Time {
	at := g.progress.Add(g.length)
	if limit := since.Add(longestGrace); limit.Before(at) {
		at = limit
	}
	if at.After(now) {
		return at
	}
	if !g.next.After(now) {
		g.left, g.next = max(g.batch, firstBatch), now.Add(batchPause)
	}
	if g.left == 0 {
		return g.next
	}
	g.left--
	return now
}

// leaderActed restarts the grace period.
func (g *gracePeriod) leaderActed(now time.Time) { g.progress, g.batch, g.left = now, 0, 0 }

// steppedIn notes how a commit went that this host made in place of the leader. A store that is
// slow or refuses is left to the leader for two more grace periods: more writers make it slower.
func (g *gracePeriod) steppedIn(began, now time.Time, err error) {
	if err == nil && now.Sub(began) < slowCommit {
		g.batch = 2 * max(g.batch, firstBatch)
		return
	}
	g.batch, g.left, g.next = 0, 0, now.Add(2*g.length)
}

// deferred are services that wait for the leader, or for a deadline. The caller holds
// Allocator.write.
type deferred struct {
	services map[vip.ServiceKey]*deferral
	queue    delayqueue.Queue[vip.ServiceKey]
}

type deferral struct {
	since    time.Time
	anyHost  bool          // the deadline alone counts, whoever is the leader
	due      bool          // this host acts now
	cooldown time.Duration // of a release
}

func newDeferred() deferred { return deferred{services: make(map[vip.ServiceKey]*deferral)} }

// add has a service wait until the deadline, unless it waits already.
func (d *deferred) add(k vip.ServiceKey, at time.Time, w deferral) {
	if d.services[k] == nil {
		d.services[k] = &w
		d.queue.Set(k, at)
	}
}

// again has a service that was due wait again.
func (d *deferred) again(k vip.ServiceKey, at time.Time) {
	d.services[k].due = false
	d.queue.Set(k, at)
}

func (d *deferred) remove(k vip.ServiceKey) {
	delete(d.services, k)
	d.queue.Drop(k)
}

func (d *deferred) has(k vip.ServiceKey) bool { return d.services[k] != nil }

// isDue reports whether this host acts for a service in place of the leader.
func (d *deferred) isDue(k vip.ServiceKey) bool { return d.has(k) && d.services[k].due }

// takeDue returns the services for which this host acts now, and the next deadline.
func (d *deferred) takeDue(g *gracePeriod, leader bool, now time.Time) (due []vip.ServiceKey, next time.Time) {
	if leader {
		for k := range d.queue.All() {
			if !d.services[k].anyHost {
				d.queue.Set(k, now)
			}
		}
	}
	for k := range d.queue.Due(now) {
		w := d.services[k]
		if !leader && !w.anyHost {
			if at := g.end(w.since, now); at.After(now) {
				d.queue.Set(k, at)
				continue
			}
		}
		d.queue.Drop(k)
		w.due = true
		due = append(due, k)
	}
	_, next, _ = d.queue.First()
	return due, next
}

// A host that finds its changes undone leaves the service alone, each time for twice as long,
// between these bounds.
const (
	shortestFreeze = 2 * time.Second
	longestFreeze  = 10 * time.Minute
)

// undoBackoff is about a service with leases that this host changes and other hosts change back. Hosts
// with different definitions of one service would go on like that forever.
type undoBackoff struct {
	times int
	until time.Time // when this host may change the service's leases again
}

// undone has the services of this host's releases and of changes that were undone.
// The caller holds Allocator.write.
type undone map[vip.ServiceKey]undoBackoff

// released notes that this host released what a service had besides what it has now.
func (u undone) released(k vip.ServiceKey) {
	if _, there := u[k]; !there {
		u[k] = undoBackoff{}
	}
}

func (u undone) wasReleased(k vip.ServiceKey) bool {
	_, there := u[k]
	return there
}

// again notes that another host undid this one's change of what k holds.
func (u undone) again(k vip.ServiceKey, now time.Time) {
	b := u[k]
	if now.Sub(b.until) > longestFreeze {
		b.times = 0
	}
	b.until = now.Add(min(shortestFreeze<<min(b.times, 16), longestFreeze))
	b.times++
	u[k] = b
}

// frozenUntil returns until when a service keeps its leases as they are; zero if it need not.
func (u undone) frozenUntil(k vip.ServiceKey, now time.Time) time.Time {
	if b := u[k]; b.until.After(now) {
		return b.until
	}
	return time.Time{}
}
