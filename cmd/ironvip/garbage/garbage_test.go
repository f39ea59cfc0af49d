package garbage

import (
	"runtime"
	"testing"
)

// Garbage gathers up to the room that it has at the start without a collection,
// and from the first one on as it usually does.
func TestFirstGarbageHasRoom(t *testing.T) {
	t.Setenv("GOGC", "")
	Limit()
	if n := collections(firstGarbage / 2); n != 0 {
		t.Errorf("%d collections at the start", n)
	}
	for range 3 { // the first ends it, and the others know
		runtime.GC()
	}
	if n := collections(firstGarbage / 2); n == 0 {
		t.Error("no collection after the first")
	}
}

var sink []byte

// collections makes that many bytes of garbage and returns how often it was
// collected.
func collections(garbage int) uint32 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const each = 64 << 10
	for range garbage / each {
		sink = make([]byte, each)
	}
	runtime.ReadMemStats(&after)
	return after.NumGC - before.NumGC
}
