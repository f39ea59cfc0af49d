package event

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// kindIn matches the ways in which the code names a kind: in an Event, as a constant, and as the argument of a method that
// makes an Event.
var kindIn = regexp.MustCompile(`(?:\bKind: +|\bevent[A-Z]\w* += |\be\.Kind(?:, e\.Message)? = |\.event\(|\breservationChanged\(|\.announce\([\w.]+, |\.report\()"([a-z]+(?:_[a-z]+)+)"`)

// Kinds has exactly the kinds that the code makes. Two families have kinds with the name of a state.
func TestKindsAreComplete(t *testing.T) {
	found := map[string]bool{"backend_healthy": true, "backend_unhealthy": true, "service_degraded": true, "service_down": true, "service_refused": true}
	must.Succeed(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", ".cache", "test", "tools", "docs"}, d.Name()):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "internal/event\"") {
			for _, m := range kindIn.FindAllSubmatch(text, -1) {
				found[string(m[1])] = true
			}
		}
		return err
	}))
	var listed []string
	for _, k := range Kinds {
		listed = append(listed, k.Name)
		expect.True(t, k.Meaning != "", "%s has no meaning", k.Name)
	}
	slices.Sort(listed)
	expect.SameList(t, listed, slices.Sorted(maps.Keys(found)))
}
