package sources

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// DefaultShrinkGuard is how long a shrink guard holds back what it doubts.
const DefaultShrinkGuard = 30 * time.Second

// Guarded is a Source that may be told nonsense: a catalog that is empty after
// a restore, or after a token has lost its rights. An update of it that would
// remove more than half of its services, or more than half of a service's
// backends, is held back until it has stood for a while, or an operator asks
// for a resync.
type Guarded interface {
	Source
	// ShrinkGuard returns for how long; 0 is not at all.
	ShrinkGuard() time.Duration
}

// fewLosses is what goes any day: fewer are held back only where nothing would
// be left. One of two services that is taken down is no reason for doubt.
const fewLosses = 3

// guard holds back what one source would remove. It counts the losses of a
// period as long as its patience, so that what vanishes in steps is noticed
// like what vanishes at once. It is pure logic: times are given to it, and
// whoever owns it locks. A change costs O(change), and O(held back) for one
// that confirms.
//
// A service that is held back stays as it is. Of backends only those count, and
// stay, that take connections now: one that was drained before it vanished is
// on its way out as it should be. Backends that come make up for others that
// go: a service that moves is not shrinking.
type guard struct {
	patience time.Duration
	services map[vip.ServiceKey]time.Time // those held, and until when
	backends map[vip.ServiceKey]*shrunk
	lost     losses
	lostOf   map[vip.ServiceKey]losses // backends
	// prior is how many services this host had of the source before it started, and
	// first until when the source's first list is doubted; zero for no doubt.
	prior   int
	first   time.Time
	changed bool // what is held, since whoever owns it last looked
}

// shrunk is a service of which backends are held.
type shrunk struct {
	said  vip.Service // what the source says
	gone  []vip.Backend
	until time.Time
}

func newGuard(patience time.Duration) *guard {
	return &guard{patience: patience, services: map[vip.ServiceKey]time.Time{}, backends: map[vip.ServiceKey]*shrunk{}, lostOf: map[vip.ServiceKey]losses{}}
}

// losses counts what was let go in one period.
type losses struct {
	since  time.Time
	before int // how many there were when it began
	count  int
}

// at returns the losses of the period that now is in; many are there.
func (l losses) at(now time.Time, period time.Duration, many int) losses {
	if l.count == 0 || now.Sub(l.since) >= period {
		return losses{since: now, before: many}
	}
	l.before = max(l.before, many+l.count)
	return l
}

// tooMany reports whether n more are more than should go in one period. All
// says that nothing would be left.
func (l losses) tooMany(n int, all bool) bool {
	total := l.count + n
	return 2*total > l.before && (total >= fewLosses || all)
}

// put returns what to put in force of what the source says, given the backends
// in force.
func (g *guard) put(now time.Time, said vip.Service, inForce []vip.Backend) vip.Service {
	if _, back := g.services[said.Key]; back {
		delete(g.services, said.Key)
		g.changed = true
	}
	held := g.backends[said.Key]
	gone, came, before := replaced(inForce, said.Backends)
	if held == nil {
		n := len(gone) - came
		if n <= 0 {
			return said
		}
		lost := g.lostOf[said.Key].at(now, g.patience, before)
		if !lost.tooMany(n, len(said.Backends) == 0) {
			lost.count += n
			g.lostOf[said.Key] = lost
			return said
		}
		held = &shrunk{until: now.Add(g.patience)}
		g.backends[said.Key] = held
	}
	g.changed = true
	if len(gone) == 0 {
		delete(g.backends, said.Key)
		return said
	}
	held.said, held.gone = said, gone
	said.Backends = slices.Concat(said.Backends, gone)
	slices.SortFunc(said.Backends, func(a, b vip.Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
	})
	return said
}

// replaced compares what takes connections now, before many, with what shall be
// there.
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

// remove returns which of the keys, all in force, to remove now; the others are
// held. Many are in force at all. Full says that the source gave a full list,
// in which they were missing, and didn't name them.
func (g *guard) remove(now time.Time, keys []vip.ServiceKey, many int, full bool) []vip.ServiceKey {
	keys = slices.DeleteFunc(slices.Clone(keys), func(k vip.ServiceKey) bool { _, held := g.services[k]; return held })
	if len(keys) == 0 {
		return nil
	}
	g.lost = g.lost.at(now, g.patience, many)
	doubted := len(g.services) + len(keys)
	if g.lost.tooMany(doubted, full && doubted == many) {
		g.changed = true
		until := now.Add(g.patience)
		for _, key := range keys {
			g.services[key] = until
		}
		return nil
	}
	g.lost.count += len(keys)
	for _, key := range keys {
		if g.backends[key] != nil {
			g.changed = true
		}
		g.forget(key)
	}
	return keys
}

// doubtFirst reports whether the source's first list, of many services, is much
// shorter than what this host had of it before it started.
func (g *guard) doubtFirst(now time.Time, many int) bool {
	if !(losses{before: g.prior}).tooMany(g.prior-many, many == 0) {
		return false
	}
	if g.first.IsZero() {
		g.first = now.Add(g.patience)
	}
	return true
}

// forget drops what is known of a service that goes.
func (g *guard) forget(key vip.ServiceKey) {
	delete(g.services, key)
	delete(g.backends, key)
	delete(g.lostOf, key)
}

// confirm lets go what has been held until now, or all of it.
func (g *guard) confirm(now time.Time, all bool) (remove []vip.ServiceKey, put []vip.Service) {
	for key, until := range g.services {
		if all || !until.After(now) {
			remove = append(remove, key)
			g.forget(key)
		}
	}
	for key, held := range g.backends {
		if all || !held.until.After(now) {
			put = append(put, held.said)
			delete(g.backends, key)
			delete(g.lostOf, key)
		}
	}
	if len(remove) > 0 {
		g.lost = losses{}
	}
	return remove, put
}

// next returns when something is confirmed next.
func (g *guard) next() (at time.Time, held bool) {
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

// problems says what is held back. Many services are in force.
func (g *guard) problems(source string, many int) []vip.Problem {
	hint := fmt.Sprintf("this ends by itself when they are back; to let them go at once: ironvip source resync %s", source)
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
			Message: fmt.Sprintf("%d of %d services vanished at once (%s); they are kept until %s", len(names), many, some(names), clock(last))})
	}
	if !g.first.IsZero() {
		out = append(out, vip.Problem{Code: vip.CodeHeldBack, Hint: hint,
			Message: fmt.Sprintf("has %d services, where this host had %d of it before it started; the dataplane stays as it is until %s", many, g.prior, clock(g.first))})
	}
	backends := len(out)
	for key, h := range g.backends {
		ids := make([]string, 0, len(h.gone))
		for _, b := range h.gone {
			ids = append(ids, b.ID())
		}
		out = append(out, vip.Problem{Code: vip.CodeHeldBack, Place: h.said.Origin, Service: key.String(), Field: "backends", Hint: hint,
			Message: fmt.Sprintf("%d backends vanished at once (%s), %d are left; they are kept until %s", len(ids), some(ids), len(h.said.Backends), clock(h.until))})
	}
	slices.SortFunc(out[backends:], func(a, b vip.Problem) int { return cmp.Compare(a.Service, b.Service) })
	return out
}

// some names the first few of many.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }
