// Package seed gives tests with random input their seed. The seed is the same in every run of
// "make test", so such a test is deterministic there. "make test-long" runs the tests with the
// build tag "long" with one seed after another, and repeats a seed with SEED=n.
package seed

import (
	"os"
	"strconv"
	"testing"
)

// Of returns the seed of this run, from IRONVIP_SEED, and prints it; 1 if it is not set.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(1)
	if text := os.Getenv("IRONVIP_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("IRONVIP_SEED: %v", err)
		}
		seed = n
	}
	t.Logf("seed %d: SEED=%d make test-long repeats it", seed, seed)
	return seed
}
