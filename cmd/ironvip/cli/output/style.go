package output

import (
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// Style is what a piece of text means; a terminal shows it as a colour.
type Style uint8

// The styles. Plain text has none.
const (
	Plain Style = iota
	Good
	Caution
	Bad
	Faint
	Strong
)

// codes are the SGR parameters of the styles: the eight basic colours only,
// which every terminal theme keeps legible.
var codes = map[Style]string{Good: "32", Caution: "33", Bad: "31", Faint: "2", Strong: "1"}

// paint wraps s in the colour of its style.
func paint(s string, style Style) string {
	code, ok := codes[style]
	if !ok || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// ColorWanted reports whether text written to w should be coloured: w is a
// terminal, NO_COLOR (https://no-color.org) is not set and TERM isn't "dumb".
func ColorWanted(w any, getenv func(string) string) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Clean makes s fit for one line of a terminal: line breaks and tabs become
// spaces, other control characters (escape sequences among them) become "?".
func Clean(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unprintable(r):
			return '?'
		}
		return r
	}, s)
}

// unprintable is true of control characters and of the invisible format
// characters that reorder text.
func unprintable(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
