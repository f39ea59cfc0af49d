package fleet

import (
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

// maxWait bounds the pause after repeated failures.
const maxWait = 10 * time.Second

// newBackoff returns the pauses between requests to a Consul that fails.
func newBackoff() backoff.Backoff {
	return backoff.Backoff{Lo: 100 * time.Millisecond, Hi: maxWait}
}
