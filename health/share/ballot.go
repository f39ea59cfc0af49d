package share

import (
	"maps"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// ballot is what one prober knows when it decides what to write about a target. It is pure.
//
// The row has the verdict and those that disagree with it, so that a prober that agrees writes
// nothing. A verdict changes when most of the probers are against it. Votes of hosts that are no
// longer probers don't count. A change therefore takes two writes with three probers, and one prober
// with a broken path to a target changes nothing.
type ballot struct {
	me      string
	probers []string // of the target, by rank
	row     *Verdict // nil: none
	own     finding
}

// finding is what this host's own probes say of a target.
type finding struct {
	health vip.Health // Unknown: no result yet; 0: this host can't probe it
	since  int64
	reason string
}

// action is what a prober does with the row of a target.
type action int

const (
	keep     action = iota
	begin           // write the first row
	agree           // no longer be against the verdict, or without the target
	object          // be against the verdict
	decide          // change the verdict
	abstain         // be without the target
	conclude        // remove the row: nobody probes the target
)

// majority returns how many of that many voters decide.
func majority(voters int) int { return voters/2 + 1 }

// next returns what the prober does, and the row that it writes.
func (b *ballot) next() (Verdict, action) {
	switch {
	case !slices.Contains(b.probers, b.me):
		return Verdict{}, keep
	case b.own.health == 0:
		return b.leave()
	case b.own.health == vip.Unknown:
		return Verdict{}, keep
	case b.row == nil:
		return b.vote(Verdict{Health: vip.Unknown, Since: b.own.since}, begin)
	}
	if b.row.Health == b.own.health {
		if _, against := b.row.Against[b.me]; !against && !slices.Contains(b.row.Without, b.me) {
			return Verdict{}, keep
		}
		next := b.counted()
		delete(next.Against, b.me)
		return next, agree
	}
	return b.vote(b.counted(), object)
}

// vote adds this host's vote against a verdict. The first healthy prober decides about a target
// without one: connections go there anyway. It takes a majority to find it unhealthy.
func (b *ballot) vote(next Verdict, otherwise action) (Verdict, action) {
	if next.Against == nil {
		next.Against = map[string]Vote{}
	}
	_, was := next.Against[b.me]
	next.Against[b.me] = Vote{b.own.since, b.own.reason}
	first := next.Health == vip.Unknown && b.own.health == vip.Healthy
	if first || len(next.Against) >= majority(len(b.probers)-len(next.Without)) {
		if otherwise == object {
			otherwise = decide
		}
		return Verdict{Health: b.own.health, Since: b.own.since, Reason: b.own.reason, By: b.me, Without: next.Without}, otherwise
	}
	if was && b.row != nil && !slices.Contains(b.row.Without, b.me) {
		return Verdict{}, keep
	}
	return next, otherwise
}

// leave adds this host to those without the target. The last one removes the row.
func (b *ballot) leave() (Verdict, action) {
	if b.row == nil {
		return Verdict{}, keep
	}
	already := slices.Contains(b.row.Without, b.me)
	next := b.counted()
	delete(next.Against, b.me)
	if next.Without = append(next.Without, b.me); len(next.Without) >= len(b.probers) {
		return Verdict{}, conclude
	}
	if already {
		return Verdict{}, keep
	}
	slices.Sort(next.Without)
	return next, abstain
}

// counted returns a copy of the row with the votes that count: of probers, and without this host's
// abstention.
func (b *ballot) counted() Verdict {
	next := *b.row
	next.Against = maps.Clone(b.row.Against)
	maps.DeleteFunc(next.Against, func(node string, _ Vote) bool { return !slices.Contains(b.probers, node) })
	next.Without = slices.DeleteFunc(slices.Clone(b.row.Without), func(node string) bool {
		return node == b.me || !slices.Contains(b.probers, node)
	})
	return next
}
