package treelog

import (
	"iter"
	"strconv"

	"github.com/ironvip/ironvip/fleet/kv"
)

// Slot is the place in the ring of the entry of that number: a segment and a key in it.
func Slot(seq uint64) string {
	return segment(seq) + strconv.FormatUint((seq-1)%segmentSize, 10)
}

func segment(seq uint64) string {
	return strconv.FormatUint((seq-1)%ringSize/segmentSize, 10) + "/"
}

// Segments returns the prefixes of the slots of a range of numbers. Each is read with one request.
func Segments(from, to uint64) iter.Seq[string] {
	return func(yield func(string) bool) {
		for seq := from; seq <= to && yield(segment(seq)); seq += segmentSize - (seq-1)%segmentSize {
		}
	}
}

// Ring has the entries that were read from the ring, by number.
type Ring map[uint64]Entry

// Add decodes pairs of the ring with that prefix. A pair that can't be decoded counts as missing.
func (r Ring) Add(prefix string, pairs []kv.Pair) {
	for _, pair := range pairs {
		if e, err := Decode(pair.Value, pair.Index); err == nil && pair.Key == prefix+Slot(e.Seq) {
			r[e.Seq] = e
		}
	}
}

// PositionOf returns the position of a reader that has read everything up to the head. If that
// can't be decoded or doesn't exist, the next entry is the first of a new log.
func PositionOf(head *kv.Pair) Position {
	if head == nil {
		return Position{}
	}
	e, err := Decode(head.Value, head.Index)
	if err != nil {
		return Position{Index: head.Index}
	}
	return e.Position
}

// After decodes the head, which is nil if the key doesn't exist. Newest is nil if a reader at
// that position already has it. It isn't ok if the log doesn't go on from the position. An entry
// that can't be decoded is reported when the whole tree is read.
func After(at Position, head *kv.Pair) (newest *Entry, ok bool) {
	if head == nil {
		return nil, at.Index == 0
	}
	e, err := Decode(head.Value, head.Index)
	switch {
	case err == nil && e.Position == at, err != nil && head.Index == at.Index:
		return nil, true
	case err != nil, e.Index < at.Index, e.Seq <= at.Seq, e.Seq-at.Seq > ringSize:
		return nil, false
	}
	return &e, true
}

// NeedsRing reports whether a reader at a position needs the ring, too, for the entries up to this
// newest one.
func (e *Entry) NeedsRing(at Position) bool { return e.InRing || e.Seq > at.Seq+1 }

// Chain returns the entries after a position, up to the newest one. It takes the ones before it
// from the ring. It is ok if each follows the one before it, and none is a cut.
func Chain(at Position, newest *Entry, ring Ring) (out []Entry, ok bool) {
	for before, seq := at.Index, at.Seq+1; seq <= newest.Seq; seq++ {
		e := *newest
		if seq < newest.Seq || newest.InRing {
			var there bool
			if e, there = ring[seq]; !there || e.InRing {
				return nil, false
			}
		}
		if e.Before != before || e.Cut {
			return nil, false
		}
		before, out = e.Index, append(out, e)
	}
	if out[len(out)-1].Index != newest.Index {
		return nil, false
	}
	return out, true
}
