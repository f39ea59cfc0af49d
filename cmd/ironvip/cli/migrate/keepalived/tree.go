package keepalived

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/migrate"
	"github.com/ironvip/ironvip/internal/tomlfile"
)

// Bounds of what a configuration may have. They are far above what people write.
const (
	maxDepth    = 32       // of nested blocks, of files that include each other, of definitions in definitions
	maxFiles    = 1000     // that are read, each as often as it is included
	maxLines    = 2 << 20  // of all these files
	maxBytes    = 64 << 20 // of all these files, and of what replaces definitions
	maxExpanded = 1 << 20  // bytes of a line after definitions have been replaced
)

// statement is one line, with the block that follows it.
type statement struct {
	migrate.Statement
	block []*statement
	open  bool // it has a block, which may be empty
}

// last returns the last statement of the block with the keyword, which counts in keepalived, or nil.
func (s *statement) last(keyword string) (found *statement) {
	for _, inner := range s.block {
		if inner.Words[0] == keyword {
			found = inner
		}
	}
	if found != nil {
		found.Keyword()
	}
	return found
}

// drop makes a statement and its block read: nothing is lost with them, or a note names the statement.
func (s *statement) drop() {
	s.Read()
	for _, inner := range s.block {
		inner.drop()
	}
}

// quiet drops the statements of the block with these keywords, of which nothing is missing.
func (s *statement) quiet(keywords ...string) {
	for _, inner := range s.block {
		if slices.Contains(keywords, inner.Words[0]) {
			inner.drop()
		}
	}
}

// noteUnread notes what was not read of statements and their blocks.
func (c *converter) noteUnread(statements []*statement) {
	for _, s := range statements {
		c.NoteUnread(&s.Statement)
		c.noteUnread(s.block)
	}
}

// Files reads and finds the files of a configuration, by the paths that it has.
type Files struct {
	Read func(path string) ([]byte, error)
	Glob func(pattern string) ([]string, error)
}

// thisHost has the files of this host.
var thisHost = Files{
	Read: func(path string) ([]byte, error) {
		text, problem := tomlfile.ReadFile(path, maxBytes)
		if problem != nil {
			return nil, errors.New(problem.Message)
		}
		return text, nil
	},
	Glob: filepath.Glob,
}

// Walk calls visit for each statement of a file and of the files that it includes, with the keyword of
// the block that it is in, which is "" outside of blocks. It fails only if the file itself can't be read.
func Walk(files Files, name string, visit func(block string, words []string)) error {
	r := newReader(files, &migrate.Result{}, maxBytes)
	statements, err := r.read(name)
	walk("", statements, visit)
	return err
}

func walk(block string, statements []*statement, visit func(block string, words []string)) {
	for _, s := range statements {
		visit(block, s.Words)
		walk(s.Words[0], s.block, visit)
	}
}

// reader reads files into one list of statements.
type reader struct {
	Files
	definitions map[string]string // by name, without "$"
	result      *migrate.Result   // for notes
	open        []string          // files that are being read: each includes the next

	// The input so far, for the bounds above.
	files, lineCount, bytes int
	most                    int // bytes
	isFull                  bool
}

func newReader(files Files, result *migrate.Result, most int) *reader {
	return &reader{Files: files, definitions: map[string]string{"_HASH": "#", "_BANG": "!", "_INSTANCE": ""}, result: result, most: most}
}

// full reports whether a bound has been reached. It notes this once.
func (r *reader) full(at migrate.Place) bool {
	if r.files <= maxFiles && r.lineCount <= maxLines && r.bytes <= r.most {
		return false
	}
	if !r.isFull {
		r.isFull = true
		r.result.Note(at, "the configuration has more than %d files, %d lines or %d MiB, with what is included and replaced: the rest is not read", maxFiles, maxLines, r.most>>20)
	}
	return true
}

// read returns the statements of a file and of the files that it includes.
func (r *reader) read(name string) ([]*statement, error) {
	lines, err := r.lines(name)
	return r.tree(lines), err
}

