package agent

import (
	"math"
	"runtime/debug"
)

// endpointMemory is how much memory an endpoint of a registered service may need, in bytes: the agent has 1.7 KB for each with
// the proxy, the garbage collector as much again, and a change of all of them a second version.
const endpointMemory = 8 << 10

// maxEndpoints returns how many endpoints the services of the API may have for the limit of memory; 0 without a limit.
func maxEndpoints() int {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return int(limit / endpointMemory)
	}
	return 0
}
