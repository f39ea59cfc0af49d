//go:build linux

package main

import (
	"strconv"
	"time"
)

func readTSC() uint64

// tscMeasurement is how long the processor's counter is compared with the clock, for an error of about 0.01%.
const tscMeasurement = 20 * time.Millisecond

// clockParameters tells the guest the frequency of its processor's counter, its clock, which without
// hardware virtualization is the host's. The guest's own measurement at its boot is sometimes wrong on
// a busy host: its clock was then 30 times as fast as the host's.
func clockParameters() string {
	ticks, began := tick()
	time.Sleep(tscMeasurement)
	more, end := tick()
	khz := float64(more-ticks) / float64(end.Sub(began)) * float64(time.Millisecond)
	return " tsc_early_khz=" + strconv.Itoa(int(khz+0.5))
}

// tick reads the counter and the clock at the same time, as exactly as a few tries can.
func tick() (ticks uint64, at time.Time) {
	var best time.Duration
	for i := range 10 {
		before := time.Now()
		t := readTSC()
		if took := time.Since(before); i == 0 || took < best {
			best, ticks, at = took, t, before.Add(took/2)
		}
	}
	return ticks, at
}
