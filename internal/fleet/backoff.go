package fleet

import (
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

// maxWait bounds the pause after failures in a row.
const maxWait = 10 * time.Second

// newBackoff paces what is asked of the KV store again after it failed.
func newBackoff() backoff.Backoff {
	return backoff.Backoff{Lo: 100 * time.Millisecond, Hi: maxWait}
}
