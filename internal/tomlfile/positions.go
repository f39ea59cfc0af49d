package tomlfile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/vip/spec/strict"
)

// maxDepth bounds how deep keys, arrays and inline tables may nest. Nothing we
// read needs more than six levels, and the TOML reader takes stack for each
// level of an array and cubic time for each dot of a key.
const maxDepth = 32

// positions is the line of each key and item of a TOML document, by the paths of package
// strict. The TOML reader gives no line for an unknown key or for a value out of bounds.
type positions map[string]int

// line returns the line of path, or of the nearest thing around it; 1 when
// nothing is known.
func (p positions) line(path string) int {
	for ; path != ""; path = strict.Parent(path) {
		if n := p[path]; n > 0 {
			return n
		}
	}
	return 1
}

// depthError says that a document nests deeper than maxDepth.
type depthError struct{ line int }

func (e depthError) Error() string { return fmt.Sprintf("more than %d levels", maxDepth) }

// scan finds the lines of a TOML document. It trusts the document to be valid
// and stops where it is not, for the TOML reader to complain; the one thing it
// refuses itself is nesting, so run it first.
func scan(src []byte) (positions, error) {
	s := scanner{src: bytes.TrimPrefix(src, []byte("\ufeff")), at: 1, lines: positions{}, arrays: map[string]int{}}
	err := s.document()
	return s.lines, err
}

// node is a table or value within the document.
type node struct {
	path  string
	depth int
}

type scanner struct {
	src    []byte // what is left
	at     int    // its line
	lines  positions
	arrays map[string]int // how many [[headers]] a path has had
}

// found notes where a path is first seen.
func (s *scanner) found(path string) {
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
	n = min(n, len(s.src))
	s.at += bytes.Count(s.src[:n], []byte("\n"))
	s.src = s.src[n:]
}

// blanks skips white space, and with it line ends and comments where asked to.
func (s *scanner) blanks(lines bool) {
	for len(s.src) > 0 {
		switch c := s.src[0]; {
		case c == ' ' || c == '\t' || c == '\r' && (lines || len(s.src) > 1 && s.src[1] == '\n'):
			s.skip(1)
		case c == '\n' && lines:
			s.skip(1)
		case c == '#' && lines:
			end := bytes.IndexByte(s.src, '\n')
			if end < 0 {
				end = len(s.src)
			}
			s.skip(end)
		default:
			return
		}
	}
}

func (s *scanner) document() error {
	var table node
	for {
		s.blanks(true)
		if len(s.src) == 0 {
			return nil
		}
		if s.peek() != '[' {
			key, ok, err := s.key(table)
			if !ok {
				return err
			}
			if s.blanks(false); s.peek() != '=' {
				return nil
			}
			s.skip(1)
			if ok, err := s.value(key); !ok {
				return err
			}
			continue
		}
		brackets := 1
		if bytes.HasPrefix(s.src, []byte("[[")) {
			brackets = 2
		}
		s.skip(brackets)
		header, ok, err := s.header(brackets == 2)
		if !ok {
			return err
		}
		if !bytes.HasPrefix(s.src, []byte("]]")[:brackets]) {
			return nil
		}
		s.skip(brackets)
		table = header
	}
}

// header reads the key of a [table] or [[item]] and finds which item it means.
func (s *scanner) header(item bool) (node, bool, error) {
	var at node
	for {
		part, ok := s.part()
		if !ok {
			return at, false, nil
		}
		if at.depth++; at.depth > maxDepth {
			return at, false, depthError{s.at}
		}
		list := strict.Join(at.path, part)
		more := s.dot()
		if !more && item {
			at.path = strict.Index(list, s.arrays[list])
			s.arrays[list]++
		} else if n := s.arrays[list]; n > 0 {
			at.path = strict.Index(list, n-1)
		} else {
			at.path = list
		}
		s.found(list)
		s.found(at.path)
		if !more {
			return at, true, nil
		}
	}
}

