package probe

import (
	"time"

	"github.com/ironvip/ironvip/internal/metric"
	"github.com/ironvip/ironvip/vip"
)

// Stats are counters of an Engine, for metrics. Counters only grow, except where stated.
type Stats struct {
	Targets int // now
	Running int // probes now
	Waiting int // probes now that wait because too many run

	Probes    []ProbeCount      // finished probes, for each type and outcome that occurred
	Durations *metric.Durations // of the finished probes, by type; without local faults
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

// Metrics are the families of health. Package api adds all but the durations, which an Engine counts.
var Metrics = metric.NewGroup("Health", "")

var familyDuration = Metrics.Histogram("health_check_duration_seconds", "Duration of finished probes.", "type")

// NewDurations returns an empty histogram. The default timeout is 1 s, the largest one is a minute.
func NewDurations() *metric.Durations {
	return metric.NewDurations(familyDuration, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60)
}

const checkTypes = vip.CheckExec + 1 // number of types that probe, with the zero one

// counters are the counters of all probes. The engine's lock guards them.
type counters struct {
	probes                         [checkTypes][outcomes]uint64
	durations                      *metric.Durations
	late, stalls, batches, changes uint64
}

func (c *counters) add(t vip.CheckType, o Outcome, took time.Duration) {
	c.probes[t][o]++
	if !o.IsLocal() {
		c.durations.Observe(took, t.String())
	}
}

func (c *counters) stats() Stats {
	s := Stats{Durations: c.durations, Late: c.late, Stalls: c.stalls, Batches: c.batches, Changes: c.changes}
	for t := vip.CheckTCP; t < checkTypes; t++ {
		for o, n := range c.probes[t] {
			if n > 0 {
				s.Probes = append(s.Probes, ProbeCount{t, Outcome(o), n})
			}
		}
	}
	return s
}