// lines returns the lines of a file and of those that it includes, without comments.
func (r *reader) lines(name string) ([]migrate.Statement, error) {
	text, err := r.Read(name)
	if err != nil {
		r.result.Note(migrate.Place{File: name}, "not read: %v", err)
		return nil, err
	}
	defer func(outer string) { r.open, r.definitions["_PWD"] = r.open[:len(r.open)-1], outer }(r.definitions["_PWD"])
	r.open, r.definitions["_PWD"] = append(r.open, name), filepath.Dir(name)
	r.files++
	r.bytes += len(text)
	var out []migrate.Statement
	number, joined := 0, ""
	for raw := range strings.SplitSeq(string(text), "\n") {
		number++
		r.lineCount++
		at := migrate.Place{File: name, Line: number}
		if r.full(at) {
			break
		}
		raw = strings.TrimSuffix(raw, "\r")
		code := lineWords.Code(raw)
		before, more := strings.CutSuffix(code, `\`)
		if more && code == raw {
			joined += before + "\n"
			continue
		}
		raw = before // a backslash before a comment is a part of neither
		raw, joined = r.forAllHosts(at, joined+raw), ""
		if r.define(raw) {
			continue
		}
		raw = strings.TrimSpace(strings.ReplaceAll(raw, "\n", " "))
		if strings.HasPrefix(raw, "~SEQ(") || strings.HasPrefix(raw, "~LST(") {
			r.result.Note(at, "%q is not converted: write the lines out", raw)
			continue
		}
		expanded, err := r.expand(at, raw)
		if err != nil {
			r.result.Note(at, "%v: ignored", err)
			continue
		}
		for text := range strings.SplitSeq(expanded, "\n") { // several, if a definition has them
			for _, l := range pieces(at, expandedWords.Split(text)) {
				switch isInclude := len(l.Words) == 2 && strings.HasPrefix(l.Words[0], "include"); {
				case !isInclude:
					out = append(out, l)
				case strings.ContainsAny(text, "\"'"):
					r.result.Note(at, "include %s: keepalived takes quotes as a part of the name: not read", l.Words[1])
				default:
					out = append(out, r.include(at, l.Words[1])...)
				}
			}
		}
	}
	return out, nil
}

// forAllHosts removes the "@NAME" of a line that applies to some hosts only, and notes it.
func (r *reader) forAllHosts(at migrate.Place, raw string) string {
	trimmed := strings.TrimLeft(raw, " \t")
	if !strings.HasPrefix(trimmed, "@") {
		return raw
	}
	host, rest, _ := strings.Cut(strings.Replace(trimmed, "\t", " ", 1), " ")
	r.result.Note(at, "%q applies to some hosts only (%s): converted for all of them", strings.TrimSpace(strings.ReplaceAll(rest, "\n", " ")), host)
	return rest
}

// pieces divides the words of a line at braces, so that each piece is words, "{" or "}".
func pieces(at migrate.Place, words []string) (out []migrate.Statement) {
	start := 0
	for i, w := range words {
		if w != "{" && w != "}" {
			continue
		}
		if i > start {
			out = append(out, migrate.NewStatement(at, words[start:i]))
		}
		out = append(out, migrate.NewStatement(at, words[i:i+1]))
		start = i + 1
	}
	if start < len(words) {
		out = append(out, migrate.NewStatement(at, words[start:]))
	}
	return out
}

// include returns the lines of the files that match a pattern, which is relative to the file that
// has the statement.
func (r *reader) include(at migrate.Place, pattern string) (out []migrate.Statement) {
	if len(r.open) > maxDepth {
		r.result.Note(at, "include %s: files include each other more than %d times: not read", pattern, maxDepth)
		return nil
	}
	full := filepath.Clean(pattern)
	if !filepath.IsAbs(pattern) {
		full = filepath.Join(filepath.Dir(at.File), pattern)
	}
	names, err := r.Glob(full)
	if err != nil || len(names) == 0 {
		r.result.Note(at, "include %s: no such file", pattern)
		return nil
	}
	for _, name := range names {
		if slices.Contains(r.open, name) {
			r.result.Note(at, "include %s: %s includes itself: not read", pattern, name)
			continue
		}
		if r.full(at) {
			break
		}
		lines, _ := r.lines(name) // an error is noted
		out = append(out, lines...)
	}
	return out
}

// definition matches "$NAME=value". The value is one line, or more of them that ended with a backslash.
var definition = regexp.MustCompile(`(?s)^\s*\$(\w+)=(.*)$`)

// define notes a definition, and reports whether the line is one.
func (r *reader) define(raw string) bool {
	m := definition.FindStringSubmatch(raw)
	if m == nil {
		return false
	}
	var lines []string
	for line := range strings.SplitSeq(m[2], "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	r.definitions[m[1]] = strings.Join(lines, "\n")
	return true
}

// expand replaces $NAME and ${NAME} in a line by their definitions, and those in their values, until
// nothing changes. It notes undefined names, which become $NAME.
func (r *reader) expand(at migrate.Place, text string) (string, error) {
	for round := 0; strings.Contains(text, "$"); round++ {
		size := len(text)
		next := os.Expand(text, func(name string) string {
			value, known := r.definitions[name]
			if size += len(value); size > maxExpanded {
				return ""
			}
			if !known {
				return "${" + name + "}"
			}
			return value
		})
		switch {
		case size > maxExpanded:
			return "", fmt.Errorf("longer than %d KiB after its definitions have been replaced", maxExpanded>>10)
		case next == text:
			return r.undefined(at, text), nil
		case round == maxDepth:
			return "", fmt.Errorf("definitions contain each other more than %d times", maxDepth)
		}
		text = next
		r.bytes += len(text)
	}
	return text, nil
}

// undefined notes the names that are still in a line after their definitions were replaced, and writes them as $NAME.
func (r *reader) undefined(at migrate.Place, text string) string {
	var names []string
	text = os.Expand(text, func(name string) string {
		names = append(names, "$"+name)
		return "$" + name
	})
	if len(names) > 0 {
		r.result.Note(at, "%s is not defined", strings.Join(names, ", "))
	}
	return text
}

// The words of a line: a brace is a word of its own, and a backslash keeps the character after it in double quotes. Definitions can
// bring the bytes that begin a comment elsewhere.
var (
	expandedWords = migrate.Splitter{Single: "{}", Quotes: `"`, Unescape: func(quote, next byte) (byte, bool) { return next, quote != 0 }}
	lineWords     = migrate.Splitter{Comment: "#!", Quotes: `"`, Unescape: expandedWords.Unescape}
)

// block is a block that is open: its statement, and where its brace is.
type block struct {
	*statement
	brace migrate.Place
}

// tree makes statements of lines.
func (r *reader) tree(lines []migrate.Statement) []*statement {
	var file statement
	open := []block{{statement: &file}} // from the outermost one
	for _, l := range lines {
		in := open[len(open)-1]
		switch l.Words[0] {
		case "{":
			next := block{&statement{}, l.Place} // which is ignored, unless a keyword has it
			switch last := len(in.block) - 1; {
			case len(open) == maxDepth+1:
				r.result.Note(l.Place, "blocks are nested more than %d times: ignored", maxDepth)
			case len(open) > maxDepth:
			case last < 0 || in.block[last].open:
				r.result.Note(l.Place, "{ without a keyword: its block is ignored")
			default:
				next.statement = in.block[last]
				next.open = true
			}
			open = append(open, next)
		case "}":
			if len(open) == 1 {
				r.result.Note(l.Place, "} has no matching {: ignored")
				continue
			}
			open = open[:len(open)-1]
		default:
			in.block = append(in.block, &statement{Statement: l})
		}
	}
	for _, b := range open[1:] {
		r.result.Note(b.brace, "{ is never closed")
	}
	return file.block
}
