package sources

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// names is what the sources say, and who of them has each name. It is the one
// place where conflicts are decided: who has a name keeps it; a name that
// nobody has yet goes to the source that had it before this run of the agent,
// for as long as that one may still say so, and else to the first who asks.
// Claims that lose are held aside and take over, in their order, when the
// winner goes. The cost of a change is O(1), O(claims held aside) for one that
// changes who holds what aside, and O(contests) for a source's first sync.
type names struct {
	options Options

	mu       sync.Mutex
	claims   map[*supervised]*claims
	holders  map[vip.ServiceKey]*supervised
	contests map[vip.ServiceKey][]*supervised // the claims held aside, oldest first
	untold   map[*claims]struct{}             // those whose status lists other problems than they have
	holding  chan struct{}                    // has a word in it when a guard has begun to hold something
}

// relogStale is how often another reason for being stale is logged; the status
// has the newest at once.
const relogStale = time.Minute

// claims is what one source says.
type claims struct {
	rows     map[vip.ServiceKey]*vip.Service // those in force are the table's own, and nobody changes any
	aside    map[vip.ServiceKey]struct{}
	problems []vip.Problem // as the source told them
	guard    *guard        // nil for a source that is believed whatever it says
	status   Status        // Problems is problems, those of aside and those of guard
	waited   bool          // synced, or too late: nobody waits for it any more
	failing  bool
	logged   time.Time // when a reason for being stale was logged last
	run      *sink     // the present run's; others are deaf
}

func newNames(o Options) *names {
	return &names{options: o, claims: map[*supervised]*claims{}, holders: map[vip.ServiceKey]*supervised{},
		contests: map[vip.ServiceKey][]*supervised{}, untold: map[*claims]struct{}{}, holding: make(chan struct{}, 1)}
}

func (n *names) add(src *supervised) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &claims{rows: map[vip.ServiceKey]*vip.Service{}, aside: map[vip.ServiceKey]struct{}{}, status: Status{Name: src.name, Type: src.typ}}
	if g, asks := src.source.(Guarded); asks && g.ShrinkGuard() > 0 {
		c.guard = newGuard(g.ShrinkGuard())
	}
	n.claims[src] = c
	n.publish(c)
}

// begin returns the sink of a new run of the source.
func (n *names) begin(src *supervised) *sink {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[src]
	c.run = &sink{names: n, src: src}
	return c.run
}

// failed marks the source stale after a run that ended by itself.
func (n *names) failed(src *supervised, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[src]
	c.status.Restarts++
	c.status.Stale = err.Error()
	if !c.failing {
		c.failing = true
		n.event("source_failed", src, fmt.Sprintf("%s; its %d services stay as they are", err, len(c.rows)))
	}
	n.publish(c)
}

// syncTimeout stops the waiting for a source that has not synced. A first list
// that is doubted is the guard's business, and ends by itself.
func (n *names) syncTimeout(src *supervised, after time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[src]
	if c.waited || c.doubted() {
		return
	}
	c.waited = true
	what := fmt.Sprintf("has not synced within %s; going on without it", after)
	if c.status.Stale == "" {
		c.status.Stale = what
	}
	n.options.Log.Error("source "+what, "source", src.name, "why", c.status.Stale)
	n.event("source_sync_timeout", src, what)
	n.unlock()
	n.tell(c)
	src.synced()
}

// inTouch ends the source's staleness. The caller holds mu and publishes.
func (n *names) inTouch(src *supervised, c *claims) {
	c.status.Stale = ""
	if c.failing {
		c.failing = false
		n.options.Log.Info("source is in touch again", "source", src.name)
		n.event("source_recovered", src, "is in touch again")
	}
}

// claim puts the row in force, or holds it aside. It returns the row's
// revision, 0 for one held aside.
func (n *names) claim(src *supervised, c *claims, s vip.Service) uint64 {
	s.Source = src.name
	switch holder := n.holders[s.Key]; {
	case holder == src:
		if reflect.DeepEqual(*c.rows[s.Key], s) {
			_, rev, _ := n.options.Services.Get(s.Key)
			return rev
		}
		n.contested(s.Key) // where the holder has it from may have changed
		return n.enforce(c, s)
	case holder != nil && n.options.Shared && n.prior(s.Key) == src:
		c.keep(s)
		return n.handOver(s.Key, holder, src)
	case holder != nil:
		c.keep(s)
		n.setAside(src, c, s.Key, holder)
		return 0
	}
	if prior := n.prior(s.Key); prior != nil && prior != src && !n.claims[prior].waited {
		c.keep(s)
		n.setAside(src, c, s.Key, prior)
		return 0
	}
	return n.promote(src, s)
}

// keep notes what the source says and is not in force.
func (c *claims) keep(s vip.Service) { c.rows[s.Key] = &s }

// enforce puts the row into the table, whose row is then the source's, too. It
// returns the row's revision.
func (n *names) enforce(c *claims, s vip.Service) uint64 {
	row := n.options.Services.Put(s)
	c.rows[s.Key] = &row.Value
	return row.Rev
}

// prior returns the source that had the name before this run of the agent, if
// it is still one of ours.
func (n *names) prior(key vip.ServiceKey) *supervised {
	if n.options.PriorSource == nil {
		return nil
	}
	name, known := n.options.PriorSource(key)
	if !known {
		return nil
	}
	for src := range n.claims {
		if src.name == name {
			return src
		}
	}
	return nil
}

// promote puts the source's row of a name that nobody has in force.
func (n *names) promote(src *supervised, s vip.Service) uint64 {
	n.dropAside(src, s.Key)
	n.holders[s.Key] = src
	n.contested(s.Key)
	return n.enforce(n.claims[src], s)
}

