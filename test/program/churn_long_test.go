//go:build vm && long

package program

import (
	"math/rand/v2"
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestLongChurn(t *testing.T) {
	churn(t, rand.New(rand.NewPCG(seed.Of(t), 2)), 500, 1000, 20)
}
