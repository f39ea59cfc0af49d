package fleet

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
)

func FuzzLogEntry(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":4,"before":3,"id":"a-1","node":"a","writes":[{"path":"a/x","text":"1"},{"path":"a/y","gone":true},{"path":"a/z","fetch":true},{"path":"a/b","bytes":"/w=="}]}`))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"seq":1,"writes":[{"path":"","text":""}]}`))
	head, whole := encodeEntry("n", "n-1", position{seq: 1, index: 1}, []change{{path: "a/x", value: []byte{0xff}}, {path: "a/y", value: []byte{}}, {path: "b/z"}, {path: "b/y", value: make([]byte, maxHead)}, {path: "b/f", fetch: true}}, nil)
	f.Add(head)
	f.Add(whole)
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := decodeEntry(text, 7)
		if err != nil || e.ring {
			return
		}
		head, whole := encodeEntry("n", e.id, position{seq: e.seq - 1, index: e.before}, e.changes, nil)
		for _, part := range [][]byte{head, whole} {
			again, err := decodeEntry(part, 7)
			if err != nil || again.position != e.position || again.before != e.before || !again.ring && len(again.changes) != len(e.changes) {
				t.Fatalf("%+v: %v", again, err)
			}
			for i, c := range again.changes {
				was := e.changes[i]
				if c.path != was.path || was.fetch && !c.fetch || !c.fetch && (!bytes.Equal(c.value, was.value) || (c.value == nil) != (was.value == nil)) || c.index != 7 {
					t.Errorf("%+v became %+v", was, c)
				}
			}
		}
	})
}

func FuzzMark(f *testing.F) {
	f.Add([]byte(encodeMark("ABC")))
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeMark(text)
		if err == nil && m.Fleet == "" {
			t.Error("a fleet without a name")
		}
	})
}

// Decoding a value at once and step by step gives the same result.
func FuzzValue(f *testing.F) {
	for _, text := range []string{
		`{"v":1,"value":{"name":"x","more":[{"at":"2026-01-02T03:04:05Z","n":3}]}}`,
		`{"v":1,"value":{"name":"x"}} {}`,
		`{"v":1,"value":{"name":"x"}} `,
		`{"v":1,"value":{"name":"x"},"value":{"more":null}}`,
		`{"v":1,"value":{"name":"x","name":"y"},"of":"a newer release"}`,
		`{"V":1,"Value":{"NAME":"x"}}`,
		`{"v":1,"value":{"of":{"a":1e300,"b":null},"by":{"::1":["2026-01-02T03:04:05+01:00"]},"raw":"/w==","yes":true}}`,
		`{"v":1,"value":{"of":{"a":1,"a":2},"by":{"192.0.2.1":[],"192.0.2.01":null},"raw":null,"yes":null,"name":null}}`,
		`{"v":1,"value":{"name":"é","raw":"/w","by":{}}}`,
		`{"v":1,"value":{"name":"\ud800ÿ","odd":1}}`,
		`{"v":null,"value":{}}`,
		`{"v":2,"value":{}}`,
		`{"v":1,"value":null}`,
		`{"v":1,"value":{"more":[{"n":1e2}]}}`,
		`{"v":1,"value":{"more":[{"n":1,"n":2},null]}}`,
	} {
		f.Add([]byte(text))
	}
	type value struct {
		Name string                     `json:"name"`
		Of   map[string]*float64        `json:"of,omitempty"`
		By   map[netip.Addr][]time.Time `json:"by"`
		Raw  []byte                     `json:"raw"`
		Yes  bool                       `json:"yes"`
		More []struct {
			At *time.Time `json:"at"`
			N  int        `json:"n"`
		} `json:"more"`
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := decodeValue[value](text, 1)
		want, wantErr := explainValue[value](text, 1)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || err == nil && !reflect.DeepEqual(*got, want) {
			t.Errorf("%s is %+v, %v; step by step %+v, %v", text, got, err, want, wantErr)
		}
	})
}

// The size of an entry is bounded for all values, and that of its head has a smaller bound.
func TestEntryIsBounded(t *testing.T) {
	for name, value := range map[string]string{"text": "x", "escaped": "\x01", "bytes": "\xff", "html": "<"} {
		for _, each := range []int{10, 30, 2000} {
			var changes []change
			for range MaxBatch {
				changes = append(changes, change{path: "a/" + strings.Repeat("k", 100), value: []byte(strings.Repeat(value, each))})
			}
			if head, whole := encodeEntry("n", "n-1", position{}, changes, nil); len(whole) > maxEntryText || len(head) > maxHead {
				t.Errorf("%s: %d bytes, of which %d in the head", name, len(whole), len(head))
			}
		}
	}
}

// testLog is a log in the form of its writers, and a reader of it.
type testLog struct {
	t     *testing.T
	paths paths
	head  *consulkv.Pair
	ring  map[string]consulkv.Pair
	at    position // the reader's
}

func newTestLog(t *testing.T) *testLog {
	return &testLog{t: t, paths: newPaths("p"), ring: map[string]consulkv.Pair{}}
}

// write adds an entry, of the size that fits into a head or not.
func (l *testLog) write(seq, index, before uint64, large bool) {
	value := []byte("v")
	if large {
		value = bytes.Repeat([]byte("v"), 2*maxHead)
	}
	head, whole := encodeEntry("n", fmt.Sprint("n-", index), position{seq: seq - 1, index: before}, []change{{path: "a/x", value: value}}, nil)
	l.head = &consulkv.Pair{Key: l.paths.head, Index: index, Value: head}
	slot := l.paths.slot(seq)
	l.ring[slot] = consulkv.Pair{Key: slot, Index: index, Value: whole}
}