// key reads a dotted key within a table.
func (s *scanner) key(at node) (node, bool, error) {
	for {
		part, ok := s.part()
		if !ok {
			return at, false, nil
		}
		if at.depth++; at.depth > maxDepth {
			return at, false, depthError{s.at}
		}
		at.path = strict.Join(at.path, part)
		s.found(at.path)
		if !s.dot() {
			return at, true, nil
		}
	}
}

// dot skips the dot before a further part of a key.
func (s *scanner) dot() bool {
	s.blanks(false)
	if s.peek() != '.' {
		return false
	}
	s.skip(1)
	return true
}

// notBare ends a bare key.
const notBare = " \t\r\n.=[]{},#\"'"

// part reads one bare or quoted part of a key.
func (s *scanner) part() (string, bool) {
	s.blanks(false)
	switch s.peek() {
	case '"':
		raw, ok := s.quoted()
		if !ok {
			return "", false
		}
		if text, err := strconv.Unquote(raw); err == nil {
			return text, true
		}
		return strings.Trim(raw, `"`), true
	case '\'':
		raw, ok := s.quoted()
		if !ok {
			return "", false
		}
		return raw[1 : len(raw)-1], true
	}
	n := 0
	for n < len(s.src) && strings.IndexByte(notBare, s.src[n]) < 0 {
		n++
	}
	part := string(s.src[:n])
	s.skip(n)
	return part, n > 0
}

// quoted skips a string of any of the four kinds and returns its source.
func (s *scanner) quoted() (string, bool) {
	quote := s.src[0]
	end := 1
	if long := strings.Repeat(string(quote), 3); bytes.HasPrefix(s.src, []byte(long)) {
		for end = 3; ; end++ {
			if end >= len(s.src) {
				return "", false
			}
			if quote == '"' && s.src[end] == '\\' {
				end++
			} else if bytes.HasPrefix(s.src[end:], []byte(long)) {
				break
			}
		}
		// Up to two quotes may stand right before the closing three.
		for end += 3; end < len(s.src) && s.src[end] == quote; end++ {
		}
	} else {
		for ; ; end++ {
			if end >= len(s.src) || s.src[end] == '\n' {
				return "", false
			}
			if quote == '"' && s.src[end] == '\\' {
				end++
			} else if s.src[end] == quote {
				break
			}
		}
		end++
	}
	raw := string(s.src[:end])
	s.skip(end)
	return raw, true
}

// frame is an array or inline table that is being read.
type frame struct {
	node
	table bool
	items int
}

// value reads one value, with all that is in it.
func (s *scanner) value(at node) (bool, error) {
	var open []frame
	for {
		s.blanks(len(open) > 0)
		switch c := s.peek(); c {
		case '"', '\'':
			if _, ok := s.quoted(); !ok {
				return false, nil
			}
		case '[', '{':
			if at.depth++; at.depth > maxDepth {
				return false, depthError{s.at}
			}
			open = append(open, frame{node: at, table: c == '{'})
			s.skip(1)
		default:
			n := bytes.IndexAny(s.src, ",]}#\n")
			if n < 0 {
				n = len(s.src)
			}
			if n == 0 {
				return false, nil
			}
			s.skip(n)
		}
		// After a value: close what ends here, then find the next one.
		for {
			if len(open) == 0 {
				return true, nil
			}
			in := &open[len(open)-1]
			s.blanks(true)
			if s.peek() == ',' {
				s.skip(1)
				s.blanks(true)
			}
			if c := s.peek(); c == ']' && !in.table || c == '}' && in.table {
				open = open[:len(open)-1]
				s.skip(1)
				continue
			}
			if len(s.src) == 0 {
				return false, nil
			}
			if !in.table {
				at = node{strict.Index(in.path, in.items), in.depth}
				in.items++
				s.found(at.path)
				break
			}
			key, ok, err := s.key(in.node)
			if !ok {
				return false, err
			}
			if s.blanks(true); s.peek() != '=' {
				return false, nil
			}
			s.skip(1)
			at = key
			break
		}
	}
}
