// Package memlimit keeps Go's memory below the limits of the process's control group.
package memlimit

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Apply makes the garbage collector work harder before the process reaches the limits of memory that
// its control group (version 2) has, or one above it: the kernel slows down a process at memory.high, and ends
// it at memory.max. A tenth remains for what Go doesn't count. Without limits, and with GOMEMLIMIT, it changes nothing.
func Apply() {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	if limit := groupLimit(os.DirFS("/")); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit / 10 * 9)
	}
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
