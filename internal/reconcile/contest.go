package reconcile

import (
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// Repairs of a key that another program changes repeatedly are limited, because each repair costs both programs work
// without an effect. The first changes are repaired immediately. After that, the key is contested, which is reported
// once, and its repairs wait. All times are counted in resyncs.
const (
	freeRepairs = 3  // changes of a key that are repaired in the resync that finds them
	maxWait     = 10 // the waits before a repair are 2, 4, 8 and then this
	calmAfter   = 10 // resyncs in a row without a change that end a contest
)

// contest is the history of one key that another program changed.
type contest struct {
	since  time.Time // of the first drift
	drifts int       // changes found after it had been right
	what   string    // description of the last change
	wait   int       // resyncs until the next repair
	calm   int       // resyncs in a row without a change
	seen   bool      // changed or failing in this resync
}

func (c *contest) contested() bool { return c.drifts > freeRepairs }

// waitAfter returns how many resyncs pass before a repair.
func waitAfter(drifts int) int {
	if n := drifts - freeRepairs; n < 4 {
		return 1 << n
	}
	return maxWait
}

// contests has the keys that another program changed recently. The zero value is ready.
type contests[K comparable] struct {
	byKey map[K]*contest
	fresh []K // contested since the last resync
}

// found records that a resync found a key changed, and reports whether to repair it now.
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
	if x.drifts == freeRepairs+1 {
		c.fresh = append(c.fresh, k)
	}
	return false
}

// failing records that a resync found a key with a pending retry, which is neither a change nor calm.
func (c *contests[K]) failing(k K) {
	if x := c.byKey[k]; x != nil {
		x.seen = true
	}
}

// end ends a resync and returns the keys that are no longer contested. It costs O(contests).
func (c *contests[K]) end() (over []K) {
	for k, x := range c.byKey {
		switch {
		case x.seen:
			x.seen, x.calm = false, 0
		default:
			x.wait = 0 // another program restored it, so the next change is a new drift
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

// warning returns the problem of a contested key, with its start and the number of changes.
func (r *Reconciler[K, V]) warning(c *contest) vip.Problem {
	return vip.Problem{
		Code: vip.CodeContested,
		Message: fmt.Sprintf("somebody else keeps changing it: %d times since %s, the last time it %s; repairs now wait for up to %s",
			c.drifts, c.since.UTC().Format(time.RFC3339), c.what, maxWait*r.Resync),
		Hint: "run ironvip doctor to find the program and its setting",
	}
}

// updateContests ends a resync: it reports keys that became contested or calm, and updates their applied rows.
func (r *Reconciler[K, V]) updateContests(diff []Difference[K, V]) {
	for i := range diff {
		d := &diff[i]
		c := r.contests.byKey[d.Key]
		e, has := r.have.get(d.Key)
		if c == nil || !c.contested() || !has || e.suspect() { // strays have no row
			continue
		}
		row, _, ok := r.Applied.Get(d.Key)
		if !ok || row.Problem != nil && row.Problem.Code != vip.CodeContested {
			continue // keep the more serious problem
		}
		w := r.warning(c)
		if row.Warning != nil && *row.Warning == w && (row.Problem != nil) == (c.wait > 0) {
			continue
		}
		row.Warning, row.Problem = &w, nil
		if c.wait > 0 { // the repair waits
			row.Problem = &w
		}
		r.mark(d.Key, row)
	}
	for i, k := range r.contests.fresh {
		if i == maxEvents {
			r.publish(event.Event{Kind: "dataplane_contested", Message: fmt.Sprintf("%d more keys are contested", len(r.contests.fresh)-i)})
			break
		}
		r.publish(event.Event{Kind: "dataplane_contested", Service: r.serviceAt(k), Object: fmt.Sprint(k), Message: r.warning(r.contests.byKey[k]).Message})
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
			r.publish(event.Event{Kind: "dataplane_calm", Service: r.serviceAt(k), Object: fmt.Sprint(k),
				Message: fmt.Sprintf("unchanged by other programs for %s: repairs no longer wait", calmAfter*r.Resync)})
		}
	}
	r.note(func(s *Stats) { s.Contested = r.contests.count() })
}

func (r *Reconciler[K, V]) publish(e event.Event) {
	r.Log.Warn(e.Kind, "key", e.Object, "message", e.Message)
	r.Events.Add(e)
}

// serviceAt returns the service of a key, or "" if it is not desired.
func (r *Reconciler[K, V]) serviceAt(k K) string {
	if v, _, ok := r.Desired.Get(k); ok {
		return r.Service(&v)
	}
	return ""
}
