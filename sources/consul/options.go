package consul

import (
	"log/slog"
	"time"

	"github.com/ironvip/ironvip/vip/spec"
)

// Options are what a Source depends on. All of them have defaults.
type Options struct {
	Config
	Name string // the source's name; "" is Type
	// Pools returns what services are checked against; nil is nothing. It is asked
	// anew for each service.
	Pools func() []spec.Pool
	Log   *slog.Logger // nil is the default one

	timing timing // that tests change
	asked  catalog
}

// timing is how long things take.
type timing struct {
	pace       time.Duration // at least between two words on one service, and between two questions for it
	hold       time.Duration // how long a question for a service is held
	listHold   time.Duration // and that for the list: also how soon a server that is silent is noticed
	listPace   time.Duration // at least between two questions for the list
	answer     time.Duration // how long an answer may take that is not held
	firstQuiet time.Duration // with no answer to a first question for so long, the list is given without the rest
	rate       int           // questions a second for all services together, in the long run
	burst      int           // and at once
	minBackoff time.Duration
	maxBackoff time.Duration
	idle       time.Duration // between two questions for a service without instances, at most
	cycle      time.Duration // in which all services are asked for, where not all questions can be held
}

// The numbers: a full resync every 5 minutes costs 1,000 services 3 questions a
// second. At 500 questions a second, what a storm of changes costs is bounded to
// about a tenth of a core here and in Consul, and each of 1,000 services that
// all change all the time is read every 2 s.
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
