package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// The journal is what hosts follow, because a blocking query on the tree itself
// would return all of it after every change. Each transaction adds one entry to
// it that names what it wrote. All writes of a transaction have the same
// index, so an entry's own index is that of the values it names.
//
// A lane is one writer's row of entries, numbered without holes; a writer that
// can't tell whether its last transaction has happened begins another lane. An
// entry names the index of the one before it, so that readers see whether they
// have missed one, or somebody has restored a snapshot.
//
// The newest entry of each lane is its head, and the heads are all that hosts
// watch: every answer has every one of them. The last few entries are kept beside,
// for who was too slow to see each of them as the head, and those that are too
// large for a head are there alone. They take a few slots in turn: to remove old
// ones instead would leave Consul with a tombstone of each for 15 minutes.
type journalEntry struct {
	Version int            `json:"v"`
	Seq     uint64         `json:"seq"`              // its number in the lane, from 1
	Before  uint64         `json:"before,omitempty"` // the index of the entry before it; 0 for the first
	Node    string         `json:"node"`             // who writes, for people
	Slot    bool           `json:"slot,omitempty"`   // of a head: the writes are in the slot alone
	Writes  []journalWrite `json:"writes,omitempty"`
}

// journalWrite names a path and says what has become of it in one of four ways.
type journalWrite struct {
	Path  string  `json:"path"`
	Text  *string `json:"text,omitempty"`
	Bytes []byte  `json:"bytes,omitempty"` // of a value that isn't UTF-8
	Gone  bool    `json:"gone,omitempty"`
	Fetch bool    `json:"fetch,omitempty"` // too large to be repeated here
}

const journalVersion = 1

// Bounds of the journal. A reader that hasn't looked while more than these were
// written reads the whole tree instead.
const (
	maxHead      = 4 << 10   // bytes of a head
	maxInline    = 32 << 10  // bytes of a value that is repeated in the journal
	maxEntry     = 64 << 10  // bytes of values in an entry
	maxEntryText = 96 << 10  // bytes of an entry
	laneSlots    = 16        // entries of a lane that are kept
	maxLaneBytes = 512 << 10 // bytes of a lane
)

// encodeEntry writes an entry, and as much of it as goes into the lane's head;
// values that it has no room for are only named.
func encodeEntry(node string, seq, before uint64, changes []change) (head, whole []byte) {
	e := journalEntry{Version: journalVersion, Seq: seq, Before: before, Node: node, Writes: make([]journalWrite, 0, len(changes))}
	room := maxEntry
	for _, c := range changes {
		w := journalWrite{Path: c.path}
		switch {
		case c.value == nil:
			w.Gone = true
		case len(c.value) > maxInline || len(c.value) > room:
			w.Fetch = true
		case utf8.Valid(c.value):
			text := string(c.value)
			w.Text = &text
		default:
			w.Bytes = c.value
		}
		if !w.Fetch {
			room -= len(c.value)
		}
		e.Writes = append(e.Writes, w)
	}
	whole = marshalEntry(e)
	if len(whole) > maxEntryText { // a lot had to be escaped
		for i := range e.Writes {
			if !e.Writes[i].Gone {
				e.Writes[i] = journalWrite{Path: e.Writes[i].Path, Fetch: true}
			}
		}
		whole = marshalEntry(e)
	}
	if len(whole) <= maxHead {
		return whole, whole
	}
	e.Slot, e.Writes = true, nil
	return marshalEntry(e), whole
}

func marshalEntry(e journalEntry) []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic("fleet: journal entry: " + err.Error()) // strings, numbers and bytes
	}
	return text
}

// entry is one of the journal as it was read.
type entry struct {
	seq, index uint64
	before     uint64 // the index of the one before it; 0: it is the lane's first
	slot       bool   // it is a head, and its changes are in its slot alone
	changes    []change
}

// decodeEntry reads an entry that has that index.
func decodeEntry(text []byte, index uint64) (entry, error) {
	var e journalEntry
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, fmt.Errorf("not an entry of the journal: %w", err)
	}
	if e.Version != journalVersion {
		return entry{}, fmt.Errorf("version %d of the journal is not known here, only %d", e.Version, journalVersion)
	}
	if e.Seq == 0 || (e.Seq == 1) != (e.Before == 0) {
		return entry{}, errors.New("an entry of the journal doesn't say which one it is, or which is before it")
	}
	if e.Slot && len(e.Writes) > 0 {
		return entry{}, errors.New("an entry of the journal has writes and says that they are elsewhere")
	}
	out := entry{seq: e.Seq, index: index, before: e.Before, slot: e.Slot}
	for i, w := range e.Writes {
		c := change{path: w.Path, index: index, fetch: w.Fetch}
		ways := 0
		for _, way := range []bool{w.Text != nil, w.Bytes != nil, w.Gone, w.Fetch} {
			if way {
				ways++
			}
		}
		if ways != 1 || w.Path == "" {
			return entry{}, fmt.Errorf("write %d of the journal's entry has no path, or not one value", i)
		}
		switch {
		case w.Text != nil:
			c.value = []byte(*w.Text)
		case w.Bytes != nil:
			c.value = w.Bytes
		}
		out.changes = append(out.changes, c)
	}
	return out, nil
}

// newest leaves the last change of each path, in order.
func newest(changes []change) []change {
	last := make(map[string]int, len(changes))
	for i, c := range changes {
		last[c.path] = i
	}
	i := -1
	return slices.DeleteFunc(changes, func(c change) bool { i++; return last[c.path] != i })
}
