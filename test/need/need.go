// Package need states the requirements of a test. Without one of them the test is skipped with a
// typed reason, so that skips can be counted by kind. With IRONVIP_CI=1 the test fails instead.
package need

import (
	"os"
	"path/filepath"
	"testing"
)

// Reason is a kind of requirement.
type Reason string

// The requirements of tests.
const (
	ReasonRoot    Reason = "needs root"
	ReasonCgroups Reason = "needs writable control groups"
)

// Root skips the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lack(t, ReasonRoot, "run as root to include it")
	}
}

// Lack ends the test because of a missing requirement: it skips it, or fails it with IRONVIP_CI=1.
func Lack(t testing.TB, reason Reason, detail string) {
	t.Helper()
	if os.Getenv("IRONVIP_CI") == "1" {
		t.Fatalf("%s: %s (IRONVIP_CI=1 allows no skips)", reason, detail)
	}
	t.Skipf("%s: %s", reason, detail)
}

// ControlGroup skips the test unless it can make control groups: it makes and removes one with the
// name below dir, a mounted hierarchy.
func ControlGroup(t testing.TB, dir, name string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		Lack(t, ReasonCgroups, err.Error())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
