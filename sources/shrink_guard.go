package sources

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// DefaultShrinkGuard is how long a shrink guard holds back an update.
const DefaultShrinkGuard = 30 * time.Second

// fewLosses is the smallest number of losses that is held back. Fewer losses are held back only if
// nothing would be left.
const fewLosses = 3

// shrinkGuard holds back large removals by one source. It counts the losses of a period as long as
// its delay. Therefore services that disappear in steps count like services that disappear at once.
// It is pure logic: the caller passes the time and locks. A change costs O(change). A confirmation
// costs O(held back).
//
// A service that is held back stays unchanged. Only backends that take connections now are counted
// and held: a backend that was drained before it disappeared is removed. New backends offset
// removed ones, so a service that moves does not shrink.
type shrinkGuard struct {
	delay    time.Duration
	services map[vip.ServiceKey]time.Time // held services and their deadlines
	backends map[vip.ServiceKey]*shrunk
	lost     losses
	lostOf   map[vip.ServiceKey]losses // lost backends by service
	prior    int                       // the number of the source's services that this host had before the start
	first    time.Time                 // deadline of the doubt about the first list; zero: no doubt
	changed  bool                      // the held services or backends changed since the owner's last check
	event    func(kind, message string)
}

// shrunk is a service with backends that are held back.
type shrunk struct {
	wanted vip.Service // as the source defines it
	gone   []vip.Backend
	until  time.Time
}

// newShrinkGuard returns a guard that holds nothing. Event logs an event.
func newShrinkGuard(delay time.Duration, event func(kind, message string)) *shrinkGuard {
	return &shrinkGuard{delay: delay, event: event, services: map[vip.ServiceKey]time.Time{}, backends: map[vip.ServiceKey]*shrunk{}, lostOf: map[vip.ServiceKey]losses{}}
}

func (g *shrinkGuard) held(what string) {
	g.event("shrink_held", fmt.Sprintf("%s at once; they are kept for %s", what, g.delay))
}

// holds reports whether anything is held back.
func (g *shrinkGuard) holds() bool { return len(g.services)+len(g.backends) > 0 || !g.first.IsZero() }

// losses counts what was removed in one period.
type losses struct {
	since  time.Time
	before int // the number at the beginning of the period
	count  int
}

// at returns the losses of the current period. Many is the current number.
func (l losses) at(now time.Time, period time.Duration, many int) losses {
	if l.count == 0 || now.Sub(l.since) >= period {
		return losses{since: now, before: many}
	}
	l.before = max(l.before, many+l.count)
	return l
}

// tooMany reports whether n more losses are too many for one period. All means that nothing would
// be left.
func (l losses) tooMany(n int, all bool) bool {
	total := l.count + n
	return 2*total > l.before && (total >= fewLosses || all)
}

