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
)

func FuzzJournalEntry(f *testing.F) {
	f.Add([]byte(`{"v":1,"seq":4,"before":3,"node":"a","writes":[{"path":"a/x","text":"1"},{"path":"a/y","gone":true},{"path":"a/z","fetch":true},{"path":"a/b","bytes":"/w=="}]}`))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"seq":1,"writes":[{"path":"","text":""}]}`))
	head, whole := encodeEntry("n", 2, 1, []change{{path: "a/x", value: []byte{0xff}}, {path: "a/y", value: []byte{}}, {path: "b/z"}, {path: "b/y", value: make([]byte, maxHead)}})
	f.Add(head)
	f.Add(whole)
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := decodeEntry(text, 7)
		if err != nil || e.slot {
			return
		}
		head, whole := encodeEntry("n", e.seq, e.before, e.changes)
		for _, part := range [][]byte{head, whole} {
			again, err := decodeEntry(part, 7)
			if err != nil || again.seq != e.seq || again.before != e.before || again.index != 7 || !again.slot && len(again.changes) != len(e.changes) {
				t.Fatalf("%+v: %v", again, err)
			}
			for i, c := range again.changes {
				was := e.changes[i]
				if was.fetch { // written as a removal: nobody writes what it must fetch
					continue
				}
				if c.path != was.path || !c.fetch && (!bytes.Equal(c.value, was.value) || (c.value == nil) != (was.value == nil)) || c.index != 7 {
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

func FuzzHeadKey(f *testing.F) {
	f.Add("p/v1/journal/stream")
	f.Add("p/v1/journal/stream/1")
	f.Add("p/v1/journal/")
	f.Fuzz(func(t *testing.T, key string) {
		p := newPaths("p")
		if stream, ok := p.parseHead(key); ok && (p.head(stream) != key || strings.Contains(stream, "/")) {
			t.Errorf("%q is the head of %q", key, stream)
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
			if head, whole := encodeEntry("n", 1, 0, changes); len(whole) > maxEntryText || len(head) > maxHead {
				t.Errorf("%s: %d bytes, of which %d in the head", name, len(whole), len(head))
			}
		}
	}
}

// journal is one stream in the form of its writer, and a reader of it.
type journal struct {
	t       *testing.T
	paths   paths
	heads   map[string]Pair
	slots   map[string]Pair
	streams streams
	seen    uint64 // the reader's cursor
}

func newJournal(t *testing.T) *journal {
	return &journal{t: t, paths: newPaths("p"), heads: map[string]Pair{}, slots: map[string]Pair{}}
}

// write adds an entry, of the size that has a head of its own or not.
func (j *journal) write(stream string, seq, index, before uint64, large bool) {
	value := []byte("v")
	if large {
		value = make([]byte, 2*maxHead)
	}
	head, whole := encodeEntry("n", seq, before, []change{{path: "a/x", value: value}})
	j.heads[stream] = Pair{Key: j.paths.head(stream), Index: index, Value: head}
	slot := j.paths.slot(stream, seq)
	j.slots[slot] = Pair{Key: slot, Index: index, Value: whole}
}

// row adds entries with consecutive numbers, each at the index of ten times its number.
func (j *journal) row(from, to uint64, large bool) {
	for seq := from; seq <= to; seq++ {
		j.write("l", seq, 10*seq, 10*(seq-1), large)
	}
}

// look returns a reader's results: the verdict, the number of changes, and the number of streams
// with slots that it has read.
func (j *journal) look() (v verdict, changes, lists int) {
	j.t.Helper()
	n, v := j.streams.read(j.paths, slices.Collect(maps.Values(j.heads)), j.seen, ownHead{}, time.Now())
	for _, g := range n.gaps {
		if v == inStep {
			lists++
			v = n.fill(j.paths, g, slices.Collect(maps.Values(j.slots)))
		}
	}
	n.order()
	for i := 1; i < len(n.changes); i++ {
		if v == inStep && n.changes[i].index <= n.changes[i-1].index {
			j.t.Errorf("changes %d and %d are of %d and %d", i-1, i, n.changes[i-1].index, n.changes[i].index)
		}
	}
	for _, p := range j.heads {
		j.seen = max(j.seen, p.Index)
	}
	return v, len(n.changes), lists
}

// The verdict of a reader that knows entries 4 and 5 of a stream, at 40 and 50.
func TestStreamVerdicts(t *testing.T) {
	for name, c := range map[string]struct {
		then  func(j *journal)
		want  verdict
		news  int
		lists int
	}{
		"nothing new":                 {func(j *journal) {}, inStep, 0, 0},
		"next":                        {func(j *journal) { j.row(6, 6, false) }, inStep, 1, 0},
		"next, large":                 {func(j *journal) { j.row(6, 6, true) }, inStep, 1, 1},
		"next three":                  {func(j *journal) { j.row(6, 8, false) }, inStep, 3, 1},
		"next three, large":           {func(j *journal) { j.row(6, 8, true) }, inStep, 3, 1},
		"as many as are kept":         {func(j *journal) { j.row(6, 5+streamSlots, true) }, inStep, streamSlots, 1},
		"more than are kept":          {func(j *journal) { j.row(6, 6+streamSlots, false) }, missed, 0, 0},
		"trimmed unread":              {func(j *journal) { j.row(6, 8, false); delete(j.slots, j.paths.slot("l", 6)) }, missed, 0, 1},
		"head gone":                   {func(j *journal) { delete(j.heads, "l") }, restored, 0, 0},
		"older than known":            {func(j *journal) { j.write("l", 4, 40, 30, false) }, restored, 0, 0},
		"older, written later":        {func(j *journal) { j.write("l", 4, 60, 30, false) }, restored, 0, 0},
		"written again":               {func(j *journal) { j.write("l", 5, 55, 40, false) }, restored, 0, 0},
		"next of another past":        {func(j *journal) { j.write("l", 6, 60, 51, false) }, restored, 0, 0},
		"next of another past, large": {func(j *journal) { j.write("l", 6, 60, 51, true) }, restored, 0, 1},
		"a gap of another past":       {func(j *journal) { j.write("l", 6, 60, 51, false); j.row(7, 7, false) }, restored, 0, 1},
		"a slot of another past":      {func(j *journal) { j.row(6, 6, false); j.write("l", 7, 70, 61, false) }, restored, 0, 1},
		"a large head of another past": {func(j *journal) {
			j.row(6, 6, true)
			p := j.slots[j.paths.slot("l", 6)]
			p.Index = 59
			j.slots[p.Key] = p
		}, restored, 0, 1},
		"not later than what was read": {func(j *journal) { j.write("l", 6, 45, 50, false) }, restored, 0, 0},
		"a slot of another entry": {func(j *journal) {
			j.row(6, 7, false)
			p := j.slots[j.paths.slot("l", 6)]
			p.Key = j.paths.slot("l", 7)
			j.slots = map[string]Pair{p.Key: p}
		}, missed, 0, 1},
		"a slot that only points": {func(j *journal) {
			j.row(6, 6, true)
			p := j.slots[j.paths.slot("l", 6)]
			p.Value = j.heads["l"].Value
			j.slots[p.Key] = p
		}, missed, 0, 1},
		"junk in a slot": {func(j *journal) {
			j.slots["p/v1/slots/l/x"] = Pair{Key: "p/v1/slots/l/x", Index: 55}
			j.row(6, 7, false)
		}, inStep, 2, 1},
		"junk far ahead":                {func(j *journal) { j.write("l", 1<<63, 70, 60, false) }, missed, 0, 0},
		"another stream from the start": {func(j *journal) { j.write("m", 1, 60, 0, false) }, inStep, 1, 0},
		"another stream, further on":    {func(j *journal) { j.write("m", 1, 60, 0, true); j.write("m", 2, 70, 60, false) }, inStep, 2, 1},
		"another stream, trimmed":       {func(j *journal) { j.write("m", 9, 60, 55, false) }, missed, 0, 1},
		"another stream of the past":    {func(j *journal) { j.write("m", 1, 45, 0, false) }, restored, 0, 0},
		"can't be read":                 {func(j *journal) { j.heads["l"] = Pair{Key: j.paths.head("l"), Index: 60, Value: []byte("?")} }, missed, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJournal(t)
			j.row(4, 5, false)
			j.look()
			c.then(j)
			v, changes, lists := j.look()
			if v != c.want || v == inStep && changes != c.news || lists != c.lists {
				t.Errorf("verdict %d, %d changes, %d lists", v, changes, lists)
			}
		})
	}
}

// An unreadable head is reported, and ignored once it is repaired.
func TestHeadThatCantBeRead(t *testing.T) {
	j := newJournal(t)
	j.row(4, 5, false)
	good := j.heads["l"]
	j.heads["l"] = Pair{Key: good.Key, Index: 60, Value: []byte("?")}
	for range 2 {
		n, _ := j.streams.read(j.paths, slices.Collect(maps.Values(j.heads)), 60, ownHead{}, time.Now())
		if n.junk[good.Key] == nil {
			t.Error("not named")
		}
	}
	good.Index = 70
	j.heads["l"] = good
	if v, _, _ := j.look(); v != missed {
		t.Errorf("verdict %d", v)
	}
	if v, _, _ := j.look(); v != inStep {
		t.Errorf("verdict %d of the same again", v)
	}
}

// Slots are reused in turn. A reader gets each entry once, for any number of entries between its
// reads up to the number of slots.
func TestSlotsAreTakenInTurn(t *testing.T) {
	j := newJournal(t)
	j.row(1, 1, false)
	j.look()
	seq := uint64(1)
	for _, step := range []uint64{1, 1, streamSlots - 2, 5, streamSlots, 1, streamSlots, streamSlots - 1} {
		j.row(seq+1, seq+step, seq%2 == 0)
		seq += step
		if v, changes, _ := j.look(); v != inStep || changes != int(step) {
			t.Errorf("%d more, up to %d: verdict %d, %d changes", step, seq, v, changes)
		}
	}
	if len(j.slots) != streamSlots {
		t.Errorf("%d slots", len(j.slots))
	}
}

// This host's own writes are in its tables, and its head isn't read again. Its next write is
// handled as usual.
func TestOwnHeadIsKnown(t *testing.T) {
	j := newJournal(t)
	j.row(4, 5, false)
	j.look()
	j.row(6, 9, true)
	read := func(own ownHead) (news, verdict) {
		return j.streams.read(j.paths, slices.Collect(maps.Values(j.heads)), j.seen, own, time.Now())
	}
	if n, v := read(ownHead{"l", 9, 90}); v != inStep || len(n.changes) != 0 || len(n.gaps) != 0 {
		t.Errorf("verdict %d, %+v", v, n)
	}
	j.row(10, 10, false)
	if n, v := read(ownHead{"l", 9, 90}); v != inStep || len(n.changes) != 1 || len(n.gaps) != 0 {
		t.Errorf("verdict %d, %+v", v, n)
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
