package migrate

import (
	"cmp"
	"slices"
	"strings"
)

// Statement is a line of a text as words: a keyword and its arguments. It remembers which of its words were read, so that a
// converter can't lose one in silence: see Result.NoteUnread. Copies share this.
type Statement struct {
	Place
	Words []string // at least one; not to be changed. A word that is seen here is not read
	read  []bool   // by word
}

// NewStatement returns a statement of at least one word, none of which is read.
func NewStatement(at Place, words []string) Statement {
	return Statement{at, words, make([]bool, len(words))}
}

// word returns a word, which is read then; "" if there is none.
func (s *Statement) word(i int) string {
	if i >= len(s.Words) {
		return ""
	}
	s.read[i] = true
	return s.Words[i]
}

// Keyword returns the first word.
func (s *Statement) Keyword() string { return s.word(0) }

// Arg returns the n-th argument, "" if there is none.
func (s *Statement) Arg(n int) string { return s.word(n + 1) }

// Args returns all arguments.
func (s *Statement) Args() []string {
	s.Read()
	return s.Words[1:]
}

// After returns the word after a word, "" if there is none.
func (s *Statement) After(word string) string {
	if i := slices.Index(s.Words, word); i >= 0 {
		s.read[i] = true
		return s.word(i + 1)
	}
	return ""
}

// Has reports whether one of the arguments is a word, which is read then.
func (s *Statement) Has(word string) bool {
	i := slices.Index(s.Words[1:], word)
	return i >= 0 && s.word(i+1) != ""
}

// Read makes all words read: nothing is lost with them, or a note names the statement.
func (s *Statement) Read() {
	for i := range s.read {
		s.read[i] = true
	}
}

// IsRead reports whether the keyword was read.
func (s *Statement) IsRead() bool { return s.read[0] }

// String returns the words, which are read then.
func (s *Statement) String() string {
	s.Read()
	return strings.Join(s.Words, " ")
}

// unread returns the words that were not read: all of them if the keyword wasn't.
func (s *Statement) unread() []string {
	if !s.IsRead() {
		return s.Words
	}
	var out []string
	for i, read := range s.read {
		if !read {
			out = append(out, s.Words[i])
		}
	}
	return out
}

// Splitter says how a program divides lines into words.
type Splitter struct {
	Comment string // bytes that begin a comment, outside of quotes
	Quotes  string // bytes that quote; "": both
	Single  string // bytes that are a word of their own, outside of quotes
	// Unescape returns the byte that a backslash and the next byte stand for, unless the backslash is one itself. quote
	// is 0 outside of quotes.
	Unescape func(quote, next byte) (c byte, ok bool)
}

// Code returns a line without its comment.
func (split Splitter) Code(line string) string {
	_, end := split.scan(line)
	return line[:end]
}

// Split divides a line into words at spaces and tabs. Quotes keep what is between them together.
func (split Splitter) Split(line string) []string {
	words, _ := split.scan(line)
	return words
}

// scan returns the words of a line, and where its comment begins.
func (split Splitter) scan(line string) (words []string, end int) {
	var word []byte
	var quote byte
	inWord := false
	flush := func() {
		if inWord {
			words = append(words, string(word))
		}
		word, inWord = nil, false
	}
	defer flush() // before the results are returned: they have names
	for i := 0; i < len(line); i++ {
		c := line[i]
		if c == '\\' && i+1 < len(line) {
			if literal, ok := split.Unescape(quote, line[i+1]); ok {
				word, inWord = append(word, literal), true
				i++
				continue
			}
		}
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word = append(word, c)
		case strings.IndexByte(split.Comment, c) >= 0:
			return words, i
		case c == ' ' || c == '\t':
			flush()
		case strings.IndexByte(split.Single, c) >= 0:
			flush()
			words = append(words, string(c))
		case strings.IndexByte(cmp.Or(split.Quotes, "\"'"), c) >= 0:
			quote, inWord = c, true
		default:
			word, inWord = append(word, c), true
		}
	}
	return words, len(line)
}
