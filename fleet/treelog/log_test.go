package treelog

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/expect"
)

func FuzzLogEntry(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":4,"before":3,"id":"a-1","node":"a","writes":[{"path":"a/x","text":"1"},{"path":"a/y","gone":true},{"path":"a/z","fetch":true},{"path":"a/b","bytes":"/w=="}]}`))
	f.Add([]byte(`{"v":1,"seq":4,"before":3,"id":"a-1","node":"a","cut":true}`))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"seq":1,"writes":[{"path":"","text":""}]}`))
	head, whole := Encode("n", "n-1", Position{Seq: 1, Index: 1}, Content{Changes: []Change{{Path: "a/x", Value: []byte{0xff}}, {Path: "a/y", Value: []byte{}}, {Path: "b/z"}, {Path: "b/y", Value: make([]byte, maxHead)}, {Path: "b/f", Fetch: true}}})
	f.Add(head)
	f.Add(whole)
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Decode(text, 7)
		if err != nil || e.InRing {
			return
		}
		head, whole := Encode("n", e.ID, Position{Seq: e.Seq - 1, Index: e.Before}, e.Content)
		for _, part := range [][]byte{head, whole} {
			again, err := Decode(part, 7)
			if err != nil || again.Position != e.Position || again.Before != e.Before || !again.InRing && (len(again.Changes) != len(e.Changes) || again.Cut != e.Cut) {
				t.Fatalf("%+v: %v", again, err)
			}
			for i, c := range again.Changes {
				was := e.Changes[i]
				if c.Path != was.Path || was.Fetch && !c.Fetch || !c.Fetch && (!bytes.Equal(c.Value, was.Value) || (c.Value == nil) != (was.Value == nil)) || c.Index != 7 {
					t.Errorf("%+v became %+v", was, c)
				}
			}
		}
	})
}

// The size of an entry is bounded for all values, and that of its head has a smaller bound.
func TestEntryIsBounded(t *testing.T) {
	for name, value := range map[string]string{"text": "x", "escaped": "\x01", "bytes": "\xff", "html": "<"} {
		for _, each := range []int{10, 30, 2000} {
			var changes []Change
			for range 125 {
				changes = append(changes, Change{Path: "a/" + strings.Repeat("k", 100), Value: []byte(strings.Repeat(value, each))})
			}
			if head, whole := Encode("n", "n-1", Position{}, Content{Changes: changes}); len(whole) > maxEntryText || len(head) > maxHead {
				t.Errorf("%s: %d bytes, of which %d in the head", name, len(whole), len(head))
			}
		}
	}
}

// testLog is a log in the form of its writers, and a reader of it.
type testLog struct {
	t    *testing.T
	head *kv.Pair
	ring map[string]kv.Pair
	at   Position // the reader's
}

func newTestLog(t *testing.T) *testLog {
	return &testLog{t: t, ring: map[string]kv.Pair{}}
}

// write adds an entry, of the size that fits into a head or not.
func (l *testLog) write(seq, index, before uint64, large bool) {
	value := []byte("v")
	if large {
		value = bytes.Repeat([]byte("v"), 2*maxHead)
	}
	head, whole := Encode("n", fmt.Sprint("n-", index), Position{Seq: seq - 1, Index: before}, Content{Changes: []Change{{Path: "a/x", Value: value}}})
	l.head = &kv.Pair{Key: "head", Index: index, Value: head}
	slot := "ring/" + Slot(seq)
	l.ring[slot] = kv.Pair{Key: slot, Index: index, Value: whole}
}

// cut adds an entry that ends the log for earlier readers.
func (l *testLog) cut(seq uint64) {
	head, whole := Encode("n", "cut", Position{Seq: seq - 1, Index: 10 * (seq - 1)}, Content{Cut: true})
	l.head = &kv.Pair{Key: "head", Index: 10 * seq, Value: head}
	l.ring[at(seq)] = kv.Pair{Key: at(seq), Index: 10 * seq, Value: whole}
}

// row writes entries with these numbers, at ten times these indexes.
func (l *testLog) row(from, to uint64, large bool) {
	for seq := from; seq <= to; seq++ {
		l.write(seq, 10*seq, 10*(seq-1), large)
	}
}

// at is the key of an entry in the ring.
func at(seq uint64) string { return "ring/" + Slot(seq) }

// read returns whether a reader can go on, and the entries that it has received.
func (l *testLog) read() (ok bool, got int) {
	l.t.Helper()
	newest, ok := After(l.at, l.head)
	if newest == nil {
		return ok, 0
	}
	ring := Ring{}
	ring.Add("ring/", slices.Collect(maps.Values(l.ring)))
	entries, ok := Chain(l.at, newest, ring)
	if ok {
		l.at = entries[len(entries)-1].Position
	}
	return ok, len(entries)
}

// Whether a reader goes on that knows entries 4 and 5, at 40 and 50.
func TestReaderGoesOn(t *testing.T) {
	slot := func(l *testLog, seq uint64) kv.Pair { return l.ring[at(seq)] }
	for name, c := range map[string]struct {
		then func(l *testLog)
		want bool
		news int
	}{
		"next":                        {func(l *testLog) { l.row(6, 6, false) }, true, 1},
		"nothing":                     {func(*testLog) {}, true, 0},
		"next, large":                 {func(l *testLog) { l.row(6, 6, true) }, true, 1},
		"next three":                  {func(l *testLog) { l.row(6, 8, false) }, true, 3},
		"next three, large":           {func(l *testLog) { l.row(6, 8, true) }, true, 3},
		"as many as are kept":         {func(l *testLog) { l.row(6, 5+ringSize, true) }, true, ringSize},
		"more than are kept":          {func(l *testLog) { l.row(6, 6+ringSize, false) }, false, 0},
		"one is not in the ring":      {func(l *testLog) { l.row(6, 8, false); delete(l.ring, at(6)) }, false, 0},
		"head removed":                {func(l *testLog) { l.head = nil }, false, 0},
		"older than known":            {func(l *testLog) { l.write(4, 40, 30, false) }, false, 0},
		"older, written later":        {func(l *testLog) { l.write(4, 60, 30, false) }, false, 0},
		"written again":               {func(l *testLog) { l.write(5, 55, 40, false) }, false, 0},
		"next of another past":        {func(l *testLog) { l.write(6, 60, 51, false) }, false, 0},
		"next of another past, large": {func(l *testLog) { l.write(6, 60, 51, true) }, false, 0},
		"a gap of another past":       {func(l *testLog) { l.write(6, 60, 51, false); l.row(7, 7, false) }, false, 0},
		"an entry of another past":    {func(l *testLog) { l.row(6, 6, false); l.write(7, 70, 61, false) }, false, 0},
		"a large head of another past": {func(l *testLog) {
			l.row(6, 6, true)
			p := slot(l, 6)
			p.Index = 59
			l.ring[p.Key] = p
		}, false, 0},
		"not later than what was read": {func(l *testLog) { l.write(6, 45, 50, false) }, false, 0},
		"another entry in the place of one": {func(l *testLog) {
			l.row(6, 7, false)
			p := slot(l, 6)
			p.Key = at(7)
			l.ring = map[string]kv.Pair{p.Key: p}
		}, false, 0},
		"an entry that only points to the ring": {func(l *testLog) {
			l.row(6, 6, true)
			p := slot(l, 6)
			p.Value = l.head.Value
			l.ring[p.Key] = p
		}, false, 0},
		"junk in the ring": {func(l *testLog) {
			l.ring["ring/0/x"] = kv.Pair{Key: "ring/0/x", Index: 55}
			l.row(6, 7, false)
		}, true, 2},
		"next is a cut":          {func(l *testLog) { l.cut(6) }, false, 0},
		"a cut and its next":     {func(l *testLog) { l.row(6, 6, false); l.cut(7); l.row(8, 9, true) }, false, 0},
		"next after a cut":       {func(l *testLog) { l.cut(6); l.at = PositionOf(l.head); l.row(7, 8, false) }, true, 2},
		"junk far ahead":         {func(l *testLog) { l.write(1<<63, 70, 60, false) }, false, 0},
		"a head that isn't read": {func(l *testLog) { l.head = &kv.Pair{Key: "head", Index: 60, Value: []byte("?")} }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLog(t)
			l.row(4, 5, false)
			l.at = PositionOf(l.head)
			c.then(l)
			if ok, news := l.read(); ok != c.want || ok && news != c.news {
				t.Errorf("%v, %d entries", ok, news)
			}
		})
	}
}

// The ring is reused in turn. A reader gets each entry once, for any number of entries between its
// reads up to the ring's size.
func TestRingIsUsedInTurn(t *testing.T) {
	l := newTestLog(t)
	l.row(1, 1, false)
	l.read()
	seq := uint64(1)
	for _, step := range []uint64{1, 1, ringSize - 2, 5, ringSize, 1, ringSize, ringSize - 1} {
		l.row(seq+1, seq+step, seq%2 == 0)
		seq += step
		if ok, got := l.read(); !ok || got != int(step) {
			t.Errorf("%d more, up to %d: %v, %d entries", step, seq, ok, got)
		}
	}
	expect.Equal(t, len(l.ring), ringSize, "keys in the ring")
}
