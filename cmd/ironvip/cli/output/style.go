package output

import (
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// Style is the meaning of a piece of text. A terminal shows it as a color.
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

// If returns the style, or Plain unless a condition holds.
func (s Style) If(is bool) Style {
	if is {
		return s
	}
	return Plain
}

// codes are the SGR parameters of the styles. They use only the eight basic colors, which every
// terminal theme keeps legible.
var codes = map[Style]string{Good: "32", Caution: "33", Bad: "31", Faint: "2", Strong: "1"}

// paint wraps s in the color of its style.
func paint(s string, style Style) string {
	code, ok := codes[style]
	if !ok || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// ColorWanted reports whether text written to w should be colored: w is a terminal, NO_COLOR
// (https://no-color.org) is not set and TERM isn't "dumb".
func ColorWanted(w any, getenv func(string) string) bool {
	return IsTerminal(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Clean makes s safe for one line of a terminal. Line breaks and tabs become spaces; other control
// characters, such as those of escape sequences, become "?".
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

// unprintable reports whether r is a control character or an invisible format character that
// reorders text.
func unprintable(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
