package keepalived

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/migrate"
)

// convert converts a text in a file of its own, which notes call "f".
func convert(t testing.TB, text string) (migrate.Result, string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	result := Convert(file)
	var notes strings.Builder
	for _, n := range result.Notes {
		notes.WriteString(strings.ReplaceAll(n.String(), dir+"/", "") + "\n")
	}
	return result, notes.String()
}

// Mistakes in the text are notes with a line, and the rest is converted.
func TestMistakes(t *testing.T) {
	good := "virtual_server 10.0.0.1 80 {\n protocol TCP\n real_server 10.1.0.1 80 { weight 2 }\n}\n"
	for _, c := range []struct{ name, text, note string }{
		{"never closed", good + "virtual_server 10.0.0.2 80 {\n", "f:5: { is never closed"},
		{"closed twice", good + "}\n", "f:5: } has no matching {"},
		{"no keyword", good + "{ a b }\n", "f:5: { without a keyword"},
		{"unknown keyword", good + "virtual_servr 10.0.0.2 80 { }\n", `f:5: unknown keyword "virtual_servr 10.0.0.2 80"`},
		{"unknown definition", good + "virtual_server $VIP 80 { }\n", "f:5: $VIP is not defined"},
		{"no address", good + "virtual_server example.com 80 { }\n", `f:5: "example.com" is not an address`},
		{"no port", good + "virtual_server 10.0.0.2 http { }\n", `f:5: "http" is not a port`},
		{"includes nothing", good + "include none/*.conf\n", "f:5: include none/*.conf: no such file"},
		{"includes itself", good + "include f\n", "include f: files include each other more than 32 times"},
		{"deep", good + strings.Repeat("a {\n", 100) + strings.Repeat("}\n", 100), "blocks are nested more than 32 times"},
		{"range too large", "virtual_server_group g { 10.0.0.1-10.1.0.1 80 }\n" + good + "virtual_server group g { }\n", "f:1: \"10.0.0.1-10.1.0.1\" is not a range of at most 4096 addresses"},
	} {
		t.Run(c.name, func(t *testing.T) {
			result, notes := convert(t, c.text)
			if !strings.Contains(notes, c.note) {
				t.Errorf("notes:\n%s\nwithout %q", notes, c.note)
			}
			if len(result.Services) == 0 || len(result.Services[0].Backends) != 1 || *result.Services[0].Backends[0].Weight != 2 {
				t.Errorf("the rest is not converted: %+v", result.Services)
			}
		})
	}
}

// A definition that doubles itself on each line does not exhaust the memory.
func TestDefinitionsDoNotExplode(t *testing.T) {
	var text strings.Builder
	text.WriteString("$A0=" + strings.Repeat("x", 100) + "\n")
	for i := range 60 {
		fmt.Fprintf(&text, "$A%d=$A%d$A%d\n", i+1, i, i)
	}
	text.WriteString("virtual_server $A60 80 { }\n")
	if result, _ := convert(t, text.String()); len(result.Services) != 0 {
		t.Error(result.Services)
	}
}

// A large file is converted whole.
func TestLargeFile(t *testing.T) {
	var text strings.Builder
	n := 0
	for ; text.Len() < 10<<20; n++ {
		fmt.Fprintf(&text, "virtual_server 10.%d.%d.%d 80 {\n  protocol TCP\n  delay_loop 5\n  lb_kind NAT\n  real_server 10.200.0.1 80 {\n    TCP_CHECK {\n      connect_timeout 2\n    }\n  }\n}\n", n>>16&255, n>>8&255, n&255)
	}
	result, notes := convert(t, text.String())
	if len(result.Services) != n || len(result.Addresses) != n || notes != "" {
		t.Errorf("%d services, %d addresses, want %d; notes %.200s", len(result.Services), len(result.Addresses), n, notes)
	}
}

func FuzzConvert(f *testing.F) {
	sample, err := os.ReadFile("testdata/keepalived.conf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(sample))
	f.Add("a { b {\n}\n} } {\n")
	f.Add("$A=$A\n$A\n@x\n\"unclosed\nvirtual_server \"a b\" 1-2 {")
	f.Fuzz(func(t *testing.T, text string) {
		result, _ := convert(t, text)
		for _, n := range result.Notes {
			if n.Text == "" {
				t.Errorf("empty note: %v", n)
			}
		}
	})
}
