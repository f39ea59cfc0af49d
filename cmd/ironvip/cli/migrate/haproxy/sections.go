package haproxy

import (
	"slices"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// section is a part of the file that begins with a keyword.
type section struct {
	migrate.Statement
	kind, name string
	lines      []migrate.Statement
	indented   bool     // its first line is, so that a word of its own begins another section
	defaults   *section // of a listen, frontend, backend or defaults section
}

// proxies are the kinds of sections that forward traffic.
var proxies = map[string]bool{"listen": true, "frontend": true, "backend": true}

// kinds are all kinds of sections.
var kinds = map[string]bool{
	"global": true, "defaults": true, "listen": true, "frontend": true, "backend": true, "peers": true, "resolvers": true,
	"userlist": true, "mailers": true, "cache": true, "program": true, "http-errors": true, "ring": true, "log-forward": true,
	"fcgi-app": true, "crt-store": true, "traces": true, "acme": true,
}

// sections divides a text into sections. Conditional lines are noted and skipped.
func sections(name, text string, result *migrate.Result) (out []*section) {
	named := map[string]*section{}
	var defaults, current *section
	number, conditions := 0, 0
	for raw := range strings.SplitSeq(text, "\n") {
		number++
		l := migrate.NewStatement(migrate.Place{File: name, Line: number}, lineWords.Split(strings.TrimSuffix(raw, "\r")))
		if len(l.Words) == 0 {
			continue
		}
		switch keyword := l.Words[0]; {
		case keyword == ".if":
			if conditions++; conditions == 1 {
				result.Note(l.Place, "%q is not evaluated: the lines up to its .endif are not converted", l.String())
			}
			continue
		case keyword == ".endif":
			conditions--
			continue
		case conditions > 0:
			continue
		case strings.HasPrefix(keyword, "."):
			result.Note(l.Place, "%q is not converted", l.String())
			continue
		case !kinds[keyword] && (current == nil || !current.indented || strings.TrimLeft(raw, " \t") != raw || keywords[keyword]):
			if current == nil {
				result.Note(l.Place, "%q is in no section: ignored", l.String())
			} else {
				current.indented = current.indented || len(current.lines) == 0 && strings.TrimLeft(raw, " \t") != raw
				current.lines = append(current.lines, l)
			}
			continue
		}
		current = &section{Statement: l, kind: l.Keyword(), name: l.Arg(0)}
		out = append(out, current)
		if current.kind != "defaults" && !proxies[current.kind] {
			continue
		}
		current.defaults = defaults
		if from := l.After("from"); from != "" {
			if current.defaults = named[from]; current.defaults == nil {
				result.Note(l.Place, "there is no defaults section %q before this line", from)
			}
		}
		if current.kind == "defaults" {
			if !slices.Contains(l.Words, "from") {
				current.defaults = nil // a defaults section begins anew
			}
			defaults = current
			named[current.name] = current
		}
	}
	return out
}

// drop makes the lines of a section read: a note names the section.
func (s *section) drop() {
	s.Read()
	for i := range s.lines {
		s.lines[i].Read()
	}
}

// all returns the lines of a section after those of its defaults.
func (s *section) all() []migrate.Statement {
	if s == nil {
		return nil
	}
	return append(s.defaults.all(), s.lines...)
}

// own reports whether a line is in the section itself, not in its defaults.
func (s *section) own(l *migrate.Statement) bool { return l.Line > s.Line }

// disabled returns the line that keeps a section from listening, or nil.
func (s *section) disabled() (off *migrate.Statement) {
	for _, l := range s.all() {
		switch l.Words[0] {
		case "disabled":
			off = &l
		case "enabled":
			off = nil
			l.Read()
		}
	}
	return off
}

// mode returns the mode of a section: "tcp", unless a line says otherwise.
func (s *section) mode() string {
	mode := "tcp"
	for _, l := range s.all() {
		if l.Words[0] == "mode" {
			mode = l.Arg(0)
		}
	}
	return mode
}

// lineWords divides a line into words. A backslash keeps the character after it, except in single quotes.
var lineWords = migrate.Splitter{Comment: "#", Unescape: func(quote, next byte) (byte, bool) {
	if i := strings.IndexByte("nrt", next); i >= 0 {
		next = "\n\r\t"[i]
	}
	return next, quote != '\''
}}
