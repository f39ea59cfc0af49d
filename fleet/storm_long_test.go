//go:build long

package fleet_test

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

const seeds = 10 // of each run

// eachSeed runs a test with its own seeds, from the seed of this run.
func eachSeed(t *testing.T, test func(*testing.T, uint64)) {
	first := seed.Of(t) * seeds
	for n := range uint64(seeds) {
		t.Run(fmt.Sprint(first+n), func(t *testing.T) { test(t, first+n) })
	}
}

func TestManyStorms(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) { stormInMemory(t, seed, 150) })
}

func TestNodesInManyStorms(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) { nodesStorm(t, seed, 60) })
}

func TestSlowWriterGetsItsTurnForLong(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		for _, f := range fastWriters {
			slowWriter(t, seed, f, 60)
		}
	})
}
