package fleet

import (
	"time"

	"github.com/ironvip/ironvip/retry"
)

// maxWait bounds the pause after failures in a row.
const maxWait = 10 * time.Second

// newBackoff paces what is asked of the KV store again after it failed.
func newBackoff() retry.Backoff {
	return retry.Backoff{Lo: 100 * time.Millisecond, Hi: maxWait}
}
