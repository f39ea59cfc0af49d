package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// docs/troubleshooting.md has a row for each code of a problem and each check of doctor, and no others.
func TestTroubleshootingIsComplete(t *testing.T) {
	page := readDoc(t, "troubleshooting.md")
	for _, tc := range []struct {
		heading string
		files   []string
		pattern string // the first group is a code
		least   int
	}{
		{"## Codes of problems", []string{"vip/problem.go", "ipam/pool/check.go"}, `(?m)^\s*(?:const )?Code\w+\s*= "(\w+)"`, 17},
		{"## Codes of error responses", []string{"api/v1/problem.go", "api/client/error.go"}, `(?m)^\s*Code\w+\s*= "(\w+)"`, 30},
		{"## Findings of doctor", []string{"cmd/ironvip/cli/doctor/*.go"},
			`\{(?:OK|Warn|Fail), "(\w+)"|check = "(\w+)"|Check: +"(\w+)"|procs, "[\w-]+", "(\w+)"`, 25},
	} {
		var want []string
		for _, pattern := range tc.files {
			paths, err := filepath.Glob("../../../" + pattern)
			if err != nil || len(paths) == 0 {
				t.Fatalf("%s: %v", pattern, err)
			}
			for _, path := range paths {
				if strings.HasSuffix(path, "_test.go") {
					continue
				}
				text := must.Get(os.ReadFile(path))(t)
				for _, m := range regexp.MustCompile(tc.pattern).FindAllStringSubmatch(string(text), -1) {
					code := strings.Join(m[1:], "")
					if strings.HasSuffix(code, "_") { // the prefix of lines of status
						code += "*"
					}
					want = append(want, code)
				}
			}
		}
		if strings.HasSuffix(tc.heading, "doctor") {
			for _, k := range configs.Dataplanes {
				if k.Needs != nil {
					want = append(want, k.Mode)
				}
			}
		}
		slices.Sort(want)
		want = slices.Compact(want)
		_, section, found := strings.Cut(page, "\n"+tc.heading+"\n")
		if !found {
			t.Fatalf("no %s", tc.heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		var got []string
		for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
			got = append(got, m[1])
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || len(want) < tc.least {
			t.Errorf("%s has rows for\n%v, the code has\n%v", tc.heading, got, want)
		}
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile("../../../docs/" + name))(t)
	return string(text)
}

// Each line of docs/failures.md names tests that exist.
func TestFailuresAreTested(t *testing.T) {
	named := regexp.MustCompile("`([\\w/]+)\\.(Test\\w+)`")
	rows := 0
	for line := range strings.Lines(readDoc(t, "failures.md")) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| failure |") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(line, -1)
		expect.True(t, len(tests) > 0, "no test: %s", line)
		for _, m := range tests {
			if !hasTest(t, "../../../"+m[1], m[2]) {
				t.Errorf("%s has no %s: %s", m[1], m[2], line)
			}
		}
	}
	expect.AtLeast(t, rows, 20, "only %d failures were found in the page", rows)
}

// hasTest reports whether a folder has a test.
func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	paths, err := filepath.Glob(dir + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text := must.Get(os.ReadFile(path))(t)
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
