//go:build linux && vm && long

package ipvs

import (
	"testing"

	"github.com/ironvip/ironvip/vip"
)

// The tests that run for each protocol and each family also pass with the other combinations.
func TestEveryFlavor(t *testing.T) {
	usual := flavors
	flavors = []flavor{{vip.TCP, "[fd96::1]:80"}, {vip.UDP, "10.96.0.1:80"}}
	defer func() { flavors = usual }()
	for name, test := range map[string]func(*testing.T){
		"flushes": TestOpenConnectionsOutliveFlushes, "refusals": TestRefusals, "real server": TestRealServer, "real servers": TestRealServers,
		"counts of a range": TestPortRangeIsCounted,
	} {
		t.Run(name, test)
	}
}
