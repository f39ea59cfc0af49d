//go:build long

package consul

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestMuchInAnyOrder(t *testing.T) {
	const seeds = 200
	anythingInAnyOrder(t, seed.Of(t)*seeds, seeds)
}
