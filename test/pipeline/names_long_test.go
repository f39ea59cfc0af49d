//go:build long

package pipeline

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestNamesContestedForLong(t *testing.T) {
	for n := range uint64(10) {
		contestedNames(t, seed.Of(t)*10+n)
	}
}