func (n *names) setAside(src *supervised, c *claims, key vip.ServiceKey, winner *supervised) {
	n.untold[c] = struct{}{}
	if _, already := c.aside[key]; already {
		return
	}
	c.aside[key] = struct{}{}
	n.contests[key] = append(n.contests[key], src)
	n.options.Events.Add(event.Event{Kind: "service_name_taken", Service: key.String(), Object: src.name,
		Message: fmt.Sprintf("source %q has a service of this name, which source %q holds; it is held aside", src.name, winner.name)})
}

func (n *names) dropAside(src *supervised, key vip.ServiceKey) {
	c := n.claims[src]
	if _, aside := c.aside[key]; !aside {
		return
	}
	delete(c.aside, key)
	n.untold[c] = struct{}{}
	if rest := slices.DeleteFunc(n.contests[key], func(s *supervised) bool { return s == src }); len(rest) > 0 {
		n.contests[key] = rest
	} else {
		delete(n.contests, key)
	}
}

// release takes the source's claim on a name back.
func (n *names) release(src *supervised, c *claims, key vip.ServiceKey) {
	if _, has := c.rows[key]; !has {
		return
	}
	delete(c.rows, key)
	if n.holders[key] != src {
		n.dropAside(src, key)
		return
	}
	delete(n.holders, key)
	if next := n.contests[key]; len(next) > 0 {
		n.succeed(next[0], key)
		return
	}
	n.options.Services.Delete(key)
}

// succeed puts a claim that was held aside in force.
func (n *names) succeed(src *supervised, key vip.ServiceKey) (rev uint64) {
	rev = n.promote(src, *n.claims[src].rows[key])
	n.options.Events.Add(event.Event{Kind: "service_name_freed", Service: key.String(), Object: src.name,
		Message: fmt.Sprintf("the service of source %q takes over", src.name)})
	return rev
}

// settle hands a name over to the source that its lease names, where that has a
// claim, too: on hosts that share their leases, each may have heard of another
// claim first. A name that was kept for a source is kept for the one that the lease
// names now.
func (n *names) settle(key vip.ServiceKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.contests[key]) == 0 {
		return // as for nearly all, of which there may be thousands at a start
	}
	holder, prior := n.holders[key], n.prior(key)
	if holder == nil {
		if next := n.unkept(key); next != nil {
			n.tell(n.claims[next])
		}
		return
	}
	if prior == nil || prior == holder {
		return
	}
	if _, claims := n.claims[prior].aside[key]; !claims {
		return
	}
	n.handOver(key, holder, prior)
	n.tell(n.claims[prior])
}

// handOver gives a name to another of those that claim it.
func (n *names) handOver(key vip.ServiceKey, from, to *supervised) (rev uint64) {
	rev = n.succeed(to, key)
	n.setAside(from, n.claims[from], key, to)
	return rev
}

// unlock settles the names that were kept for a source which will not come for
// them any more, or not in time. It looks at all that are kept: what was kept for
// this source may be another's by its lease meanwhile.
func (n *names) unlock() {
	for key := range n.contests {
		if n.holders[key] == nil {
			n.unkept(key)
		}
	}
}

// unkept puts a name in force that claims were held aside of for the sake of a
// source, and returns whose claim: of the source that had it before, if that is one
// of them, else of the first, unless there is still somebody to wait for.
func (n *names) unkept(key vip.ServiceKey) *supervised {
	next := n.contests[key][0]
	if prior := n.prior(key); prior != nil {
		if _, claims := n.claims[prior].aside[key]; claims {
			next = prior
		} else if !n.claims[prior].waited {
			return nil
		}
	}
	n.succeed(next, key)
	return next
}

// contested notes that what the losers of a name are told of its holder has
// changed.
func (n *names) contested(key vip.ServiceKey) {
	for _, other := range n.contests[key] {
		n.untold[n.claims[other]] = struct{}{}
	}
}

// tell publishes the source's status, and that of every other whose problems
// have changed with it.
func (n *names) tell(c *claims) {
	n.publish(c)
	for other := range n.untold {
		n.publish(other)
	}
}

// publish writes the source's status.
func (n *names) publish(c *claims) {
	c.status.Services = len(c.rows)
	if _, changed := n.untold[c]; changed {
		delete(n.untold, c)
		if c.status.Problems = c.problems; len(c.aside) > 0 || c.holds() {
			c.status.Problems = slices.Concat(c.problems, n.conflicts(c), c.heldBack())
		}
	}
	n.options.Statuses.Set(c.status)
}

// conflicts describes the claims that are held aside.
func (n *names) conflicts(c *claims) []vip.Problem {
	out := make([]vip.Problem, 0, len(c.aside))
	for key := range c.aside {
		p := vip.Problem{Code: vip.CodeNameTaken, Place: c.rows[key].Origin, Service: key.String(), Field: "name",
			Hint: "rename or remove one of the two; this one takes over when the other goes"}
		if holder := n.holders[key]; holder != nil {
			p.Message = fmt.Sprintf("source %q holds the name", holder.name)
			if origin := n.claims[holder].rows[key].Origin; origin != "" {
				p.Message += ", at " + origin
			}
		} else if prior := n.prior(key); prior != nil {
			p.Message = fmt.Sprintf("source %q held the name before and has not synced yet", prior.name)
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b vip.Problem) int { return cmp.Compare(a.Service, b.Service) })
	return out
}

func (n *names) event(kind string, src *supervised, message string) {
	n.options.Events.Add(event.Event{Kind: kind, Object: src.name, Message: fmt.Sprintf("source %q: %s", src.name, message)})
}
