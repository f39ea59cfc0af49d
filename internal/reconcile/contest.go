package reconcile

import (
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Somebody else who keeps changing what is ours is not fought: each change
// back costs both sides work and tells nobody. A key that is found altered for
// the first times is repaired at once; from then on it is contested, which is
// told once, and repairs wait. Times are counted in resyncs.
const (
	patience  = 3  // drifts of one key that are repaired in the resync that finds them
	maxWait   = 10 // resyncs; the waits before a repair are 2, 4, 8 and then this
	calmAfter = 10 // resyncs in a row that find a key right end its contest
)

// contest is the history of one key that somebody else changed.
type contest struct {
	since  time.Time // of the first drift
	drifts int       // how often it was found altered after it had been right
	what   string    // how it was found the last time
	wait   int       // resyncs until the next repair
	calm   int       // resyncs in a row that found it right
	seen   bool      // found altered, or failing, in this resync
}

func (c *contest) contested() bool { return c.drifts > patience }

// waitAfter returns how many resyncs pass before a repair.
func waitAfter(drifts int) int {
	if n := drifts - patience; n < 4 {
		return 1 << n
	}
	return maxWait
}

// contests are the keys that somebody else changed not long ago. The zero value
// is ready. It has an entry for each of these and for no others.
type contests[K comparable] struct {
	byKey map[K]*contest
	fresh []K // contested since the last resync
}

// found books that a resync found a key altered, and reports whether it is to
// be repaired now.
func (c *contests[K]) found(k K, what string, now time.Time) bool {
	x := c.byKey[k]
	if x == nil {
		if c.byKey == nil {
			c.byKey = map[K]*contest{}
		}
		x = &contest{since: now}
		c.byKey[k] = x
	}
	x.seen, x.what = true, what
	if x.wait > 0 {
		x.wait--
		return x.wait == 0
	}
	if x.drifts++; !x.contested() {
		return true
	}
	x.wait = waitAfter(x.drifts)
	if x.drifts == patience+1 {
		c.fresh = append(c.fresh, k)
	}
	return false
}

// failing books that a resync found a key that waits for another try of ours:
// neither somebody's drift nor calm.
func (c *contests[K]) failing(k K) {
	if x := c.byKey[k]; x != nil {
		x.seen = true
	}
}

// end ends a resync and returns the contested keys that nobody has changed for
// long enough. It costs O(contests).
func (c *contests[K]) end() (over []K) {
	for k, x := range c.byKey {
		switch {
		case x.seen:
			x.seen, x.calm = false, 0
		default:
			x.wait = 0 // somebody put it right: what comes next is a new drift
			if x.calm++; x.calm < calmAfter {
				continue
			}
			if x.contested() {
				over = append(over, k)
			}
			delete(c.byKey, k)
		}
	}
	return over
}

// count returns how many keys are contested.
func (c *contests[K]) count() int {
	n := 0
	for _, x := range c.byKey {
		if x.contested() {
			n++
		}
	}
	return n
}

// warning says since when and how often a key is changed by somebody else.
func (r *Reconciler[K, V]) warning(c *contest) vip.Problem {
	return vip.Problem{
		Code: vip.CodeContested,
		Message: fmt.Sprintf("somebody else keeps changing it: %d times since %s, the last time it %s; repairs now wait, for %s at most",
			c.drifts, c.since.UTC().Format(time.RFC3339), c.what, maxWait*r.Resync),
		Hint: "ironvip doctor names the programs that do so and what to set",
	}
}

// settle ends a resync: it tells of keys that have become contested, or no
// longer are, and brings their applied rows up to date. Diff is what the resync
// found.
func (r *Reconciler[K, V]) settle(diff []Difference[K, V]) {
	for i := range diff {
		d := &diff[i]
		c := r.contests.byKey[d.Key]
		e, has := r.have.get(d.Key)
		if c == nil || !c.contested() || !has || e.suspect() { // what isn't ours to have has no row
			continue
		}
		row, _, ok := r.Applied.Get(d.Key)
		if !ok || row.Problem != nil && row.Problem.Code != vip.CodeContested {
			continue // another problem is worse
		}
		w := r.warning(c)
		if row.Warning != nil && *row.Warning == w && (row.Problem != nil) == (c.wait > 0) {
			continue
		}
		row.Warning, row.Problem = &w, nil
		if c.wait > 0 { // it is not as it should be
			row.Problem = &w
		}
		r.mark(d.Key, row)
	}
	for i, k := range r.contests.fresh {
		if i == maxEvents {
			r.tell(event.Event{Kind: "dataplane_contested", Message: fmt.Sprintf("%d more keys are contested as well", len(r.contests.fresh)-i)})
			break
		}
		r.tell(event.Event{Kind: "dataplane_contested", Service: r.serviceAt(k), Object: fmt.Sprint(k), Message: r.warning(r.contests.byKey[k]).Message})
	}
	r.contests.fresh = nil
	for i, k := range r.contests.end() {
		if row, _, ok := r.Applied.Get(k); ok && row.Warning != nil {
			if row.Warning = nil; row.Problem != nil && row.Problem.Code == vip.CodeContested {
				row.Problem = nil
			}
			r.mark(k, row)
		}
		if i < maxEvents {
			r.tell(event.Event{Kind: "dataplane_calm", Service: r.serviceAt(k), Object: fmt.Sprint(k),
				Message: fmt.Sprintf("nobody else has changed it for %s: repairs no longer wait", calmAfter*r.Resync)})
		}
	}
	r.note(func(s *Stats) { s.Contested = r.contests.count() })
}

// mark writes the row of a key whose problem or warning has changed.
func (r *Reconciler[K, V]) mark(k K, row Applied[V]) {
	r.Applied.Set(row)
	if row.Problem != nil {
		r.failing[k] = struct{}{}
	} else {
		delete(r.failing, k)
	}
	r.note(func(s *Stats) { s.Failing = len(r.failing) })
}

func (r *Reconciler[K, V]) tell(e event.Event) {
	r.Log.Warn(e.Kind, "key", e.Object, "what", e.Message)
	r.Events.Add(e)
}

// serviceAt returns the service of a key, "" where nobody wants it.
func (r *Reconciler[K, V]) serviceAt(k K) string {
	if v, _, ok := r.Desired.Get(k); ok {
		return r.Service(&v)
	}
	return ""
}
