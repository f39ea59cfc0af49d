//go:build program

package program

import (
	"testing"
	"time"
)

// On the host the agent is the userspace proxy on the loopback.
const (
	mode     = "proxy"
	poolBase = "127.96"
	patience = 20 * time.Second
)

// parallel lets a test run beside others: each has its own pool and state.
func parallel(t *testing.T) { t.Parallel() }
