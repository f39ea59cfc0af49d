package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/vip"
)

// A key that another program changes again and again is contested: it is still repaired each time, and its row says so.
const (
	freeRepairs = 3  // changes of a key after which it is contested, which is reported once
	calmAfter   = 10 // resyncs in a row without a change that end a contest
)

// contest is the history of one key that another program changed.
type contest struct {
	since  time.Time // of the first drift
	drifts int       // changes found after it had been right
	what   string    // description of the last change
	by     string    // the program that made it, or ""
	calm   int       // resyncs in a row without a change
	seen   bool      // changed or failing since the last resync
}

func (c *contest) contested() bool { return c.drifts > freeRepairs }

// contests has the keys that another program changed recently. The zero value is ready.
type contests[K comparable] struct {
	byKey map[K]*contest
	fresh []K // contested since the last report
}

// found records a change of a key by another program.
func (c *contests[K]) found(k K, what, by string, now time.Time) {
	x := c.byKey[k]
	if x == nil {
		if c.byKey == nil {
			c.byKey = map[K]*contest{}
		}
		x = &contest{since: now}
		c.byKey[k] = x
	}
	x.seen, x.what, x.by = true, what, cmp.Or(by, x.by)
	if x.drifts++; x.drifts == freeRepairs+1 {
		c.fresh = append(c.fresh, k)
	}
}

// failing records that a resync found a key with a pending retry, which is neither a change nor calm.
func (c *contests[K]) failing(k K) {
	if x := c.byKey[k]; x != nil {
		x.seen = true
	}
}

// end ends a resync. It returns the keys that are no longer contested. It costs O(contests).
func (c *contests[K]) end() (over []K) {
	for k, x := range c.byKey {
		if x.seen {
			x.seen, x.calm = false, 0
			continue
		}
		if x.calm++; x.calm < calmAfter {
			continue
		}
		if x.contested() {
			over = append(over, k)
		}
		delete(c.byKey, k)
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

// warning returns the problem of a contested key, with its start, the number of changes and the other program.
func (r *Reconciler[K, V]) warning(c *contest) vip.Problem {
	p := vip.Problem{
		Code: vip.CodeContested,
		Message: fmt.Sprintf("somebody else keeps changing it: %d times since %s; the last time: %s",
			c.drifts, c.since.UTC().Format(time.RFC3339), c.what),
		Hint: "find the program and its setting with ironvip doctor",
	}
	if c.by != "" {
		p.Message += ", by " + c.by
		p.Hint = "stop " + c.by + ", or change its setting"
	}
	p.Hint += fmt.Sprintf("; this warning ends %s after the last change", r.untilCalm())
	return p
}

// showContest updates the applied row of a key that another program changes.
func (r *Reconciler[K, V]) showContest(k K) {
	c := r.contests.byKey[k]
	e, has := r.have[k]
	if c == nil || !c.contested() || !has || e.suspect() { // strays have no row
		return
	}
	row, _, ok := r.Applied.Get(k)
	w := r.warning(c)
	if !ok || row.Problem != nil || row.Warning != nil && *row.Warning == w {
		return // keep the more serious problem
	}
	row.Warning = &w
	r.mark(k, row)
}

// reportContests sends an event for each key that has become contested.
func (r *Reconciler[K, V]) reportContests() {
	r.announce(slog.LevelWarn, "dataplane_contested", r.contests.fresh, "contested", func(k K) string { return r.warning(r.contests.byKey[k]).Message })
	r.contests.fresh = nil
	r.noteContests()
}

func (r *Reconciler[K, V]) noteContests() {
	r.note(func(s *Stats) { s.Contested = r.contests.count() })
}

// endContests ends a resync: it reports the keys that are no longer contested.
func (r *Reconciler[K, V]) endContests() {
	over := r.contests.end()
	for _, k := range over {
		if row, _, ok := r.Applied.Get(k); ok && row.Warning != nil {
			row.Warning = nil
			r.mark(k, row)
		}
	}
	r.announce(slog.LevelInfo, "dataplane_calm", over, "no longer contested", func(K) string {
		return fmt.Sprintf("unchanged by other programs for %s", r.untilCalm())
	})
	r.noteContests()
}

// untilCalm is how long a key must be left alone until it is no longer contested.
func (r *Reconciler[K, V]) untilCalm() time.Duration { return calmAfter * r.Resync }

// announce logs and sends an event for each key: for the first ones, and one that counts the others.
func (r *Reconciler[K, V]) announce(level slog.Level, kind string, keys []K, are string, message func(K) string) {
	publish := func(e event.Event) {
		r.Log.Log(context.Background(), level, kind, "key", e.Object, "message", e.Message)
		r.Events.Add(e)
	}
	for i, k := range keys {
		if i == maxEvents {
			publish(event.Event{Kind: kind, Message: fmt.Sprintf("%d more keys are %s", len(keys)-i, are)})
			return
		}
		publish(event.Event{Kind: kind, Service: r.serviceAt(k), Object: fmt.Sprint(k), Message: message(k)})
	}
}

// serviceAt returns the service of a key, or "" if it is not desired.
func (r *Reconciler[K, V]) serviceAt(k K) string {
	if v, _, ok := r.Desired.Get(k); ok {
		return r.Service(&v)
	}
	return ""
}
