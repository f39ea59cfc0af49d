package kubernetes

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
)

// Type is the source's type in configuration and status, and its name where it
// has no other.
const Type = "kubernetes"

// DefaultLoadBalancerClass is spec.loadBalancerClass of the Services that are
// ours.
const DefaultLoadBalancerClass = "ironvip.io/vip"

// BackendMode is where traffic for a Service is sent.
type BackendMode uint8

const (
	// BackendsEndpoints sends it to the addresses in its EndpointSlices: this host
	// needs a route to the pods.
	BackendsEndpoints BackendMode = iota
	// BackendsNodePorts sends it to the nodes' addresses and the Service's node
	// ports.
	BackendsNodePorts
)

// String returns the mode as the configuration has it.
func (m BackendMode) String() string {
	switch m {
	case BackendsEndpoints:
		return "endpoints"
	case BackendsNodePorts:
		return "node-ports"
	}
	return fmt.Sprintf("BackendMode(%d)", uint8(m))
}

// ParseBackendMode reads what String writes.
func ParseBackendMode(text string) (BackendMode, error) {
	for _, m := range []BackendMode{BackendsEndpoints, BackendsNodePorts} {
		if text == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%q is no way to reach backends: use %q or %q", text, BackendsEndpoints, BackendsNodePorts)
}

// Options are what a Source depends on. Only Client has no default.
type Options struct {
	Name   string             // the source's name; "" is Type
	Client *kubeclient.Client // whom to ask; the Writer may use the same
	// LoadBalancerClass is spec.loadBalancerClass of the Services of type
	// LoadBalancer that are ours; "" is DefaultLoadBalancerClass. Classless says
	// that those without a class are ours, too.
	LoadBalancerClass string
	Classless         bool
	// Namespaces are those whose Services are followed; empty is all, which needs
	// rights in all. Selector is a label selector, in kubectl's words, that
	// Services have to match; "" is any.
	Namespaces []string
	Selector   string
	// AdoptClusterIPs mirrors the cluster IPs and node ports of all Services as
	// Kubernetes assigned them, which is kube-proxy's work, instead of serving
	// load balancers. Nothing is written back.
	AdoptClusterIPs bool
	Backends        BackendMode
	// Node is this host's name. Where it is none of the cluster's Nodes, no endpoint
	// is local to the host, and what a Service says of local endpoints is not for
	// it: traffic for such a Service may reach all. "" takes every host for a node.
	Node string
	// Pool is for Services that name none in their annotations; "" is the first
	// pool with auto_assign.
	Pool string
	// ShrinkGuard is how long what vanishes in great numbers is doubted: 0 is
	// sources.DefaultShrinkGuard, below 0 not at all.
	ShrinkGuard time.Duration
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
	if o.ShrinkGuard == 0 {
		o.ShrinkGuard = sources.DefaultShrinkGuard
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
