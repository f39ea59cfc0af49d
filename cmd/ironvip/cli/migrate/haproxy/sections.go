package haproxy

import (
	"slices"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
)

// line is a line of a section.
type line struct {
	migrate.Place
	words []string // at least one
}

// arg returns the n-th argument, "" if there is none.
func (l *line) arg(n int) string {
	if n+1 < len(l.words) {
		return l.words[n+1]
	}
	return ""
}

// String returns the line as words.
func (l *line) String() string { return strings.Join(l.words, " ") }

// section is a part of the file that begins with a keyword.
type section struct {
	line
	kind, name string
	lines      []line
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

// sections divides a text into sections.
func sections(name, text string, result *migrate.Result) (out []*section) {
	named := map[string]*section{}
	var defaults, current *section
	number := 0
	for raw := range strings.SplitSeq(text, "\n") {
		number++
		l := line{migrate.Place{File: name, Line: number}, split(strings.TrimSuffix(raw, "\r"))}
		if len(l.words) == 0 {
			continue
		}
		if !kinds[l.words[0]] {
			switch {
			case current != nil:
				current.lines = append(current.lines, l)
			case strings.HasPrefix(l.words[0], "."):
				result.Note(l.Place, "%q is not converted: conditions are not evaluated", l.words[0])
			default:
				result.Note(l.Place, "%q is in no section: ignored", l.String())
			}
			continue
		}
		current = &section{line: l, kind: l.words[0], name: l.arg(0)}
		out = append(out, current)
		if current.kind != "defaults" && !proxies[current.kind] {
			continue
		}
		current.defaults = defaults
		for i, w := range l.words {
			if w == "from" && i+1 < len(l.words) {
				if current.defaults = named[l.words[i+1]]; current.defaults == nil {
					result.Note(l.Place, "there is no defaults section %q before this line", l.words[i+1])
				}
			}
		}
		if current.kind == "defaults" {
			if !slices.Contains(l.words, "from") {
				current.defaults = nil // a defaults section begins anew
			}
			defaults = current
			named[current.name] = current
		}
	}
	return out
}

// all returns the lines of a section after those of its defaults.
func (s *section) all() []line {
	if s == nil {
		return nil
	}
	return append(s.defaults.all(), s.lines...)
}

// own reports whether a line is in the section itself, not in its defaults.
func (s *section) own(l *line) bool { return l.Line > s.line.Line }

// mode returns the mode of a section: "tcp", unless a line says otherwise.
func (s *section) mode() string {
	mode := "tcp"
	for _, l := range s.all() {
		if l.words[0] == "mode" {
			mode = l.arg(0)
		}
	}
	return mode
}

// split divides a line into words. Quotes keep spaces together, a backslash keeps the character
// after it, and "#" begins a comment.
func split(text string) (words []string) {
	var b strings.Builder
	inWord := false
	var quote byte
	for i := 0; i <= len(text); i++ {
		end := i == len(text) || quote == 0 && (text[i] == ' ' || text[i] == '\t' || text[i] == '#')
		if end {
			if inWord {
				words = append(words, b.String())
			}
			if i < len(text) && text[i] == '#' {
				return words
			}
			b.Reset()
			inWord = false
			continue
		}
		inWord = true
		switch c := text[i]; {
		case c == '\\' && quote != '\'' && i+1 < len(text):
			i++
			b.WriteString(unescape(text[i]))
		case quote == 0 && (c == '"' || c == '\''), quote != 0 && c == quote:
			quote ^= c
		default:
			b.WriteByte(c)
		}
	}
	return words
}

// unescape returns what a backslash and a character stand for.
func unescape(c byte) string {
	switch c {
	case 'n':
		return "\n"
	case 'r':
		return "\r"
	case 't':
		return "\t"
	}
	return string(c)
}
