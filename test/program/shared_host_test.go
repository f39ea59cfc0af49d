//go:build system

package program

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// These tests depend on the dataplane. shared_vm_test.go runs them with IPVS.

func TestStatistics(t *testing.T)           { countsTraffic(t) }
func TestConnectionsAreListed(t *testing.T) { listsConnections(t) }
func TestOperatorDrain(t *testing.T)        { overrides(t) }
func TestUnprivilegedAgent(t *testing.T) {
	runsUnprivileged(t, append(capabilitiesOfUnit(t, "ironvip"), capabilitiesOfUnit(t, "ironvip-proxy")...))
}

func TestDemo(t *testing.T) {
	need.Root(t)
	for _, uid := range []uint32{0, nobody} {
		t.Run(fmt.Sprintf("uid %d", uid), func(t *testing.T) { showsDemo(t, uid) })
	}
}

// capabilitiesOfUnit returns the capabilities that the systemd unit gives to the agent.
func capabilitiesOfUnit(t *testing.T, name string) (all []uintptr) {
	t.Helper()
	unit := must.Get(os.ReadFile("../../configs/systemd/" + name + ".service"))(t)
	_, names, _ := strings.Cut(string(unit), "\nAmbientCapabilities=")
	names, _, _ = strings.Cut(names, "\n")
	for name := range strings.FieldsSeq(names) {
		n, known := map[string]uintptr{"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN,
			"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_BPF": unix.CAP_BPF}[name]
		must.True(t, known, "the unit has %q", name)
		all = append(all, n)
	}
	return all
}
