package agent

import (
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// limitMemory makes the garbage collector work harder before the process reaches the limits of memory that
// its control group (version 2) has, or one above it: the kernel slows down a process at memory.high, and ends
// it at memory.max. A tenth remains for what Go doesn't count. Without limits, it changes nothing.
func limitMemory(root fs.FS) {
	if limit := groupLimit(root); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
}

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

// groupLimit returns the lowest limit in bytes, or math.MaxInt64.
func groupLimit(root fs.FS) int64 {
	limit := int64(math.MaxInt64)
	of, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(of)) {
		group, is := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		for ; is; group = path.Dir(group) {
			for _, file := range []string{"memory.high", "memory.max"} {
				text, err := fs.ReadFile(root, path.Join("sys/fs/cgroup", group, file))
				if err != nil { // the root has no limits
					continue
				}
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // "max" is no limit
					limit = min(limit, n)
				}
			}
			is = group != "." && group != ""
		}
	}
	return limit
}
