package configs

import (
	"os"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/vip"
)

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
