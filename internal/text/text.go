// Package text holds the wording rules that messages of several packages share.
package text

import (
	"fmt"
	"strconv"
	"strings"
)

// Plural returns a number with its noun: "1 service", "2 services". The plural is formed
// with an s; nouns that need another form are spelled out by the caller.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
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
