// Package text holds the wording rules that messages of several packages share.
package text

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Plural returns a number with its noun: "1 service", "2 services". The plural is formed
// with an s; nouns that need another form are spelled out by the caller.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Clip makes one line of at most the given number of bytes of another program's text, without control characters and
// invalid UTF-8.
func Clip(text string, most int) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text[:min(len(text), most)], "")))
}

// First lists the first few words, and how many there are besides: "a, b and 3 more".
func First(few int, words []string, separator string) string {
	if len(words) <= few {
		return strings.Join(words, separator)
	}
	return fmt.Sprintf("%s and %d more", strings.Join(words[:few], separator), len(words)-few)
}

// Join formats each item and joins the results with sep.
func Join[T any](items []T, sep string, format func(T) string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = format(item)
	}
	return strings.Join(texts, sep)
}
