package registry

import (
	"context"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func TestLockHonorsContext(t *testing.T) {
	var l Locks
	unlock := must.Get(l.Lock(t.Context(), "default/web"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := l.Lock(ctx, "default/web", "default/a")
	must.Is(t, err, context.Canceled, "lock with a canceled context")
	unlock()
	expect.Equal(t, l.Len(), 0, "locks left")
}
