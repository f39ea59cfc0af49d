package reconcile

import (
	"context"
	"time"

	"github.com/ironvip/ironvip/internal/table"
)

// Watched is the optional interface of a Target that the kernel tells of changes by other programs. The goroutine of
// Apply calls its methods.
type Watched[K comparable, V any] interface {
	// Disturbed delivers after another program may have changed what is ours. Changes that the Target makes don't
	// deliver, or cost no read. The Reconciler is the only reader. A nil channel means that the kernel can't be watched.
	Disturbed() <-chan struct{}
	// Look examines only what changed since the last call or the last Actual. It costs O(what changed), where a table of
	// rules is one thing.
	Look(ctx context.Context) (Sight[K, V], error)
}

// Sight is what a Look has found.
type Sight[K comparable, V any] struct {
	// Damaged are keys whose repair restores everything that was changed. A part that several keys share, such as
	// their address, is found for one of them.
	Damaged []Damage[K]
	// Strays were added and belong to no key of the desired table.
	Strays []Stray[V]
	// Unknown is set if more may have changed, for example because events were lost. Only Actual finds it.
	Unknown bool
	By      string // the program that made the unknown changes, see Damage
}

// Damage is a change of one key by another program.
type Damage[K comparable] struct {
	Key  K
	What string // "address 192.0.2.10 missing from ironvip0"
	By   string // the program, such as "nft (pid 812)", or ""
}

// Stray is what another program has added. It is removed as an Orphan is.
type Stray[V any] struct {
	Observed[V]
	By string // see Damage
}

// A program that floods the kernel with changes must not keep the loop, and a processor, busy.
const (
	lookPause = time.Second     // the shortest time between two resyncs that events cause
	lookBurst = 5 * time.Second // what Looks and such resyncs may take at once, with their repairs
	lookShare = 10              // the part of all time that they may take in the long run is one in so many
)

// looking is the account of the time that Looks take. The zero value is ready.
type looking struct {
	debt  time.Duration // of the last account
	since time.Time
}

// wait returns how long the next Look must wait.
func (l *looking) wait() time.Duration {
	return max(0, max(0, l.debt-lookBurst)*lookShare-time.Since(l.since))
}

// took accounts for a Look that began at start and ends now.
func (l *looking) took(start time.Time) {
	now := time.Now()
	l.debt = max(0, l.debt-now.Sub(l.since)/lookShare) + now.Sub(start)
	l.since = now
}

// lookSoon looks at once, or when the last Looks are long enough ago.
func (r *Reconciler[K, V]) lookSoon(ctx context.Context) {
	if wait := r.looking.wait(); wait > 0 {
		r.later.Reset(wait)
		return
	}
	r.look(ctx)
}

// look repairs what the Target says that other programs have changed.
func (r *Reconciler[K, V]) look(ctx context.Context) {
	r.later.Stop()
	defer r.looking.took(time.Now())
	sight, err := r.watched.Look(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.Log.Warn("look at what another program changed", "err", err)
		sight.Unknown = true
	}
	repair := drift[K, V]{}
	now := time.Now()
	for _, d := range sight.Damaged {
		e, has := r.have.get(d.Key)
		if !has {
			continue // the feed writes it
		}
		if !r.contests.found(d.Key, d.What, d.By, now).spend() {
			r.showContest(d.Key)
			continue
		}
		if e.suspect() { // its retry repairs what was found, which other keys may share
			r.retries.add(d.Key, now)
			continue
		}
		repair.add(Update[K, V]{Key: d.Key, Old: &e.row.Value, New: &e.row.Value, Repair: true}, e.row, by(d.What+", repaired", d.By))
	}
	for i := range sight.Strays {
		r.lookAtStray(&sight.Strays[i], now, &repair)
	}
	r.repair(ctx, &repair)
	if sight.Unknown {
		r.suspected = sight.By
		r.again.Reset(max(0, lookPause-time.Since(r.lastLook), r.looking.wait()))
	}
}

// lookAtStray adds the removal of a stray to a repair. Before the sweep, it is left to that.
func (r *Reconciler[K, V]) lookAtStray(s *Stray[V], now time.Time, repair *drift[K, V]) {
	k := r.Desired.KeyOf(&s.Value)
	if _, has := r.have.get(k); has || r.Desired.Row(k) != nil {
		return // it is known, and waits for its removal
	}
	row := &table.Row[V]{Value: s.Value}
	if !r.swept {
		r.have.put(entry[V]{row: row, orphan: true}.with(fault{damage: s.Damage}))
		return
	}
	what := s.Damage[0]
	if r.contests.found(k, what, s.By, now).spend() {
		repair.add(Update[K, V]{Key: k, Old: &row.Value, Repair: true}, nil, by(what+", removed", s.By))
	}
}

// by adds the program to the description of a repair.
func by(what, program string) string {
	if program == "" {
		return what
	}
	return what + "; changed by " + program
}

// lookAtAll is the resync after a Look that could not find everything.
func (r *Reconciler[K, V]) lookAtAll(ctx context.Context) {
	defer r.looking.took(time.Now())
	_, err := r.resync(ctx, false, r.suspected)
	r.lastLook = time.Now()
	if err != nil { // the events that caused it are gone
		r.again.Reset(max(lookPause, r.backoff(r.faults[reading])))
		return
	}
	r.retries.hurry(r.lastLook) // the Target may be another one
}

// lookFirst repairs what the Target has already seen, because a read of everything forgets it.
func (r *Reconciler[K, V]) lookFirst(ctx context.Context) {
	if r.watched == nil {
		return
	}
	if r.later.Stop() {
		r.look(ctx)
		return
	}
	select {
	case <-r.watched.Disturbed():
		r.look(ctx)
	default:
	}
}
