//go:build long

package store

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestEachByteOfPageHeaders(t *testing.T) { damageFiles(t, seed.Of(t), 1, 1_000) }
