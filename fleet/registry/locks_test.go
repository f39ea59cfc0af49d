package registry

import (
	"context"
	"errors"
	"testing"
)

func TestLockHonorsContext(t *testing.T) {
	var l Locks
	unlock, err := l.Lock(t.Context(), "default/web")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ctx, "default/web", "default/a"); !errors.Is(err, context.Canceled) {
		t.Fatalf("lock with a canceled context: %v", err)
	}
	unlock()
	if l.Len() != 0 {
		t.Errorf("%d locks left", l.Len())
	}
}
