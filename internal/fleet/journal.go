package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// Hosts follow the journal, because a blocking query on the tree itself would return all of it
// after every change. Each transaction adds one entry to the journal, which names its writes. All
// writes of a transaction have the same index, so the entry's index is also theirs.
//
// A stream is the sequence of one writer's entries, numbered without gaps. A writer that doesn't
// know the outcome of its last transaction begins another stream. An entry has the index of the
// one before it, so readers notice a missed entry or a restored snapshot.
//
// The newest entry of each stream is its head. Hosts watch only the heads, and every answer
// has all of them. The last few entries are kept in slots, for readers that didn't see each one as
// the head. An entry that is too large for a head is only in its slot. Slots are a ring: removing
// old entries would leave a tombstone of each in Consul for 15 minutes.
type journalEntry struct {
	Version int            `json:"v"`
	Seq     uint64         `json:"seq"`              // the number in the stream, from 1
	Before  uint64         `json:"before,omitempty"` // the index of the entry before it; 0 for the first
	Node    string         `json:"node"`             // the writer, for people
	Slot    bool           `json:"slot,omitempty"`   // of a head: the writes are only in the slot
	Writes  []journalWrite `json:"writes,omitempty"`
}

// journalWrite is one write, with exactly one of the four fields after Path.
type journalWrite struct {
	Path  string  `json:"path"`
	Text  *string `json:"text,omitempty"`
	Bytes []byte  `json:"bytes,omitempty"` // of a value that isn't UTF-8
	Gone  bool    `json:"gone,omitempty"`
	Fetch bool    `json:"fetch,omitempty"` // too large for the journal: read the key
}

const journalVersion = 1

// Bounds of the journal. A reader that has missed more than these reads the whole tree.
const (
	maxHead        = 4 << 10   // bytes of a head
	maxInline      = 32 << 10  // bytes of a value that is repeated in the journal
	maxEntry       = 64 << 10  // bytes of values in an entry
	maxEntryText   = 96 << 10  // bytes of an entry
	streamSlots    = 16        // entries of a stream that are kept
	maxStreamBytes = 512 << 10 // bytes of a stream
)

// encodeEntry encodes an entry, and the stream's head for it. Values that don't fit are only
// named.
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
	if len(whole) > maxEntryText { // escaping has made it longer
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

// entry is a decoded entry of the journal.
type entry struct {
	seq, index uint64
	before     uint64 // the index of the one before it; 0 for the stream's first
	slot       bool   // it is a head, and its changes are only in its slot
	changes    []change
}

// decodeEntry decodes an entry with the given index.
func decodeEntry(text []byte, index uint64) (entry, error) {
	var e journalEntry
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, fmt.Errorf("journal entry invalid: %w", err)
	}
	if e.Version != journalVersion {
		return entry{}, fmt.Errorf("journal version %d not supported: this release reads %d", e.Version, journalVersion)
	}
	if e.Seq == 0 || (e.Seq == 1) != (e.Before == 0) {
		return entry{}, errors.New("journal entry invalid: seq and before don't match")
	}
	if e.Slot && len(e.Writes) > 0 {
		return entry{}, errors.New("journal entry invalid: it has both slot and writes")
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
			return entry{}, fmt.Errorf("journal entry invalid: write %d has no path, or not exactly one value", i)
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

// newest keeps the last change of each path, in order.
func newest(changes []change) []change {
	last := make(map[string]int, len(changes))
	for i, c := range changes {
		last[c.path] = i
	}
	i := -1
	return slices.DeleteFunc(changes, func(c change) bool { i++; return last[c.path] != i })
}
