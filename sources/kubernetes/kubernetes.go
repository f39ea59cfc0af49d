// Package kubernetes is the source of Services in a Kubernetes cluster, for hosts inside or outside
// it.
//
// Its input is the Services of type LoadBalancer with our class (or, adopted, all cluster IPs),
// their EndpointSlices and Nodes. Its output is services with their backends, and problems named by
// field or annotation. It lists everything once and then watches, so one change of an endpoint
// costs one update. While the API server is unavailable, or permissions are missing, services stay
// unchanged. A later large removal is held back by the shrink guard.
//
// The Source never writes to the cluster. On the host that holds the Lease, a Writer writes a
// Service's VIPs, its finalizer and its events, and nothing else.
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
	wrong *writerProblems // the problems of the Writer
	// The fields below are kept between runs: the settings of each service's last build, and the
	// last ranges of Nodes and of ServiceCIDRs.
	settings map[vip.ServiceKey]*corev1.Service
	ranges   [2][]netip.Prefix
	outside  bool // this host was not among the cluster's nodes at the last read
}

// New returns a source that sends no request before Run. The error names an invalid option.
func New(o Options) (*Source, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Source{o: o, store: newObjectStore(), wrong: newWriterProblems(), settings: map[vip.ServiceKey]*corev1.Service{}, outside: o.Node != ""}, nil
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }

// objects returns the Services as the Writer sees them.
func (s *Source) objects() *objectStore { return s.store }
