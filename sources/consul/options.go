package consul

import (
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/vip/spec"
)

// Options are the dependencies of a Source. All of them have defaults.
type Options struct {
	Config
	Name string // the source's name; "": Type
	// Pools returns the pools to check services against; nil: none. It is called for each service.
	Pools func() []spec.Pool
	Log   *slog.Logger // nil: slog.Default

	timing timing // changed by tests
	asked  catalog
}

// timing holds intervals, limits and timeouts.
type timing struct {
	pace       time.Duration // minimum interval between two batches, and between two queries for one service
	hold       time.Duration // maximum wait of a blocking query for a service
	listHold   time.Duration // maximum wait of one for the list; also bounds the detection of a silent server
	listPace   time.Duration // minimum interval between two queries for the list
	answer     time.Duration // timeout of a query that does not block
	firstQuiet time.Duration // after so long without a new answer to a first query, the full list is published without the rest
	rate       int           // queries a second for all services together, in the long run
	burst      int           // burst of rate
	minBackoff time.Duration
	maxBackoff time.Duration
	idle       time.Duration // maximum interval between two queries for a service without instances
	cycle      time.Duration // interval in which all services are queried if there are too few slots
}

// The defaults have these reasons. A full resync every 5 minutes costs 3 queries a second with
// 1,000 services. The limit of 500 queries a second bounds the cost of many changes to about a
// tenth of a core here and in Consul. With 1,000 services that change all the time, each service is
// read every 2 s.
func (t timing) withDefaults() timing {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&t.pace, 100*time.Millisecond)
	set(&t.hold, 5*time.Minute)
	set(&t.listHold, 30*time.Second)
	set(&t.listPace, time.Second)
	set(&t.answer, 15*time.Second)
	set(&t.firstQuiet, 5*time.Second)
	set(&t.minBackoff, 100*time.Millisecond)
	set(&t.maxBackoff, 10*time.Second)
	set(&t.idle, 30*time.Second)
	set(&t.cycle, 10*time.Second)
	if t.rate == 0 {
		t.rate, t.burst = 500, 2000
	}
	return t
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = Type
	}
	if o.Tag == "" && len(o.Services) == 0 {
		o.Tag = DefaultTag
	}
	if o.Pools == nil {
		o.Pools = func() []spec.Pool { return nil }
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.timing = o.timing.withDefaults()
	return o
}
