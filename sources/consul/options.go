package consul

import (
	"cmp"
	"strings"
	"time"

	"github.com/ironvip/ironvip/vip/spec"
)

// Options are the dependencies of a Source. All of them have defaults.
type Options struct {
	Config
	Name string // the source's name; "": Type
	// Pools returns the pools to check services against; nil: none. It is called for each service.
	Pools func() []spec.Pool

	timing timing  // changed by tests
	asked  catalog // nil: a real Consul
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
	held       int           // queries for services that may be under way at once; negative: any number
	cycle      time.Duration // interval in which all services are queried if there are more than held
}

// heldConnections is how many queries for services are held where each needs a connection of its own. Consul accepts
// 200 connections from a host by default, and other programs of the host need some of them.
const heldConnections = 150

// The defaults have these reasons. A full resync every 5 minutes costs 3 queries a second with
// 1,000 services. The limit of 500 queries a second bounds the cost of many changes to about a
// tenth of a core here and in Consul. With 1,000 services that change all the time, each service is
// read every 2 s.
func (t timing) withDefaults() timing {
	return timing{
		pace:       cmp.Or(t.pace, 100*time.Millisecond),
		hold:       cmp.Or(t.hold, 5*time.Minute),
		listHold:   cmp.Or(t.listHold, 30*time.Second),
		listPace:   cmp.Or(t.listPace, time.Second),
		answer:     cmp.Or(t.answer, 15*time.Second),
		firstQuiet: cmp.Or(t.firstQuiet, 5*time.Second),
		rate:       cmp.Or(t.rate, 500),
		burst:      cmp.Or(t.burst, 2000),
		minBackoff: cmp.Or(t.minBackoff, 100*time.Millisecond),
		maxBackoff: cmp.Or(t.maxBackoff, 10*time.Second),
		idle:       cmp.Or(t.idle, 30*time.Second),
		held:       cmp.Or(t.held, heldConnections),
		cycle:      cmp.Or(t.cycle, 10*time.Second),
	}
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, Type)
	if o.Tag == "" && len(o.Services) == 0 {
		o.Tag = DefaultTag
	}
	if o.Pools == nil {
		o.Pools = func() []spec.Pool { return nil }
	}
	if strings.HasPrefix(o.Address, "https://") { // HTTP/2: a connection has many queries
		o.timing.held = -1
	}
	o.timing = o.timing.withDefaults()
	return o
}
