// Package bubble runs a test on the fake time of testing/synctest, also under
// the race detector.
package bubble

import (
	"testing"
	"testing/synctest"
)

// Test is synctest.Test. Built with the race detector it runs the bubble on one
// processor, the whole process with it, and gives the others back at the end.
//
// In Go 1.26 all timers of a bubble share one context of the race detector. Two
// goroutines of a bubble that find their timers expired at once, on two
// processors, both write to it, and it takes the process down: with "CHECK
// failed", a segmentation violation or worse (golang/go#78156). The detector
// goes by what happens before what, not by what happens at once, so one
// processor loses little.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	release := oneProcessor()
	defer release()
	synctest.Test(t, f)
}
