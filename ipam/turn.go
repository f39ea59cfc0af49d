package ipam

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Turn tells whether this host is the one to give out what services lack. It
// spares hosts that share a store a stampede, and no more than that: the
// conditions of every op hold without it.
type Turn interface {
	// Mine reports whether it is this host's turn.
	Mine() bool
	// Elected returns the name of the host whose turn it is, "" when it is nobody's.
	Elected() string
	// Changed returns a channel that is closed when either changes. A closed one
	// is replaced.
	Changed() <-chan struct{}
}

const (
	// leastCooling is how long anything cools on a store that hosts share: whoever
	// still names the service must be able to claim it back.
	leastCooling = 10 * time.Second
	// returnPatience is how long a service that another host released may still go
	// before this one claims back what it held: the news of its end may be on the way.
	returnPatience = 300 * time.Millisecond
	// A host that finds undone what it did leaves that alone for twice as long each
	// time, between these bounds.
	shortestContest = 2 * time.Second
	longestContest  = 10 * time.Minute
)

func (a *Allocator) mine() bool { return a.turn == nil || a.turn.Mine() }

// defers reports whether the service in hand waits for another host to give it
// the resource. What cools for it, or vanished while it was held, it takes back
// itself: no address is to leave a host for a moment.
func (d *draft) defers(s *vip.Service, r Resource) bool {
	if !d.waits {
		return false
	}
	if l, there := d.lease(r); there && l.State == Cooling && l.Holders[0].Service == s.Key {
		return false
	}
	return !slices.ContainsFunc(d.a.missing[s.Key], func(l Lease) bool { return l.Resource == r })
}

// pend takes back the choice that was made last, and says who is to make it.
func (d *draft) pend(w *answer) vip.Problem {
	if d.moved.cursor != nil {
		*d.moved.cursor = d.moved.was
	}
	w.putOff = true
	return d.a.turnProblem()
}

// turnProblem says that a service waits for another host.
func (a *Allocator) turnProblem() vip.Problem {
	p := vip.Problem{
		Code:    vip.CodeWaiting,
		Message: "no node of the fleet is elected to give out addresses",
		Hint:    "wait: in some seconds this node takes what is free itself",
	}
	if elected := a.turn.Elected(); elected != "" {
		p.Message = fmt.Sprintf("node %s gives out the fleet's addresses and has not answered yet", elected)
	}
	return p
}

// deferDrops takes out of an answer's drops what is to wait.
func (d *draft) deferDrops(w *answer) {
	if d.waits && len(w.drops) > 0 {
		w.drops, w.putOff = nil, true
	}
	if len(w.drops) > 0 && d.contested(w) {
		w.drops = nil
	}
}

// settle remembers what of a durable answer was put off.
func (a *Allocator) settle(w *answer, now time.Time) {
	k := w.service.Key
	if w.stays {
		return // nothing was planned
	}
	if w.putOff {
		a.later.add(k, now.Add(patience()))
		a.nudge()
	} else {
		a.later.remove(k)
		a.mu.Lock()
		delete(a.missing, k)
		a.mu.Unlock()
	}
	if !w.revisit.IsZero() {
		a.revisit.add(k, w.revisit)
		a.nudge()
	}
}

// leaveLater puts off the release of services that hold anything.
func (a *Allocator) leaveLater(gone []Released) {
	now := a.now()
	for _, g := range gone {
		if a.index.owned.Any(g.Service) {
			a.cooldowns[g.Service] = g.Cooldown
			a.leaving.add(g.Service, now.Add(patience()))
		}
	}
	a.nudge()
}

// forget drops what was remembered of services that are gone.
func (a *Allocator) forget(gone []Released) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range gone {
		a.later.remove(g.Service)
		a.revisit.remove(g.Service)
		delete(a.missing, g.Service)
		delete(a.contests, g.Service)
	}
}

