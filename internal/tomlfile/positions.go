package tomlfile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip/spec/strict"
)

// maxDepth bounds the nesting of keys, arrays and inline tables. No file of the project needs more
// than six levels. The TOML reader uses stack for each level of an array, and cubic time for the
// dots of a key.
const maxDepth = 32

// positions is the line of each key and item of a TOML document, by the paths of package strict.
// The TOML reader gives no line for an unknown key or for a value out of bounds.
type positions map[string]int

// line returns the line of path, or of the nearest table or list around it, or 1.
func (p positions) line(path string) int {
	for ; path != ""; path = strict.Parent(path) {
		if n := p[path]; n > 0 {
			return n
		}
	}
	return 1
}

// depthError means that a document nests deeper than maxDepth.
type depthError struct{ line int }

func (e depthError) Error() string { return fmt.Sprintf("more than %d levels", maxDepth) }

// checkDepth returns a depthError for a document that nests too deep. At invalid TOML it stops
// without an error, because the TOML reader reports it. Check first, because only this bounds the
// depth.
func checkDepth(src []byte) error {
	s := newScanner(src, nil)
	for s.next() {
	}
	return s.err
}

// node is a table or value within the document.
type node struct {
	path  string
	depth int
}

// scanner reads a document from front to back, one header or entry with each call of next. Its
// methods need no results for failures: stop removes the rest of the document, and every loop ends
// with the document.
type scanner struct {
	src    []byte         // the rest of the document
	at     int            // its line
	lines  positions      // nil: only the depth matters, and nodes have no path
	arrays map[string]int // the number of [[headers]] of a path so far
	table  node           // of the last header
	err    error          // a depthError
}

// newScanner returns a scanner that records the lines in into. If it is nil, only the depth matters.
func newScanner(src []byte, into positions) *scanner {
	return &scanner{src: bytes.TrimPrefix(src, []byte("\ufeff")), at: 1, lines: into, arrays: map[string]int{}}
}

func (s *scanner) stop() { s.src = nil }

// found records the line of a path, at its first occurrence.
func (s *scanner) found(path string) {
	if s.lines == nil {
		return
	}
	if _, known := s.lines[path]; !known {
		s.lines[path] = s.at
	}
}

func (s *scanner) peek() byte {
	if len(s.src) == 0 {
		return 0
	}
	return s.src[0]
}

func (s *scanner) skip(n int) {
	s.at += bytes.Count(s.src[:n], []byte("\n"))
	s.src = s.src[n:]
}

// accept skips text if the document continues with it.
func (s *scanner) accept(text string) bool {
	found := bytes.HasPrefix(s.src, []byte(text))
	if found {
		s.skip(len(text))
	}
	return found
}

// expect skips blanks and text, or stops.
func (s *scanner) expect(text string) {
	if s.blanks(false); !s.accept(text) {
		s.stop()
	}
}

// blanks skips white space. If lines is set, it also skips line ends and comments.
func (s *scanner) blanks(lines bool) {
	for len(s.src) > 0 {
		switch c := s.src[0]; {
		case c == ' ' || c == '\t' || c == '\r' && (lines || len(s.src) > 1 && s.src[1] == '\n'):
			s.skip(1)
		case c == '\n' && lines:
			s.skip(1)
		case c == '#' && lines:
			s.skipTo("\n")
		default:
			return
		}
	}
}

// skipTo skips to the first of some characters, or to the end.
func (s *scanner) skipTo(chars string) {
	n := bytes.IndexAny(s.src, chars)
	if n < 0 {
		n = len(s.src)
	}
	s.skip(n)
}

// next reads the next header, or the next key and its value. It returns false at the end.
func (s *scanner) next() bool {
	s.blanks(true)
	if len(s.src) == 0 {
		return false
	}
	switch {
	case s.accept("[["):
		s.table = s.key(node{}, true)
		s.expect("]]")
	case s.accept("["):
		s.table = s.key(node{}, false)
		s.expect("]")
	default:
		s.entry(s.table)
	}
	return true
}

// entry reads a key in a table, and its value.
func (s *scanner) entry(table node) {
	key := s.key(table, false)
	s.expect("=")
	s.blanks(false)
	s.value(key)
}

// key reads a dotted key within a table. A key that passes through an array of tables means the
// array's last item so far. If item is set, the key is that of an [[item]] and adds one.
func (s *scanner) key(at node, item bool) node {
	for {
		s.blanks(false)
		part := s.part()
		s.deepen(&at)
		s.blanks(false)
		more := s.accept(".")
		if s.lines != nil {
			at.path = s.item(strict.Join(at.path, part), item && !more)
		}
		if !more {
			return at
		}
	}
}

// item records the line of a key, and returns the path that the key means. Another item is added to
// an array of tables if more is set.
func (s *scanner) item(path string, more bool) string {
	if more {
		s.arrays[path]++
	}
	s.found(path)
	if n := s.arrays[path]; n > 0 {
		path = strict.Index(path, n-1)
		s.found(path)
	}
	return path
}

// deepen adds a level to the depth of a node.
func (s *scanner) deepen(at *node) {
	if at.depth++; at.depth > maxDepth && s.err == nil {
		s.err = depthError{s.at}
		s.stop()
	}
}

// part reads one bare or quoted part of a key.
func (s *scanner) part() string {
	switch s.peek() {
	case '"':
		raw := s.quoted()
		if text, err := strconv.Unquote(raw); err == nil {
			return text
		}
		return strings.Trim(raw, `"`)
	case '\'':
		return strings.Trim(s.quoted(), "'")
	}
	rest := s.src
	s.skipTo(" \t\r\n.=[]{},#\"'")
	if len(s.src) == len(rest) {
		s.stop()
		return ""
	}
	return string(rest[:len(rest)-len(s.src)])
}

// quoted skips a string of any of the four kinds and returns its source.
func (s *scanner) quoted() string {
	all, quote := s.src, s.src[0]
	ending := all[:1]
	if long := bytes.Repeat(ending, 3); bytes.HasPrefix(all, long) {
		ending = long
	}
	end := len(ending)
	for ; end < len(all) && !bytes.HasPrefix(all[end:], ending); end++ {
		if len(ending) == 1 && all[end] == '\n' {
			s.stop()
			return ""
		}
		if quote == '"' && all[end] == '\\' {
			end++
		}
	}
	if end >= len(all) {
		s.stop()
		return ""
	}
	end += len(ending)
	// Up to two quotes may precede the closing three.
	for len(ending) == 3 && end < len(all) && all[end] == quote {
		end++
	}
	s.skip(end)
	return string(all[:end])
}

// value reads one value and everything in it. The depth bounds the recursion.
func (s *scanner) value(at node) {
	switch c := s.peek(); c {
	case '"', '\'':
		s.quoted()
	case '[':
		s.skip(1)
		s.deepen(&at)
		for i := 0; s.another("]"); i++ {
			item := node{depth: at.depth}
			if s.lines != nil {
				item.path = strict.Index(at.path, i)
				s.found(item.path)
			}
			s.value(item)
		}
	case '{':
		s.skip(1)
		s.deepen(&at)
		for s.another("}") {
			s.entry(at)
		}
	case ',', ']', '}', '#', '\n':
		s.stop()
	default:
		s.skipTo(",]}#\n")
	}
}

// another reports whether an array or inline table has another item, and skips the comma before it.
// Otherwise it skips the closing bracket.
func (s *scanner) another(closing string) bool {
	s.blanks(true)
	if s.accept(",") {
		s.blanks(true)
	}
	return !s.accept(closing) && len(s.src) > 0
}
