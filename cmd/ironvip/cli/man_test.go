package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/configs/reference"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// The manual has a page for each command and each key, and a linter accepts it.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	if r := run(t, Options{}, "man "+dir); r.code != command.ExitOK || r.stdout+r.stderr != "" {
		t.Fatal(r)
	}
	pages := map[string]string{}
	entries := must.Get(os.ReadDir(dir))(t)
	for _, e := range entries {
		text := must.Get(os.ReadFile(filepath.Join(dir, e.Name())))(t)
		pages[e.Name()] = string(text)
	}
	root := root()
	for _, c := range root.Commands() {
		if _, written := pages["ironvip-"+c.Name()+".1"]; written == c.Hidden {
			t.Errorf("a page of %s: %v, hidden: %v", c.Name(), written, c.Hidden)
		}
	}
	for want, page := range map[string]string{
		".SS ironvip service apply": "ironvip-service.1", ".B \\-\\-strict\n": "ironvip-config.1", "ironvip\\-status(1)": "ironvip.1",
		"\n.B node.state_dir\n": "ironvip.toml.5", "\n.B max_connections\n": "ironvip.toml.5",
	} {
		expect.Contains(t, pages[page], want, "%s lacks", page)
	}
	for name, table := range reference.Tables {
		for _, k := range table {
			if !strings.Contains(pages["ironvip.toml.5"], "\n.B "+k.Key+"\n") {
				t.Errorf("ironvip.toml.5 lacks %s of %s", k.Key, name)
			}
		}
	}
	for name, text := range pages {
		if strings.ContainsAny(text, "`") || strings.Contains(text, "](") {
			t.Errorf("%s has Markdown", name)
		}
	}
	mandoc := need.Program(t, "mandoc")
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range pages {
			if !yield(name) {
				return
			}
		}
	}) {
		// No page has a date, so that two builds are the same.
		out, _ := exec.Command(mandoc, "-T", "lint", "-W", "warning", filepath.Join(dir, name)).CombinedOutput()
		for l := range strings.Lines(string(out)) {
			if !strings.Contains(l, "missing date") && !strings.Contains(l, "referenced manual not found") {
				t.Error(l)
			}
		}
	}
}
