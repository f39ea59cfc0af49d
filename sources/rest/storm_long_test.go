//go:build long

package rest

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/seed"
)

func TestManyStorms(t *testing.T) {
	const storms = 6
	first := seed.Of(t) * storms
	for n := range uint64(storms) {
		t.Run(fmt.Sprint(first+n), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { runStorm(t, first+n, 60) })
		})
	}
}
