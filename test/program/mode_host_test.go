//go:build system && !vm

package program

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// On the host the agent is the userspace proxy on the loopback.
const (
	mode    = "proxy"
	maxWait = time.Minute
)

// sharingModes are the dataplanes of two agents with one device.
var sharingModes = []string{"proxy", "nft"}

// poolBase differs between runs of this package, which may be concurrent.
var poolBase = fmt.Sprintf("127.%d", 96+os.Getpid()%100)

// parallel lets a test run concurrently with others: each has its own pool and state.
func parallel(t *testing.T) { t.Parallel() }
