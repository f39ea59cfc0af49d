// Package kubernetes is the source of Services in a Kubernetes cluster, for hosts inside or outside
// it.
//
// Its input is the Services of type LoadBalancer with our class (or, adopted, all cluster IPs),
// their EndpointSlices and Nodes, and, if the source has the option, Gateways with their routes. Its output is services with their backends, and problems named by
// field or annotation. It lists everything once and then watches, so one change of an endpoint
// costs one update. While the API server is unavailable, or permissions are missing, services stay
// unchanged. A later large removal is held back by the shrink guard.
//
// The Source never writes to the cluster. Its Writer does, in package statuswriter: the VIPs, the
// finalizer and the events of Services, and the status of Gateways and routes, on the host that holds the Lease.
//
// Source code organization: follow.go lists and watches, kinds.go and nodes.go store what arrives,
// the build files make a service of a Service as a pure function, and publish.go passes on what has
// changed. gateways.go follows the Gateway API: package gateway decides, and each listener becomes the definition of a
// service like a Service.
package kubernetes

import (
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ironvip/ironvip/sources/kubernetes/statuswriter"
	"github.com/ironvip/ironvip/vip"
)

// Source implements sources.Source.
type Source struct {
	o       Options
	objects *statuswriter.Objects         // the Services, for the Writer
	writing atomic.Pointer[[]vip.Problem] // the problems of the Writer
	current atomic.Pointer[run]
	// The fields below are kept between runs: the settings of each service's last build, and the
	// last ranges of Nodes and of ServiceCIDRs.
	settings map[vip.ServiceKey]*corev1.Service
	ranges   [2][]netip.Prefix
	outside  bool // this host was not among the cluster's nodes at the last read
}

// New returns a source that sends no request before Run.
func New(o Options) *Source {
	s := &Source{o: o.withDefaults(), objects: statuswriter.NewObjects(), settings: map[vip.ServiceKey]*corev1.Service{}, outside: o.Node != ""}
	s.report(nil)
	return s
}

// Writer returns the Writer of the source's Services. It sets the options that describe the source.
// The error names an invalid selector.
func (s *Source) Writer(o statuswriter.Options) (*statuswriter.Writer, error) {
	selector, err := labels.Parse(s.o.Selector)
	if err != nil {
		return nil, err
	}
	o.Source, o.Objects, o.Selects, o.Namespaces, o.Selector, o.Prefix, o.Place, o.Report = s.o.Name, s.objects, s.o.selects, s.o.Namespaces, selector, s.o.prefix(), s.o.place, s.report
	return statuswriter.New(o), nil
}

// report publishes the problems of the Writer.
func (s *Source) report(problems []vip.Problem) {
	s.writing.Store(&problems)
	if r := s.current.Load(); r != nil {
		r.mu.Lock()
		r.reworded = true
		r.mu.Unlock()
		r.publisher.Wake()
	}
}

// ShrinkGuard implements sources.Guarded.
func (s *Source) ShrinkGuard() time.Duration { return time.Duration(s.o.ShrinkGuard) }