// row writes entries with these numbers, at ten times these indexes.
func (l *testLog) row(from, to uint64, large bool) {
	for seq := from; seq <= to; seq++ {
		l.write(seq, 10*seq, 10*(seq-1), large)
	}
}

// read returns a reader's verdict, and the entries that it has received.
func (l *testLog) read() (v verdict, got int) {
	l.t.Helper()
	newest, v := newestAfter(l.at, l.head)
	if newest == nil {
		return v, 0
	}
	ring := map[uint64]entry{}
	l.paths.addEntries(ring, slices.Collect(maps.Values(l.ring)))
	entries, v := chain(l.at, newest, ring)
	if v == inStep {
		l.at = entries[len(entries)-1].position
	}
	return v, len(entries)
}

// The verdict of a reader that knows entries 4 and 5, at 40 and 50.
func TestLogVerdicts(t *testing.T) {
	slot := func(l *testLog, seq uint64) consulkv.Pair { return l.ring[l.paths.slot(seq)] }
	for name, c := range map[string]struct {
		then func(l *testLog)
		want verdict
		news int
	}{
		"next":                        {func(l *testLog) { l.row(6, 6, false) }, inStep, 1},
		"nothing":                     {func(*testLog) {}, inStep, 0},
		"next, large":                 {func(l *testLog) { l.row(6, 6, true) }, inStep, 1},
		"next three":                  {func(l *testLog) { l.row(6, 8, false) }, inStep, 3},
		"next three, large":           {func(l *testLog) { l.row(6, 8, true) }, inStep, 3},
		"as many as are kept":         {func(l *testLog) { l.row(6, 5+ringSize, true) }, inStep, ringSize},
		"more than are kept":          {func(l *testLog) { l.row(6, 6+ringSize, false) }, lost, 0},
		"one is not in the ring":      {func(l *testLog) { l.row(6, 8, false); delete(l.ring, l.paths.slot(6)) }, lost, 0},
		"head removed":                {func(l *testLog) { l.head = nil }, lost, 0},
		"older than known":            {func(l *testLog) { l.write(4, 40, 30, false) }, lost, 0},
		"older, written later":        {func(l *testLog) { l.write(4, 60, 30, false) }, lost, 0},
		"written again":               {func(l *testLog) { l.write(5, 55, 40, false) }, lost, 0},
		"next of another past":        {func(l *testLog) { l.write(6, 60, 51, false) }, lost, 0},
		"next of another past, large": {func(l *testLog) { l.write(6, 60, 51, true) }, lost, 0},
		"a gap of another past":       {func(l *testLog) { l.write(6, 60, 51, false); l.row(7, 7, false) }, lost, 0},
		"an entry of another past":    {func(l *testLog) { l.row(6, 6, false); l.write(7, 70, 61, false) }, lost, 0},
		"a large head of another past": {func(l *testLog) {
			l.row(6, 6, true)
			p := slot(l, 6)
			p.Index = 59
			l.ring[p.Key] = p
		}, lost, 0},
		"not later than what was read": {func(l *testLog) { l.write(6, 45, 50, false) }, lost, 0},
		"another entry in the place of one": {func(l *testLog) {
			l.row(6, 7, false)
			p := slot(l, 6)
			p.Key = l.paths.slot(7)
			l.ring = map[string]consulkv.Pair{p.Key: p}
		}, lost, 0},
		"an entry that only points to the ring": {func(l *testLog) {
			l.row(6, 6, true)
			p := slot(l, 6)
			p.Value = l.head.Value
			l.ring[p.Key] = p
		}, lost, 0},
		"junk in the ring": {func(l *testLog) {
			l.ring["p/v2/log/ring/0/x"] = consulkv.Pair{Key: "p/v2/log/ring/0/x", Index: 55}
			l.row(6, 7, false)
		}, inStep, 2},
		"junk far ahead":         {func(l *testLog) { l.write(1<<63, 70, 60, false) }, lost, 0},
		"a head that isn't read": {func(l *testLog) { l.head = &consulkv.Pair{Key: l.paths.head, Index: 60, Value: []byte("?")} }, lost, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLog(t)
			l.row(4, 5, false)
			l.at = positionOf(l.head)
			c.then(l)
			if v, news := l.read(); v != c.want || v == inStep && news != c.news {
				t.Errorf("verdict %d, %d entries", v, news)
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
		if v, got := l.read(); v != inStep || got != int(step) {
			t.Errorf("%d more, up to %d: verdict %d, %d entries", step, seq, v, got)
		}
	}
	if len(l.ring) != ringSize {
		t.Errorf("%d keys in the ring", len(l.ring))
	}
}

func TestTombstonesAreDropped(t *testing.T) {
	g := tombstones{index: map[string]uint64{}}
	g.add("a", 1)
	g.add("b", 2)
	g.add("a", 3)
	g.drop(2)
	if len(g.index) != 1 || g.index["a"] != 3 || len(g.queue) != 1 {
		t.Errorf("%+v", g)
	}
	g.drop(3)
	if len(g.index) != 0 || len(g.queue) != 0 {
		t.Errorf("%+v", g)
	}
}
