package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/ironvip/ironvip/internal/fleet/consulkv"
)

// Hosts follow the log, because a blocking query on the tree itself would return all of it after
// every change. The log is one sequence of entries, numbered without gaps. Each transaction appends
// one entry, which names its writes. All writes of a transaction have the same index, so the
// entry's index is also theirs.
//
// The newest entry is the head. A transaction requires the head that its writer knows, so writers
// that collide are refused, follow the log, and try again. Every host holds one blocking query for
// the head alone: a change costs a host one small answer, whatever the number of writers.
//
// An entry has the index of the one before it, so readers notice a missed entry or a restored
// snapshot. The last entries are kept in a ring, for readers that didn't see each one as the
// head. An entry that is too large for a head is only in the ring. The ring is overwritten in turn:
// removing old entries would leave a tombstone of each in Consul for 15 minutes.
type logEntry struct {
	Version int        `json:"v"`
	Seq     uint64     `json:"seq"`              // the number, from 1
	Before  uint64     `json:"before,omitempty"` // the index of the entry before it; 0 for the first
	ID      string     `json:"id"`               // of the transaction, unique
	Node    string     `json:"node"`             // the writer, for people
	Ring    bool       `json:"ring,omitempty"`   // of a head: the writes are only in the ring
	Writes  []logWrite `json:"writes,omitempty"`
	// Digests are those of the tree before this entry, by folder.
	Digests map[string]digest `json:"digests,omitempty"`
}

// logWrite is one write, with exactly one of the four fields after Path.
type logWrite struct {
	Path  string  `json:"path"`
	Text  *string `json:"text,omitempty"`
	Bytes []byte  `json:"bytes,omitempty"` // of a value that isn't UTF-8
	Gone  bool    `json:"gone,omitempty"`
	Fetch bool    `json:"fetch,omitempty"` // too large for the log, or unknown to the writer: read the key
}

// logVersion can't change without the version of the layout: a release that doesn't know it would
// take the head for junk and overwrite it.
const logVersion = 1

// Bounds of the log. A reader that has missed more than ringSize entries reads the whole tree.
const (
	maxHead      = 4 << 10  // bytes of a head
	maxInline    = 16 << 10 // bytes of a value that is repeated in the log
	maxEntry     = 32 << 10 // bytes of values in an entry
	maxEntryText = 48 << 10 // bytes of an entry
	ringSize     = 64       // entries that are kept
	segmentSize  = 8        // entries that are read with one request
)

// position is a place in the log: that of an entry. The zero position is before the first one.
type position struct {
	seq, index uint64
	id         string // of the transaction
}

// entry is a decoded entry of the log.
type entry struct {
	position
	before  uint64 // the index of the one before it; 0 for the first
	ring    bool   // it is a head, and its changes are only in the ring
	changes []change
	digests map[string]digest // of the tree before it, by folder; nil for most entries
}

// encodeEntry encodes an entry after a position, and its head. Values that don't fit are only
// named.
func encodeEntry(node, id string, after position, changes []change, digests map[string]digest) (head, whole []byte) {
	e := logEntry{Version: logVersion, Seq: after.seq + 1, Before: after.index, ID: id, Node: node, Writes: make([]logWrite, 0, len(changes)), Digests: digests}
	room := maxEntry
	for _, c := range changes {
		w := logWrite{Path: c.path}
		switch {
		case c.fetch || len(c.value) > maxInline || len(c.value) > room:
			w.Fetch = true
		case c.value == nil:
			w.Gone = true
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
				e.Writes[i] = logWrite{Path: e.Writes[i].Path, Fetch: true}
			}
		}
		whole = marshalEntry(e)
	}
	if len(whole) <= maxHead {
		return whole, whole
	}
	e.Ring, e.Writes, e.Digests = true, nil, nil
	return marshalEntry(e), whole
}

func marshalEntry(e logEntry) []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic("fleet: log entry: " + err.Error()) // strings, numbers and bytes
	}
	return text
}

// decodeEntry decodes an entry with the given index.
func decodeEntry(text []byte, index uint64) (entry, error) {
	var e logEntry
	if err := json.Unmarshal(text, &e); err != nil {
		return entry{}, fmt.Errorf("log entry invalid: %w", err)
	}
	if e.Version != logVersion {
		return entry{}, fmt.Errorf("log version %d not supported: this release reads %d", e.Version, logVersion)
	}
	if e.Seq == 0 {
		return entry{}, errors.New("log entry invalid: it has no seq")
	}
	if e.Ring && len(e.Writes) > 0 {
		return entry{}, errors.New("log entry invalid: it has both ring and writes")
	}
	out := entry{position: position{e.Seq, index, e.ID}, before: e.Before, ring: e.Ring, digests: e.Digests}
	for i, w := range e.Writes {
		c := change{path: w.Path, index: index, fetch: w.Fetch}
		ways := 0
		for _, way := range []bool{w.Text != nil, w.Bytes != nil, w.Gone, w.Fetch} {
			if way {
				ways++
			}
		}
		if ways != 1 || w.Path == "" {
			return entry{}, fmt.Errorf("log entry invalid: write %d has no path, or not exactly one value", i)
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

// newestAfter decodes the head, which is nil if the key doesn't exist. It returns nil if the reader
// at a position already has it. An entry that can't be decoded is reported when the whole tree is
// read.
func newestAfter(at position, head *consulkv.Pair) (newest *entry, v verdict) {
	if head == nil && at.index == 0 {
		return nil, inStep
	}
	if head == nil {
		return nil, lost
	}
	e, err := decodeEntry(head.Value, head.Index)
	switch {
	case err == nil && e.position == at, err != nil && head.Index == at.index:
		return nil, inStep
	case err != nil, e.index < at.index, e.seq <= at.seq, e.seq-at.seq > ringSize:
		return nil, lost
	}
	return &e, inStep
}

// addEntries decodes pairs of the ring. What can't be decoded counts as missing.
func (p paths) addEntries(ring map[uint64]entry, pairs []consulkv.Pair) {
	for _, pair := range pairs {
		if e, err := decodeEntry(pair.Value, pair.Index); err == nil && p.slot(e.seq) == pair.Key {
			ring[e.seq] = e
		}
	}
}

// chain returns the entries after a position, up to the newest one. It takes the ones before it
// from the ring, and verifies that each follows the one before it.
func chain(at position, newest *entry, ring map[uint64]entry) (out []entry, v verdict) {
	for before, seq := at.index, at.seq+1; seq <= newest.seq; seq++ {
		e := *newest
		if seq < newest.seq || newest.ring {
			var there bool
			if e, there = ring[seq]; !there || e.ring {
				return nil, lost
			}
		}
		if e.before != before {
			return nil, lost
		}
		before, out = e.index, append(out, e)
	}
	if out[len(out)-1].index != newest.index {
		return nil, lost
	}
	return out, inStep
}

// newestChanges returns the last change of each path, in order.
func newestChanges(entries []entry) (changes []change) {
	for _, e := range entries {
		changes = append(changes, e.changes...)
	}
	last := make(map[string]int, len(changes))
	for i, c := range changes {
		last[c.path] = i
	}
	i := -1
	return slices.DeleteFunc(changes, func(c change) bool { i++; return last[c.path] != i })
}
