//go:build system

package resolvers

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// load is dnsperf, which asks a server at 127.0.0.1.
type load struct {
	node    *netlab.Node
	port    string
	queries string // a file with a line for each: the name and the type
}

func newLoad(t testing.TB, node *netlab.Node, port, dir, queries string) load {
	t.Helper()
	need.Program(t, "dnsperf")
	return load{node, port, write(t, filepath.Join(dir, "queries"), queries)}
}

var completed = regexp.MustCompile(`Queries completed:\s+(\d+)`)

// run runs dnsperf with more arguments, started by another program (taskset, nice) with its arguments.
// It returns the number of answered queries.
func (l *load) run(d time.Duration, by []string, args ...string) (int, error) {
	line := slices.Concat(by, []string{"dnsperf", "-s", "127.0.0.1", "-p", l.port, "-d", l.queries, "-l", strconv.Itoa(int(d.Seconds()))}, args)
	cmd := exec.Command(line[0], line[1:]...)
	var out []byte
	var err error
	l.node.Do(func() { out, err = cmd.CombinedOutput() })
	m := completed.FindSubmatch(out)
	if err != nil || m == nil {
		return 0, fmt.Errorf("dnsperf: %w: %s", err, out)
	}
	return strconv.Atoi(string(m[1]))
}

// quantile returns the value at a share of all values, from 0 to 1.
func quantile[T cmp.Ordered](all []T, share float64) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(share*float64(len(sorted)-1)+0.5)]
}

var resident = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`)

// memory returns the resident memory in MiB, by a status file of /proc.
func memory(status string) float64 {
	m := resident.FindStringSubmatch(status)
	if m == nil {
		panic("no VmRSS in " + status)
	}
	kib, _ := strconv.Atoi(m[1])
	return float64(kib) / 1024
}
