//go:build vm

package program

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Tests of the host that depend on the dataplane, with IPVS.

func TestStatisticsIPVS(t *testing.T)           { countsTraffic(t) }
func TestConnectionsAreListedIPVS(t *testing.T) { listsConnections(t) }
func TestOperatorDrainIPVS(t *testing.T)        { overrides(t) }
func TestUnprivilegedAgentIPVS(t *testing.T) {
	runsUnprivileged(t, []uintptr{unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}) // of the unit
}
func TestDemoIPVS(t *testing.T) { showsDemo(t, 0) }
