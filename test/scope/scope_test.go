package scope_test

import (
	"slices"
	"testing"

	"github.com/ironvip/ironvip/test/scope"
)

func TestRun(t *testing.T) {
	var order []string
	scope.Run(t, func(part testing.TB) {
		for _, s := range []string{"first", "second"} {
			part.Cleanup(func() { order = append(order, s) })
		}
		order = append(order, "body")
	})
	if !slices.Equal(order, []string{"body", "second", "first"}) {
		t.Errorf("%v", order)
	}
}
