package configs

import (
	"os"
	"runtime/debug"
)

// GarbagePercent is how much garbage may gather in the agent, in percent of what
// is in use, before it is collected: half of Go's default. BENCHMARKS.md has what
// that costs and saves.
const GarbagePercent = 50

// LimitGarbage sets GarbagePercent for the whole process, unless the environment's
// GOGC says otherwise.
func LimitGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(GarbagePercent)
	}
}
