package kubernetes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/vip"
)

// Options are what a Source depends on. Only Client has no default.
type Options struct {
	Config
	Name   string             // the source's name; "" is Type
	Client *kubeclient.Client // whom to ask; the Writer may use the same
	// Node is this host's name. Where it is none of the cluster's Nodes, no endpoint
	// is local to the host, and what a Service says of local endpoints is not for
	// it: traffic for such a Service may reach all. "" takes every host for a node.
	Node string
	// Ranges is told the ranges that pods have and, unless the source adopts
	// them, those that cluster IPs have: sorted, without doubles, the full list
	// whenever it changes. It is called from one goroutine. With nil, nobody asks
	// for them.
	Ranges func([]netip.Prefix)
	Log    *slog.Logger // nil is the default one

	timing timing // that tests change
}

// timing is how long things take.
type timing struct {
	pace       time.Duration // at least between two words on one Service
	patience   time.Duration // a failure that lasts for so long makes the source stale
	answer     time.Duration // how long an answer may take, and the beginning of a watch
	watch      time.Duration // how long a watch is asked for; up to twice as long
	minBackoff time.Duration
	maxBackoff time.Duration
	page       int64 // how many objects to ask for at a time
}

// The numbers: watches of 5 to 10 minutes are what Kubernetes' own clients ask
// for, spread so that a server that was restarted isn't asked by all at a time
// ever after. A server that is replaced is away for 2 or 3 s, which is no news.
func (t timing) withDefaults() timing {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&t.pace, 100*time.Millisecond)
	set(&t.patience, 3*time.Second)
	set(&t.answer, 30*time.Second)
	set(&t.watch, 5*time.Minute)
	set(&t.minBackoff, 100*time.Millisecond)
	set(&t.maxBackoff, 10*time.Second)
	if t.page == 0 {
		t.page = 500
	}
	return t
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = Type
	}
	if o.LoadBalancerClass == "" {
		o.LoadBalancerClass = DefaultLoadBalancerClass
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.timing = o.timing.withDefaults()
	return o
}

// check says which option can't be right.
func (o *Options) check() error {
	if o.Client == nil {
		return fmt.Errorf("kubernetes: a client is needed")
	}
	if _, err := labels.Parse(o.Selector); err != nil {
		return fmt.Errorf("kubernetes: selector %q: %w", o.Selector, err)
	}
	for _, ns := range o.Namespaces {
		if err := vip.CheckLabel(ns); err != nil {
			return fmt.Errorf("kubernetes: namespaces: %w", err)
		}
	}
	return nil
}
