package fleet

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

const (
	// A writer doesn't use a stream again that has been idle for idleStream. The leader removes it
	// after sweepStream.
	idleStream  = 30 * time.Minute
	sweepStream = time.Hour
)

// streams is a reader's position in each stream of the journal. The changes up to there are in the
// tables.
type streams map[string]streamView

type streamView struct {
	seq, index uint64    // of the newest entry
	since      time.Time // when it was first seen
	err        error     // why that entry, the head, can't be decoded
}

// ownHead is the newest entry that this host has written. It and all before it are in the tables.
type ownHead struct {
	stream     string
	seq, index uint64
}

// news is what is new in the journal.
type news struct {
	changes []change         // in the order of their index, once complete
	gaps    []gap            // entries that are not in the heads
	junk    map[string]error // keys that can't be decoded
}

// gap is a range of entries of one stream that a reader has not seen.
type gap struct {
	stream   string
	from, to uint64 // numbers, inclusive
	before   uint64 // the index of the entry before from; 0 if from is the first
	last     uint64 // the index of entry to
}

// read compares an answer with all heads with the last one, and returns what is new after the
// cursor. It costs O(heads), but decodes only new ones. Zero streams start at the answer.
func (l *streams) read(paths paths, pairs []Pair, cursor uint64, own ownHead, now time.Time) (news, verdict) {
	first, n, result := *l == nil, news{junk: map[string]error{}}, inStep
	answer := make(streams, len(pairs))
	for _, p := range pairs {
		name, ok := paths.parseHead(p.Key)
		if !ok {
			n.junk[p.Key] = errors.New("unknown key: not a stream of the journal")
			continue
		}
		view, known := (*l)[name]
		switch {
		case known && view.index == p.Index:
		case !first && name == own.stream && p.Index == own.index:
			view = streamView{seq: own.seq, index: own.index, since: now}
		default:
			head, err := decodeEntry(p.Value, p.Index)
			if !first {
				result = max(result, n.add(name, view, head, err, cursor))
			}
			view = streamView{seq: head.seq, index: p.Index, since: now, err: err}
		}
		answer[name] = view
		if view.err != nil {
			n.junk[p.Key] = view.err
		}
	}
	for name, stream := range *l {
		if _, there := answer[name]; !there && now.Sub(stream.since) < idleStream {
			result = restored
		}
	}
	*l = answer
	return n, result
}

// add adds the changes of a new head, or the gap that has to be read for them. Old is the reader's
// position in the stream, zero for a new stream.
func (n *news) add(stream string, old streamView, head entry, err error, cursor uint64) verdict {
	switch {
	case err != nil, old.err != nil:
		return missed
	case head.index <= cursor, head.seq <= old.seq:
		return restored
	case head.seq-old.seq > streamSlots:
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
	g := gap{stream: stream, from: old.seq + 1, to: head.seq, before: old.index, last: head.index}
	if !head.slot {
		g.to, g.last = head.seq-1, head.before
	}
	n.gaps = append(n.gaps, g)
	return inStep
}

// fill adds the changes of a gap from the stream's slots.
func (n *news) fill(paths paths, g gap, slots []Pair) verdict {
	found := make(map[uint64]entry, len(slots))
	for _, p := range slots {
		// What can't be decoded counts as missing.
		if e, err := decodeEntry(p.Value, p.Index); err == nil && paths.slot(g.stream, e.seq) == p.Key {
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

// order sorts the changes by their index.
func (n *news) order() {
	slices.SortStableFunc(n.changes, func(a, b change) int { return cmp.Compare(a.index, b.index) })
}

// keepTimes keeps the time since when streams have not changed.
func (l streams) keepTimes(former streams) {
	for name, stream := range l {
		if old, was := former[name]; was && old.index == stream.index {
			stream.since = old.since
			l[name] = stream
		}
	}
}

// idle returns a stream that has been idle for sweepStream, and the index of its head.
func (l streams) idle(now time.Time) (name string, head uint64) {
	for name, stream := range l {
		if stream.err == nil && now.Sub(stream.since) >= sweepStream {
			return name, stream.index
		}
	}
	return "", 0
}
