package configs

import (
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/vip"
)

// told formats problems for comparison: place, field, message and hint.
func told(problems []vip.Problem) []string {
	var out []string
	for _, p := range problems {
		line := p.Error()
		if p.Hint != "" {
			line += " | " + p.Hint
		}
		out = append(out, line)
	}
	return out
}

// startWith checks that each problem starts with the wanted text.
func startWith(t *testing.T, got, want []string) {
	t.Helper()
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

func names(services []vip.Service) string {
	var out []string
	for _, s := range services {
		out = append(out, s.Key.String())
	}
	return strings.Join(out, " ")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