// lost returns a lease that the service had when it vanished from the store,
// that fits, and that nobody has now.
func (d *draft) lost(k vip.ServiceKey, fits func(*Lease) bool) *Lease {
	for i := range d.a.missing[k] {
		l := &d.a.missing[k][i]
		if _, taken := d.lease(l.Resource); !taken && !d.a.isBlocked(l.Resource) && fits(l) {
			return l
		}
	}
	return nil
}

// contest is about a service of whose holdings this host ended some, and others
// undo what it makes of them: hosts that were told different things of one service
// would go on like that for ever.
type contest struct {
	tries int
	until time.Time // when this host may try again
}

// contested reports whether to leave alone what the service holds, and notes
// when to look again.
func (d *draft) contested(w *answer) bool {
	c, ok := d.a.contests[w.service.Key]
	if !ok || !c.until.After(d.a.now()) {
		return false
	}
	w.revisit = c.until
	return true
}

// contend notes that another host undid what this one made of what k holds.
func (a *Allocator) contend(k vip.ServiceKey) {
	now := a.now()
	c := a.contests[k]
	if now.Sub(c.until) > longestContest {
		c.tries = 0 // long ago
	}
	c.until = now.Add(min(shortestContest<<min(c.tries, 16), longestContest))
	c.tries++
	a.contests[k] = c
}

// ended notes that this host took from a service what that gave up for another.
func (a *Allocator) ended(k vip.ServiceKey) {
	if _, there := a.contests[k]; !there && a.node != "" {
		a.contests[k] = contest{}
	}
}

// agenda is services with a time each. The zero agenda is empty and ready to
// use. It is guarded by the allocator's write lock.
type agenda struct {
	at    map[vip.ServiceKey]time.Time
	first map[vip.ServiceKey]time.Time // the time that was given first
	queue agendaQueue                  // an entry that at doesn't confirm counts for nothing
}

// add gives k a time, unless it has an earlier one.
func (g *agenda) add(k vip.ServiceKey, at time.Time) {
	if first, there := g.at[k]; there && !first.After(at) {
		return
	}
	if g.at == nil {
		g.at, g.first = make(map[vip.ServiceKey]time.Time), make(map[vip.ServiceKey]time.Time)
	}
	if _, there := g.at[k]; !there {
		g.first[k] = at
	}
	g.at[k] = at
	heap.Push(&g.queue, agendaEntry{k, at})
}

// putOff gives a service that has a time a later one.
func (g *agenda) putOff(k vip.ServiceKey, at time.Time) {
	g.at[k] = at
	heap.Push(&g.queue, agendaEntry{k, at})
}

func (g *agenda) remove(k vip.ServiceKey) {
	delete(g.at, k)
	delete(g.first, k)
}

func (g *agenda) has(k vip.ServiceKey) bool {
	_, there := g.at[k]
	return there
}

// past reports whether k has a time and that has come.
func (g *agenda) past(k vip.ServiceKey, now time.Time) bool {
	at, there := g.at[k]
	return there && !at.After(now)
}

// pop returns the services whose time has come, each once, and the next time.
// They keep their times until they are removed.
func (g *agenda) pop(now time.Time) (due []vip.ServiceKey, next time.Time) {
	for len(g.queue) > 0 {
		e := g.queue[0]
		at, there := g.at[e.service]
		if there && at.Equal(e.at) && at.After(now) {
			return due, at
		}
		heap.Pop(&g.queue)
		if there && at.Equal(e.at) {
			due = append(due, e.service)
		}
	}
	return due, time.Time{}
}

// hurry makes every time up to until come now.
func (g *agenda) hurry(now, until time.Time) {
	for k, at := range g.at {
		if at.After(now) && !at.After(until) {
			g.putOff(k, now)
		}
	}
}

type agendaEntry struct {
	service vip.ServiceKey
	at      time.Time
}

type agendaQueue []agendaEntry

func (q agendaQueue) Len() int           { return len(q) }
func (q agendaQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q agendaQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *agendaQueue) Push(v any)        { *q = append(*q, v.(agendaEntry)) }
func (q *agendaQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
