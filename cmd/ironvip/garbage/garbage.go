// Package garbage says how much garbage may gather in the agent before it is
// collected.
package garbage

import (
	"os"
	"runtime"
	"runtime/debug"
)

const (
	// Percent is how much garbage may gather in the agent, in percent of what
	// is in use, before it is collected: half of Go's default. BENCHMARKS.md has what
	// that costs and saves.
	Percent = 50
	// firstGarbage is how much may gather before the first collection. An agent begins
	// with nothing in use, and would collect a dozen times on its way to what a
	// fleet of some size takes anyway.
	firstGarbage = 32 << 20
)

// Limit sets Percent for the whole process, unless the environment's
// GOGC says otherwise, from the first collection on. That one comes with
// firstGarbage, or when the runtime has had none for two minutes.
func Limit() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(Percent)
	// The collector takes these bytes for being in use, and they take no memory, for
	// nobody touches them.
	room := make([]byte, firstGarbage*100/Percent)
	runtime.GC() // it begins to count with them
	until := new(*byte)
	runtime.AddCleanup(until, func(room []byte) { runtime.KeepAlive(room) }, room)
}
