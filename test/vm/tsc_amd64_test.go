//go:build linux

package main

import (
	"fmt"
	"math"
	"testing"
)

// Measurements of the counter agree. The guest's kernel accepts an error of 1%.
func TestClockParameters(t *testing.T) {
	var khz [2]float64
	for i := range khz {
		if _, err := fmt.Sscanf(clockParameters(), " tsc_early_khz=%g", &khz[i]); err != nil {
			t.Fatal(err)
		}
	}
	if khz[0] < 100_000 || math.Abs(khz[0]/khz[1]-1) > 0.005 {
		t.Errorf("the counter has %g kHz", khz)
	}
}
