// Package bubble runs a test on the fake time of testing/synctest, also under
// the race detector.
package bubble

import (
	"testing"
	"testing/synctest"
)

// Test is synctest.Test. With the race detector it runs the bubble, and thus the whole process, on
// one processor, and restores the number of processors at the end.
//
// In Go 1.26 all timers of a bubble share one context of the race detector. If two goroutines of a
// bubble find their timers expired at the same time on two processors, both write to that context
// and the process crashes: with "CHECK failed", a segmentation violation or worse
// (golang/go#78156). The detector uses the happens-before order and not real concurrency, so one
// processor loses little.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	release := oneProcessor()
	defer release()
	synctest.Test(t, f)
}

// Run is t.Run with Test.
func Run(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { Test(t, f) })
}
