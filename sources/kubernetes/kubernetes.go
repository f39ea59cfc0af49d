// Package kubernetes is the source of Services in a Kubernetes cluster, for hosts
// that need not be part of it.
//
// In go the Services of type LoadBalancer that are of our class (or, adopted, all
// cluster IPs), their EndpointSlices, and of Nodes what is needed; out go
// services with their backends, and what is wrong with a Service by the name of
// its field or annotation. Everything is listed once and watched from then on:
// one change of an endpoint costs one update. It fails towards traffic: while the
// API server is away, or something may not be read, everything stays as it was;
// what then turns out to be lost is taken away only past the shrink guard.
//
// Source follows and never writes. A Writer beside it, on the one host that holds
// the Lease, writes back a Service's VIPs, its finalizer and events, and nothing
// else.
package kubernetes

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/vip"
)

// Source implements sources.Source.
type Source struct {
	o     Options
	store *objectStore
	wrong *writerProblems // what the Writer can't do
	// What one run leaves to the next: what each service was last made with,
	// the ranges that were last read of Nodes, and of ServiceCIDRs.
	settings map[vip.ServiceKey]*corev1.Service
	ranges   [2][]netip.Prefix
	outside  bool // this host is none of the cluster's nodes, as far as was read
}

// New returns a source that asks nothing before Run. The error names an option
// that can't be right.
func New(o Options) (*Source, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Source{o: o, store: newObjectStore(), wrong: newWriterProblems(), settings: map[vip.ServiceKey]*corev1.Service{}, outside: o.Node != ""}, nil
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }

// objects is what the Writer sees of the cluster.
func (s *Source) objects() *objectStore { return s.store }
