// Package need states what a test cannot do without. A test that lacks it is
// skipped with a typed reason, so that every skip can be counted by kind; where
// IRONVIP_CI=1 is set nothing may be lacking, and the test fails instead.
package need

import (
	"os"
	"testing"
)

// Reason is a kind of thing that a machine may lack.
type Reason string

// What tests may lack.
const (
	ReasonRoot Reason = "needs root"
)

// Root skips the test unless it runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lack(t, ReasonRoot, "run as root to include it")
	}
}

// Lack ends the test for want of something: skipped, or failed under
// IRONVIP_CI=1.
func Lack(t testing.TB, reason Reason, detail string) {
	t.Helper()
	if os.Getenv("IRONVIP_CI") == "1" {
		t.Fatalf("%s: %s (IRONVIP_CI=1 allows no skips)", reason, detail)
	}
	t.Skipf("%s: %s", reason, detail)
}
