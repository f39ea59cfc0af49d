//go:build program

package program

import "time"

// On the host the agent is the userspace proxy on the loopback.
const (
	mode     = "proxy"
	poolBase = "127.96"
	patience = 20 * time.Second
)
