package reconcile

import (
	"context"
	"time"
)

// Drift is what a check has found.
type Drift[K comparable, V any] struct {
	// Damaged are keys whose repair restores everything that was changed. A part that several keys share, such as
	// their address, is found for one of them.
	Damaged []Damage[K]
	// Unknown is set if more may have changed, for example because events were lost. Only Actual finds it.
	Unknown bool
	By      string // the program that made the unknown changes, such as "nft (pid 812)", or ""
	// Arrived are failed keys that an event of the host allows to succeed, such as a new address. They are tried at once.
	Arrived []K
}

// Damage is a change of one key by another program.
type Damage[K comparable] struct {
	Key  K
	What string // "address 192.0.2.10 missing from ironvip0"
}

// A program that floods the kernel with changes must not keep the loop, and a processor, busy.
const (
	recheckPause = time.Second / 10 // the shortest time between two resyncs that events cause
	checkBurst   = 5 * time.Second  // what checks and such resyncs may take at once, with their repairs
	checkShare   = 10               // the part of all time that they may take in the long run is one in so many
)

// checking is the account of the time that checks take. The zero value is ready.
type checking struct {
	debt  time.Duration // of the last account
	since time.Time
}

// wait returns how long the next check must wait.
func (l *checking) wait() time.Duration {
	return max(0, max(0, l.debt-checkBurst)*checkShare-time.Since(l.since))
}

// took accounts for a check that began at start and ends now.
func (l *checking) took(start time.Time) {
	now := time.Now()
	l.debt = max(0, l.debt-now.Sub(l.since)/checkShare) + now.Sub(start)
	l.since = now
}

// checkSoon checks at once, or when the last checks are long enough ago.
func (r *Reconciler[K, V]) checkSoon(ctx context.Context) {
	if wait := r.checking.wait(); wait > 0 {
		r.delayed.Reset(wait)
		return
	}
	r.check(ctx)
}

// check repairs what the Target says that other programs have changed.
func (r *Reconciler[K, V]) check(ctx context.Context) {
	r.delayed.Stop()
	defer r.checking.took(time.Now())
	drift, err := r.Target.Check(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.Log.Warn("check what another program changed", "err", err)
		drift.Unknown = true
	}
	repair := repairs[K, V]{}
	now := time.Now()
	for _, d := range drift.Damaged {
		e, has := r.have[d.Key]
		if !has {
			continue // the feed writes it
		}
		r.contests.found(d.Key, d.What, "", now)
		if e.suspect() { // its retry repairs what was found, which other keys may share
			r.retries.add(d.Key, now)
			continue
		}
		repair.add(Update[K, V]{Key: d.Key, Old: &e.row.Value, New: &e.row.Value, Repair: true}, e.row, d.What+", repaired")
	}
	for _, k := range drift.Arrived {
		if r.retries.keys.Has(k) {
			r.retries.add(k, now)
		}
	}
	r.repair(ctx, &repair)
	if drift.Unknown {
		r.suspected = drift.By
		r.recheck.Reset(max(0, recheckPause-time.Since(r.lastRecheck), r.checking.wait()))
	}
}

// by adds the program to the description of a repair.
func by(what, program string) string {
	if program == "" {
		return what
	}
	return what + "; changed by " + program
}

// recheckAll is the resync after a check that could not find everything.
func (r *Reconciler[K, V]) recheckAll(ctx context.Context) {
	defer r.checking.took(time.Now())
	_, err := r.resync(ctx, false, r.suspected)
	r.lastRecheck = time.Now()
	if err != nil { // the events that caused it are gone
		r.recheck.Reset(max(recheckPause, r.backoff(r.faults[reading])))
		return
	}
	r.retries.hurry(r.lastRecheck) // the Target may be another one
}

// checkFirst repairs what the Target has already seen, because a read of everything forgets it.
func (r *Reconciler[K, V]) checkFirst(ctx context.Context) {
	if r.delayed.Stop() {
		r.check(ctx)
		return
	}
	select {
	case <-r.Target.Changed():
		r.check(ctx)
	default:
	}
}
