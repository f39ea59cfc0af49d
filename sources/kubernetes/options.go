package kubernetes

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/ironvip/ironvip/internal/kubeclient"
)

// Options are the dependencies of a Source. Only Client has no default.
type Options struct {
	Config
	Name   string             // the source's name; "": Type
	Client *kubeclient.Client // the Writer may use the same client
	// Node is the name of this host. If it is not the name of a Node of the cluster, no endpoint is
	// local to this host. The policy Local of a Service then has no effect, and its traffic may
	// reach all endpoints. "" means that every host counts as a node.
	Node string
	// Ranges receives the pod ranges and, unless the source adopts them, the cluster IP ranges. The
	// list is full, sorted and without duplicates. Ranges is called after each change, from one
	// goroutine. If it is nil, the source does not read the ranges.
	Ranges func([]netip.Prefix)

	timing timing // changed by tests
}

// timing holds intervals and timeouts.
type timing struct {
	pace        time.Duration // minimum interval between two batches
	gracePeriod time.Duration // a failure that lasts this long makes the source stale
	answer      time.Duration // timeout of an answer, and of the beginning of a watch
	watch       time.Duration // requested duration of a watch; up to twice as long
	minBackoff  time.Duration
	maxBackoff  time.Duration
	page        int64 // number of objects to request at a time
	objects     int   // maximum number of objects of a kind in a namespace or in all
}

// Watches last 5 to 10 minutes, like those of Kubernetes' own clients. The duration is random, so
// that after a restart of the server the clients' requests spread over time. A server that is
// replaced is unavailable for 2 or 3 s, which is too short to be reported.
func (t timing) withDefaults() timing {
	return timing{
		pace:        cmp.Or(t.pace, 100*time.Millisecond),
		gracePeriod: cmp.Or(t.gracePeriod, 3*time.Second),
		answer:      cmp.Or(t.answer, 30*time.Second),
		watch:       cmp.Or(t.watch, 5*time.Minute),
		minBackoff:  cmp.Or(t.minBackoff, 100*time.Millisecond),
		maxBackoff:  cmp.Or(t.maxBackoff, 10*time.Second),
		page:        cmp.Or(t.page, 500),
		objects:     cmp.Or(t.objects, 500_000), // Kubernetes supports 150,000 pods
	}
}

func (o Options) withDefaults() Options {
	o.Name = cmp.Or(o.Name, Type)
	o.LoadBalancerClass = cmp.Or(o.LoadBalancerClass, DefaultLoadBalancerClass)
	o.timing = o.timing.withDefaults()
	return o
}
