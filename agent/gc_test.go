package agent

import (
	"runtime/debug"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

// The garbage collector works as usual after a start, unless the environment sets GOGC: then a start has no reserve.
func TestTheEndOfAStart(t *testing.T) {
	former := debug.SetGCPercent(222)
	defer debug.SetGCPercent(former)
	endStart()
	expect.Equal(t, debug.SetGCPercent(startGCPercent), 222, "GOGC of the environment")
	startReserve.Store(new([]byte))
	endStart()
	expect.Equal(t, debug.SetGCPercent(former), gcPercent, "GOGC after the start")
}
