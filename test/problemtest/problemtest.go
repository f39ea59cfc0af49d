// Package problemtest lets tests compare the problems of an input with the expected ones.
package problemtest

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/vip"
)

// Text returns each problem as text: place, service, field, message and hint.
func Text(problems []vip.Problem) []string {
	var out []string
	for _, p := range problems {
		text := p.Error()
		if p.Hint != "" {
			text += " | " + p.Hint
		}
		out = append(out, text)
	}
	return out
}

// Expect compares the text of each problem with its expected beginning.
func Expect(t testing.TB, problems []vip.Problem, want ...string) {
	t.Helper()
	got := Text(problems)
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("missing: %s", want[i])
		case i >= len(want):
			t.Errorf("not wanted: %s", got[i])
		case !strings.HasPrefix(got[i], want[i]):
			t.Errorf("got  %s\nwant %s", got[i], want[i])
		}
	}
}
