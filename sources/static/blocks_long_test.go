//go:build long

package static

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestManyBlocksAreLikeTheWhole(t *testing.T) { blocksAreLikeTheWhole(t, seed.Of(t), 3000) }
