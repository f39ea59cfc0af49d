package strict

import (
	"fmt"
	"strings"
)

// OneOf returns the hint for a word that is not one of use.
func OneOf(word string, use ...string) string {
	hint := "use " + strings.Join(use, ", ")
	if near := Nearest(word, use); near != "" {
		return fmt.Sprintf("did you mean %q? %s", near, hint)
	}
	return hint
}

// Nearest returns the known word that word was probably meant to be, or "". If exactly one known
// word is a prefix of word, or has it as a prefix, Nearest returns that one ("prot": "protocol",
// "warning": "warn"). Both must have at least three letters. Otherwise it returns the word with the
// smallest edit distance, if at most a third of the letters differ. Swapping two neighboring
// letters is one edit. Among equals, the first wins.
func Nearest(word string, known []string) string {
	if len(word) > 64 { // no typing error, and the distance is quadratic
		return ""
	}
	word = strings.ToLower(strings.ReplaceAll(word, "-", "_"))
	var begun []string
	best, bestDistance := "", max(1, len(word)/3)+1
	for _, k := range known {
		lower := strings.ToLower(k)
		if min(len(word), len(k)) >= 3 && (strings.HasPrefix(lower, word) || strings.HasPrefix(word, lower)) {
			begun = append(begun, k)
		}
		if d := distance(word, strings.ReplaceAll(lower, "-", "_")); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	if len(begun) == 1 {
		return begun[0]
	}
	return best
}

// distance is the optimal string alignment distance of a and b, by bytes.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
