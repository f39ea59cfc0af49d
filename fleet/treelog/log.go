// Package treelog is the format of the log of changes of the fleet's tree in the store. It is pure code
// without I/O.
package treelog

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
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
	Digests map[string]Digest `json:"digests,omitempty"`
	Cut     bool              `json:"cut,omitempty"`
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

// MaxEntry is how many bytes of values an entry repeats.
const MaxEntry = 32 << 10

// Other bounds of the log. A reader that has missed more than ringSize entries reads the whole tree.
const (
	maxHead      = 4 << 10  // bytes of a head
	maxInline    = 16 << 10 // bytes of a value that is repeated in the log
	maxEntryText = 48 << 10 // bytes of an entry
	ringSize     = 64       // entries that are kept
	segmentSize  = 8        // entries that are read with one request
)

// Change is a write or a removal of one path of the tree.
type Change struct {
	Path  string
	Value []byte // nil if the path was removed
	Index uint64 // of the write or removal, or up to which it was searched
	Fetch bool   // the value has to be read from the store
}

// Position is a place in the log: that of an entry. The zero Position is before the first one.
type Position struct {
	Seq, Index uint64
	ID         string // of the transaction
}

// Entry is a decoded entry of the log.
type Entry struct {
	Position
	Before uint64 // the index of the one before it; 0 for the first
	InRing bool   // it is a head, and its content is only in the ring
	Content
}

// Content is what an entry says.
type Content struct {
	Changes []Change
	Digests map[string]Digest // of the tree before the entry, by folder; nil for most entries
	// Cut ends the log for readers that have not reached it, so that they read the whole tree. More
	// was written without the log than it can name.
	Cut bool
}

// Encode encodes an entry after a position, and its head. Values that don't fit are only
// named.
func Encode(node, id string, after Position, content Content) (head, whole []byte) {
	e := logEntry{Version: logVersion, Seq: after.Seq + 1, Before: after.Index, ID: id, Node: node,
		Writes: make([]logWrite, 0, len(content.Changes)), Digests: content.Digests, Cut: content.Cut}
	room := MaxEntry
	for _, c := range content.Changes {
		w := logWrite{Path: c.Path}
		switch {
		case c.Fetch || len(c.Value) > maxInline || len(c.Value) > room:
			w.Fetch = true
		case c.Value == nil:
			w.Gone = true
		case utf8.Valid(c.Value):
			text := string(c.Value)
			w.Text = &text
		default:
			w.Bytes = c.Value
		}
		if !w.Fetch {
			room -= len(c.Value)
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
		panic("treelog: entry: " + err.Error()) // strings, numbers and bytes
	}
	return text
}

// Decode decodes an entry with the given index.
func Decode(text []byte, index uint64) (Entry, error) {
	var e logEntry
	if err := json.Unmarshal(text, &e); err != nil {
		return Entry{}, fmt.Errorf("log entry invalid: %w", err)
	}
	if e.Version != logVersion {
		return Entry{}, fmt.Errorf("log version %d not supported: this release reads %d", e.Version, logVersion)
	}
	if e.Seq == 0 {
		return Entry{}, errors.New("log entry invalid: it has no seq")
	}
	if e.Ring && len(e.Writes) > 0 {
		return Entry{}, errors.New("log entry invalid: it has both ring and writes")
	}
	out := Entry{Position: Position{e.Seq, index, e.ID}, Before: e.Before, InRing: e.Ring, Content: Content{Digests: e.Digests, Cut: e.Cut}}
	for i, w := range e.Writes {
		c := Change{Path: w.Path, Index: index, Fetch: w.Fetch}
		ways := 0
		for _, way := range []bool{w.Text != nil, w.Bytes != nil, w.Gone, w.Fetch} {
			if way {
				ways++
			}
		}
		if ways != 1 || w.Path == "" {
			return Entry{}, fmt.Errorf("log entry invalid: write %d has no path, or not exactly one value", i)
		}
		switch {
		case w.Text != nil:
			c.Value = []byte(*w.Text)
		case w.Bytes != nil:
			c.Value = w.Bytes
		}
		out.Changes = append(out.Changes, c)
	}
	return out, nil
}

// Latest returns the last change of each path, in order.
func Latest(entries []Entry) (changes []Change) {
	for _, e := range entries {
		changes = append(changes, e.Changes...)
	}
	last := make(map[string]int, len(changes))
	for i, c := range changes {
		last[c.Path] = i
	}
	i := -1
	return slices.DeleteFunc(changes, func(c Change) bool { i++; return last[c.Path] != i })
}
