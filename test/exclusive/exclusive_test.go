package exclusive

import (
	"sync/atomic"
	"testing"
)

// One test at a time has the thing.
func TestUse(t *testing.T) {
	var users atomic.Int32
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			Use(t, "test of itself")
			if n := users.Add(1); n != 1 {
				t.Errorf("%d tests have it", n)
			}
			t.Cleanup(func() { users.Add(-1) })
		})
	}
}
