package main

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Each limit of SECURITY.md names tests, and they exist.
func TestLimitsHaveTests(t *testing.T) {
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)`)
	must.Succeed(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == ".cache" {
			return cmp.Or(err, fs.SkipDir)
		}
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range declaration.FindAllStringSubmatch(string(must.Get(os.ReadFile(path))(t)), -1) {
				declared[m[1]] = true
			}
		}
		return nil
	}))
	_, limits, _ := strings.Cut(string(must.Get(os.ReadFile("../../SECURITY.md"))(t)), "\n## Limits\n")
	limits, _, _ = strings.Cut(limits, "\n## ")
	rows := 0
	for line := range strings.Lines(limits) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(line, "| test |") {
			continue
		}
		rows++
		names := regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[3], -1)
		expect.True(t, len(names) > 0, "no test: %s", line)
		for _, n := range names {
			expect.True(t, declared[n[1]], "no such test: %s", n[1])
		}
	}
	expect.True(t, rows >= 10, "%d rows", rows)
}