// put returns the claim to write for the service that the source wants, given its current claim.
func (g *shrinkGuard) put(now time.Time, wanted, present vip.Service) vip.Service {
	if _, back := g.services[wanted.Key]; back {
		delete(g.services, wanted.Key)
		g.changed = true
		if len(g.services) == 0 {
			g.event("shrink_withdrawn", "the services that had disappeared are back, or removed one by one")
		}
	}
	held := g.backends[wanted.Key]
	gone, came, before := replaced(present.Backends, wanted.Backends)
	if held == nil {
		n := len(gone) - came
		if n <= 0 {
			return wanted
		}
		lost := g.lostOf[wanted.Key].at(now, g.delay, before)
		if !lost.tooMany(n, len(wanted.Backends) == 0) {
			lost.count += n
			g.lostOf[wanted.Key] = lost
			return wanted
		}
		held = &shrunk{until: now.Add(g.delay)}
		if len(g.backends) == 0 { // with many services the event names only the first; the status has all
			g.held("most backends of a service disappeared")
		}
		g.backends[wanted.Key] = held
	}
	g.changed = true
	if len(gone) == 0 {
		g.dropBackends(wanted.Key)
		return wanted
	}
	held.wanted, held.gone = wanted, gone
	wanted.Groups = groupsOf(&wanted, &present, gone)
	wanted.Backends = slices.Concat(wanted.Backends, gone)
	slices.SortFunc(wanted.Backends, func(a, b vip.Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
	return wanted
}

// groupsOf returns the groups of a service that keeps backends of its current claim. These get a group if the service has
// groups, and their own if that is possible.
func groupsOf(wanted, present *vip.Service, kept []vip.Backend) []vip.Group {
	out := vip.Service{Groups: slices.Clone(wanted.Groups)}
	for i := range kept {
		b := &kept[i]
		switch was := present.GroupOf(b); {
		case len(out.Groups) == 0:
			b.Group = ""
		case out.GroupOf(b) != nil:
		case was != nil && len(out.Groups) < vip.MaxGroups:
			out.Groups = append(out.Groups, *was)
		default:
			b.Group = out.Groups[0].Name
		}
	}
	return out.Groups
}

// replaced compares the backends that take connections now with those that the source wants. Before
// is the number of the former.
func replaced(now, then []vip.Backend) (gone []vip.Backend, came, before int) {
	key := func(b vip.Backend) vip.BackendKey { return b.Key(vip.ServiceKey{}) }
	stays := make(map[vip.BackendKey]struct{}, len(then))
	for _, b := range then {
		stays[key(b)] = struct{}{}
	}
	for _, b := range now {
		if b.State == vip.Ready && b.Weight > 0 {
			before++
			if _, there := stays[key(b)]; !there {
				gone = append(gone, b)
			}
		}
		delete(stays, key(b))
	}
	for _, b := range then {
		if _, fresh := stays[key(b)]; fresh && b.State == vip.Ready && b.Weight > 0 {
			came++
		}
	}
	return gone, came, before
}

// remove returns the keys to remove now. The other keys are held back. Many is the number of all
// claims. Full means that the keys were missing from a full list, not named by the source.
func (g *shrinkGuard) remove(now time.Time, keys []vip.ServiceKey, many int, full bool) []vip.ServiceKey {
	keys = slices.DeleteFunc(slices.Clone(keys), func(k vip.ServiceKey) bool { _, held := g.services[k]; return held })
	if len(keys) == 0 {
		return nil
	}
	g.lost = g.lost.at(now, g.delay, many)
	doubted := len(g.services) + len(keys)
	if g.lost.tooMany(doubted, full && doubted == many) {
		g.changed = true
		until := now.Add(g.delay)
		for _, key := range keys {
			g.services[key] = until
		}
		g.held(fmt.Sprintf("%d of %d services disappeared", len(g.services), many))
		return nil
	}
	g.lost.count += len(keys)
	for _, key := range keys {
		if g.backends[key] != nil {
			g.changed = true
			g.dropBackends(key)
		}
		g.forget(key)
	}
	return keys
}

// doubtFirst reports whether the source's first list, with many services, is much shorter than the
// list that this host had before the start.
func (g *shrinkGuard) doubtFirst(now time.Time, many int) bool {
	if !(losses{before: g.prior}).tooMany(g.prior-many, many == 0) {
		return false
	}
	if g.first.IsZero() {
		g.first = now.Add(g.delay)
	}
	g.changed = true
	return true
}

// acceptFirst ends the doubt about the first list.
func (g *shrinkGuard) acceptFirst() { g.first, g.changed = time.Time{}, true }

// dropBackends stops holding backends of a service.
func (g *shrinkGuard) dropBackends(key vip.ServiceKey) {
	delete(g.backends, key)
	if len(g.backends) == 0 {
		g.event("shrink_withdrawn", "the backends that had disappeared are back, or removed with their service")
	}
}

// forget drops all state of a service that is removed.
func (g *shrinkGuard) forget(key vip.ServiceKey) {
	delete(g.services, key)
	delete(g.backends, key)
	delete(g.lostOf, key)
}

// confirm returns the removals and the claims that are due. If all is set, it returns everything
// that is held back.
func (g *shrinkGuard) confirm(now time.Time, all bool) (remove []vip.ServiceKey, put []vip.Service) {
	for key, until := range g.services {
		if all || !until.After(now) {
			remove = append(remove, key)
			g.forget(key)
		}
	}
	for key, held := range g.backends {
		if all || !held.until.After(now) {
			put = append(put, held.wanted)
			delete(g.backends, key)
			delete(g.lostOf, key)
		}
	}
	if len(remove) > 0 {
		g.lost = losses{}
	}
	return remove, put
}

// next returns when the next confirmation is due.
func (g *shrinkGuard) next() (at time.Time, held bool) {
	earlier := func(until time.Time) {
		if !held || until.Before(at) {
			at, held = until, true
		}
	}
	for _, until := range g.services {
		earlier(until)
	}
	for _, h := range g.backends {
		earlier(h.until)
	}
	if !g.first.IsZero() {
		earlier(g.first)
	}
	return at, held
}

// problems describes what is held back. Many is the number of all claims.
func (g *shrinkGuard) problems(source string, many int) []vip.Problem {
	hint := fmt.Sprintf("wait until they are back; or remove them at once: ironvip source resync %s", source)
	var out []vip.Problem
	if len(g.services) > 0 {
		names, last := make([]string, 0, len(g.services)), time.Time{}
		for key, until := range g.services {
			names = append(names, key.String())
			if until.After(last) {
				last = until
			}
		}
		slices.Sort(names)
		out = append(out, vip.Problem{Code: vip.CodeHeldBack, Hint: hint,
			Message: fmt.Sprintf("%d of %d services disappeared at once (%s); kept until %s", len(names), many, text.First(fewNames, names, ", "), clock(last))})
	}
	if !g.first.IsZero() {
		out = append(out, vip.Problem{Code: vip.CodeHeldBack, Hint: hint,
			Message: fmt.Sprintf("has %d services, this host had %d of it before it started; the dataplane stays unchanged until %s", many, g.prior, clock(g.first))})
	}
	backends := len(out)
	for key, h := range g.backends {
		ids := make([]string, 0, len(h.gone))
		for _, b := range h.gone {
			ids = append(ids, b.ID())
		}
		out = append(out, vip.Problem{Code: vip.CodeHeldBack, Place: h.wanted.Origin, Service: key.String(), Field: "backends", Hint: hint,
			Message: fmt.Sprintf("%d backends disappeared at once (%s), %d are left; kept until %s", len(ids), text.First(fewNames, ids, ", "), len(h.wanted.Backends), clock(h.until))})
	}
	slices.SortFunc(out[backends:], func(a, b vip.Problem) int { return cmp.Compare(a.Service, b.Service) })
	return out
}

// fewNames is the maximum number of names in a message.
const fewNames = 5

func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }
