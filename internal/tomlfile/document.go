package tomlfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/ironvip/ironvip/vip"
)

// Document is a parsed TOML file, or a part of one. It is not safe for concurrent use.
type Document struct {
	Path  string
	Text  []byte
	Tree  map[string]any
	above int // lines of the file above Text
	// lines is the reader of Text's lines, as far as they were asked for; nil: never.
	lines *scanner
}

// Parse reads the content of the file at path. The problem, if any, has the line that is not
// valid TOML.
func Parse(path string, text []byte) (*Document, *vip.Problem) { return ParsePart(path, text, 0) }

// ParsePart is Parse for a part of a file that is TOML by itself, below this number of other lines.
func ParsePart(path string, text []byte, above int) (*Document, *vip.Problem) {
	refused := func(line int, message, hint string) *vip.Problem {
		return &vip.Problem{Code: vip.CodeInvalid, Place: Place(path, above+line), Message: message, Hint: hint}
	}
	if line := notUTF8(text); line > 0 { // the TOML reader would skip a UTF-16 byte order mark
		return nil, refused(line, "not UTF-8 text", "save the file as UTF-8")
	}
	if deep, ok := errors.AsType[depthError](checkDepth(text)); ok {
		return nil, refused(deep.line, deep.Error(), "nest less deep")
	}
	tree := map[string]any{}
	if err := toml.Unmarshal(text, &tree); err != nil {
		pe, ok := errors.AsType[toml.ParseError](err)
		if !ok {
			return nil, &vip.Problem{Code: vip.CodeInvalid, Place: path, Message: "not valid TOML: " + strings.TrimPrefix(err.Error(), "toml: ")}
		}
		p := refused(lineOf(text, pe.Position), "not valid TOML: "+pe.Message, strings.Join(strings.Fields(firstSentence(pe.Usage)), " "))
		if pe.LastKey != "" && len(pe.LastKey) < 64 {
			p.Message += fmt.Sprintf(" (after key %q)", pe.LastKey)
		}
		return nil, p
	}
	return &Document{Path: path, Text: text, Tree: tree, above: above}, nil
}

// lineOf returns the line of the last character that the TOML reader read before it refused text. Its
// own number is that of the next line if this character ends a line.
func lineOf(text []byte, at toml.Position) int {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")) // as the reader does
	return 1 + bytes.Count(text[:min(max(0, at.Start+at.Len-1), len(text))], []byte("\n"))
}

// line returns the line of field within Text. It reads Text up to this field, or all of it if the
// field isn't there.
func (d *Document) line(field string) (line int, found bool) {
	if d.lines == nil {
		d.lines = newScanner(d.Text, positions{})
	}
	for d.lines.lines[field] == 0 && d.lines.next() {
	}
	return d.lines.lines.line(field), d.lines.lines[field] > 0
}

// Has reports whether the document has a key or table at field, a path of package strict.
func (d *Document) Has(field string) bool {
	_, found := d.line(field)
	return found
}

// Place returns the file and line of field, or of the nearest table around it.
func (d *Document) Place(field string) string {
	line, _ := d.line(field)
	return Place(d.Path, d.above+line)
}

// Locate sets the place of each problem that has none, from its field, and sorts all by place.
func (d *Document) Locate(problems []vip.Problem) {
	for i := range problems {
		if p := &problems[i]; p.Place == "" {
			p.Place = d.Place(p.Field)
		}
	}
	SortProblems(problems)
}

// notUTF8 returns the first line that is not UTF-8, or 0.
func notUTF8(text []byte) int {
	if utf8.Valid(text) {
		return 0
	}
	for rest, at := text, 0; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			return 1 + bytes.Count(text[:at], []byte("\n"))
		}
		rest, at = rest[n:], at+n
	}
	return 0
}

// firstSentence cuts the TOML reader's explanation to the length of a hint.
func firstSentence(s string) string {
	if i := strings.Index(s, ". "); i >= 0 {
		return s[:i]
	}
	return strings.TrimSuffix(strings.SplitN(strings.TrimSpace(s), "\n\n", 2)[0], ".")
}

// Place returns the place of a line: "web.toml:7".
func Place(path string, line int) string { return path + ":" + strconv.Itoa(line) }

// SortProblems orders problems by file, then by line. Problems of one line keep their order.
func SortProblems(problems []vip.Problem) {
	slices.SortStableFunc(problems, func(a, b vip.Problem) int {
		fileA, lineA := splitPlace(a.Place)
		fileB, lineB := splitPlace(b.Place)
		return cmp.Or(strings.Compare(fileA, fileB), lineA-lineB)
	})
}

func splitPlace(place string) (file string, line int) {
	if i := strings.LastIndexByte(place, ':'); i >= 0 {
		if n, err := strconv.Atoi(place[i+1:]); err == nil {
			return place[:i], n
		}
	}
	return place, 0
}
