package parallel

import (
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestAll(t *testing.T) {
	for n := range 50 {
		done := make([]bool, n)
		if !All(n, func(i int) bool { done[i] = true; return true }) || slices.Contains(done, false) {
			t.Errorf("done of %d: %v", n, done)
		}
		if All(n, func(i int) bool { return i != n/2 }) != (n == 0) {
			t.Errorf("the failure of one of %d is not returned", n)
		}
		func() {
			defer func() {
				r := recover()
				expect.Equal(t, r == nil, n == 0, "recovered %v from %d", r, n)
			}()
			All(n, func(i int) bool { panic("a mistake") })
		}()
	}
}
