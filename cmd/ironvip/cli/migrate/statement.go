package migrate

import (
	"slices"
	"strings"
)

// Statement is a line of a text as words: a keyword and its arguments.
type Statement struct {
	Place
	Words []string // at least one
}

// Arg returns the n-th argument, "" if there is none.
func (s *Statement) Arg(n int) string {
	if n+1 < len(s.Words) {
		return s.Words[n+1]
	}
	return ""
}

// After returns the word after a word, "" if there is none.
func (s *Statement) After(word string) string {
	if i := slices.Index(s.Words, word); i >= 0 {
		return s.Arg(i)
	}
	return ""
}

// String returns the words.
func (s *Statement) String() string { return strings.Join(s.Words, " ") }

// Split divides a line into words at spaces and tabs. Quotes keep spaces together. A byte for which isComment is true ends the
// line; it is not called within quotes. unescape returns the byte that a backslash and the next byte stand for, unless the
// backslash is one itself. quote is 0 outside of quotes.
func Split(text string, isComment func(c byte, inWord bool) bool, unescape func(quote, next byte) (c byte, ok bool)) (words []string) {
	var word []byte
	var quote byte
	inWord := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			if literal, ok := unescape(quote, text[i+1]); ok {
				word, inWord = append(word, literal), true
				i++
				continue
			}
		}
		switch comment := quote == 0 && isComment(c, inWord); {
		case comment || quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				words = append(words, string(word))
			}
			word, inWord = nil, false
			if comment {
				return words
			}
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		case c == quote:
			quote = 0
		default:
			word, inWord = append(word, c), true
		}
	}
	if inWord {
		words = append(words, string(word))
	}
	return words
}
