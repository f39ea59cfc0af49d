//go:build system || vm

package program

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// On the host, the agent is the userspace proxy on the loopback. In the VM, it programs the kernel.
var (
	mode    = "proxy"
	maxWait = time.Minute
	// poolBase differs between runs of this package, which may be concurrent.
	poolBase = fmt.Sprintf("127.%d", 96+os.Getpid()%100)
)

func init() {
	if os.Getenv("IRONVIP_VM") != "" { // an order of magnitude slower than a host
		mode, maxWait, poolBase = "ipvs", 2*time.Minute, "10.96"
	}
}

// parallel lets a test run concurrently with others: each has its own pool and state. In the VM, there is one kernel, and one
// agent at a time in it.
func parallel(t *testing.T) {
	if mode == "proxy" {
		t.Parallel()
	}
}
