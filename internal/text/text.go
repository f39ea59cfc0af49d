// Package text holds the wording rules that messages of several packages share.
package text

import "strconv"

// Plural returns a number with its noun: "1 service", "2 services". The plural is formed
// with an s; nouns that need another form are spelled out by the caller.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
