//go:build vm

package program

import (
	"testing"
	"time"
)

// In the VM the agent programs the kernel. The VM is an order of magnitude
// slower than a host.
const (
	mode     = "ipvs"
	poolBase = "10.96"
	maxWait  = 2 * time.Minute
)

// sharingModes are the dataplanes of two agents with one device.
var sharingModes = []string{"ipvs"}

// parallel does nothing: there is one kernel, and one agent at a time in it.
func parallel(*testing.T) {}
