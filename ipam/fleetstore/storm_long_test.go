//go:build long

package fleetstore

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestManyStorms(t *testing.T) {
	const storms = 10
	first := seed.Of(t) * storms
	for n := range uint64(storms) {
		t.Run(fmt.Sprint(first+n), func(t *testing.T) { stormOnConsul(t, first+n) })
	}
}
