package seed_test

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]uint64{"": 1, "7": 7, "18446744073709551615": 1<<64 - 1} {
		t.Setenv("IRONVIP_SEED", text)
		if got := seed.Of(t); got != want {
			t.Errorf("IRONVIP_SEED=%q: seed %d, want %d", text, got, want)
		}
	}
}
