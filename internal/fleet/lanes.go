package fleet

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// idleLane is after how long a lane is not used again, and sweepLane after how
	// long the elected host removes its entries.
	idleLane  = 30 * time.Minute
	sweepLane = time.Hour
)

// lanes are what a reader knows of each lane of the journal: what has become of
// its entries up to a newest one is in the tables.
type lanes map[string]laneView

type laneView struct {
	seq, index uint64    // of that entry
	since      time.Time // when it was seen first
	err        error     // why the head of that index can't be read
}

// ownHead is the newest entry that this host has written, which is in the tables
// with all before it.
type ownHead struct {
	lane       string
	seq, index uint64
}

// news is what is new in the journal.
type news struct {
	changes []change         // in the order they were made, once it is complete
	gaps    []gap            // what the heads don't have of it
	junk    map[string]error // keys that can't be read
}

// gap is a row of entries that a reader has not seen, of one lane.
type gap struct {
	lane     string
	from, to uint64 // by number, both among them
	before   uint64 // the index of the entry before from; 0: from is the first
	last     uint64 // the index of the entry to
}

// read takes in an answer with all heads, good for an index after the cursor. It
// costs O(heads), of which only new ones are decoded. Zero lanes take what is
// there as it is.
func (l *lanes) read(paths paths, pairs []Pair, cursor uint64, own ownHead, now time.Time) (news, verdict) {
	first, n, result := *l == nil, news{junk: map[string]error{}}, inStep
	answer := make(lanes, len(pairs))
	for _, p := range pairs {
		name, ok := paths.parseHead(p.Key)
		if !ok {
			n.junk[p.Key] = errors.New("not a key of the journal")
			continue
		}
		view, known := (*l)[name]
		switch {
		case known && view.index == p.Index:
		case !first && name == own.lane && p.Index == own.index:
			view = laneView{seq: own.seq, index: own.index, since: now}
		default:
			head, err := decodeEntry(p.Value, p.Index)
			if !first {
				result = max(result, n.add(name, view, head, err, cursor))
			}
			view = laneView{seq: head.seq, index: p.Index, since: now, err: err}
		}
		answer[name] = view
		if view.err != nil {
			n.junk[p.Key] = view.err
		}
	}
	for name, lane := range *l {
		if _, there := answer[name]; !there && now.Sub(lane.since) < idleLane {
			result = restored
		}
	}
	*l = answer
	return n, result
}

// add judges a head that is new to a reader who knew old of its lane (zero: knew
// nothing), and adds what it says, or what has to be read to know.
func (n *news) add(lane string, old laneView, head entry, err error, cursor uint64) verdict {
	switch {
	case err != nil, old.err != nil:
		return missed
	case head.index <= cursor, head.seq <= old.seq:
		return restored
	case head.seq-old.seq > laneSlots:
		return missed
	}
	if !head.slot {
		n.changes = append(n.changes, head.changes...)
		if head.seq == old.seq+1 {
			if head.before != old.index {
				return restored
			}
			return inStep
		}
	}
	g := gap{lane: lane, from: old.seq + 1, to: head.seq, before: old.index, last: head.index}
	if !head.slot {
		g.to, g.last = head.seq-1, head.before
	}
	n.gaps = append(n.gaps, g)
	return inStep
}

// fill adds what the slots of a lane have of a gap.
func (n *news) fill(paths paths, g gap, slots []Pair) verdict {
	found := make(map[uint64]entry, len(slots))
	for _, p := range slots {
		// What is no entry is as good as missing.
		if e, err := decodeEntry(p.Value, p.Index); err == nil && paths.slot(g.lane, e.seq) == p.Key {
			found[e.seq] = e
		}
	}
	before := g.before
	for seq := g.from; seq <= g.to; seq++ {
		e, there := found[seq]
		switch {
		case !there || e.slot:
			return missed
		case e.before != before:
			return restored
		}
		n.changes = append(n.changes, e.changes...)
		before = e.index
	}
	if before != g.last {
		return restored
	}
	return inStep
}

// order puts the changes in the order they were made.
func (n *news) order() {
	slices.SortStableFunc(n.changes, func(a, b change) int { return cmp.Compare(a.index, b.index) })
}

// remember takes over since when the lanes have been as they are.
func (l lanes) remember(former lanes) {
	for name, lane := range l {
		if old, was := former[name]; was && old.index == lane.index {
			lane.since = old.since
			l[name] = lane
		}
	}
}

// idle returns a lane that nobody has used for long, and the index of its head.
func (l lanes) idle(now time.Time) (name string, head uint64) {
	for name, lane := range l {
		if lane.err == nil && now.Sub(lane.since) >= sweepLane {
			return name, lane.index
		}
	}
	return "", 0
}
