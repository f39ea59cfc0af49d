package probe

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// Stats are counters of an Engine, for metrics. Counters only grow, except where stated.
type Stats struct {
	Targets int // now
	Running int // probes now
	Waiting int // probes now that wait because too many run

	Probes    []ProbeCount      // finished probes, for each type and outcome that occurred
	Durations []Histogram       // of the finished probes, for each type that occurred; without local faults
	Late      uint64            // probes that started more than an interval late
	Stalls    uint64            // times that the agent did not run for a while, and probes were spread again
	Faults    map[Outcome]Fault // current series of probes that proved nothing, by their local outcome
	Delayed   []Delayed         // current series of probes that started more than an interval late
	Batches   uint64            // writes of changed rows to the table
	Changes   uint64            // changed rows
}

// Delayed is a series of probes that started more than an interval late, because too many of their
// types ran.
type Delayed struct {
	Fault
	Types          string // "tcp, udp"
	Limit          int    // probes of these types that may run at once
	Running, Queue int    // that run, and that wait, now
}

// ProbeCount counts the finished probes of one type and outcome.
type ProbeCount struct {
	Type    vip.CheckType
	Outcome Outcome
	N       uint64
}

// Histogram counts the durations of the probes of one type. Counts are cumulative: Counts[i] probes
// took at most Bounds[i].
type Histogram struct {
	Type   vip.CheckType
	Bounds []time.Duration
	Counts []uint64
	Count  uint64
	Sum    time.Duration
}

// bounds of the histograms. The default timeout is 1 s, the largest one is a minute.
var bounds = [...]time.Duration{500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 10 * time.Second, time.Minute}

const checkTypes = vip.CheckExec + 1 // number of types that probe, with the zero one

// counters are the counters of all probes. The engine's lock guards them.
type counters struct {
	probes    [checkTypes][outcomes]uint64
	durations [checkTypes]struct {
		buckets [len(bounds)]uint64 // not cumulative
		sum     time.Duration
	}
	late, stalls, batches, changes uint64
}

func (c *counters) add(t vip.CheckType, o Outcome, took time.Duration) {
	c.probes[t][o]++
	if o.IsLocal() {
		return
	}
	d := &c.durations[t]
	d.sum += took
	for i, bound := range bounds {
		if took <= bound {
			d.buckets[i]++
			break
		}
	}
}

func (c *counters) stats() Stats {
	s := Stats{Late: c.late, Stalls: c.stalls, Batches: c.batches, Changes: c.changes}
	for t := vip.CheckTCP; t < checkTypes; t++ {
		h := Histogram{Type: t, Bounds: bounds[:], Counts: make([]uint64, len(bounds)), Sum: c.durations[t].sum}
		for o, n := range c.probes[t] {
			if n == 0 {
				continue
			}
			s.Probes = append(s.Probes, ProbeCount{t, Outcome(o), n})
			if !Outcome(o).IsLocal() {
				h.Count += n
			}
		}
		var sum uint64
		for i, n := range c.durations[t].buckets {
			sum += n
			h.Counts[i] = sum
		}
		if h.Count > 0 {
			s.Durations = append(s.Durations, h)
		}
	}
	return s
}
