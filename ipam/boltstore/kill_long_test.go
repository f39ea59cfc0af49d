//go:build long

package boltstore

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestKilledManyTimes(t *testing.T) { killWhileWriting(t, seed.Of(t), 30) }
