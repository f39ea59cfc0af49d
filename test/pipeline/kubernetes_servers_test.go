//go:build system

package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/kubernetes"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
)

// fillCluster creates services of ten endpoints each, in the form of Kubernetes' controllers.
func fillCluster(b *testing.B, c *kubetest.Cluster, services int) {
	create := func(ctx context.Context, path string, object any) error {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		return c.Do(ctx, "POST", path, "application/json", text, nil)
	}
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(16)
	for i := range services {
		group.Go(func() error {
			name := fmt.Sprintf("service-%04d", i)
			if err := create(ctx, "/api/v1/namespaces/default/services", &corev1.Service{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(kubernetes.DefaultLoadBalancerClass),
					AllocateLoadBalancerNodePorts: new(false), Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			}); err != nil {
				return err
			}
			port, portName := int32(8080), "http"
			slice := &discoveryv1.EndpointSlice{
				TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
				ObjectMeta: metav1.ObjectMeta{Name: name + "-abcde", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				Ports:      []discoveryv1.EndpointPort{{Name: &portName, Port: &port}}, AddressType: discoveryv1.AddressTypeIPv4,
			}
			for j := range 10 {
				at := 10*i + j
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{netip.AddrFrom4([4]byte{172, 16 + byte(at>>16), byte(at >> 8), byte(at)}).String()},
					Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
					NodeName:   new(fmt.Sprintf("node-%d.example.org", at%50)), Zone: new(fmt.Sprintf("zone-%d", at%3)),
					TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("%s-7c6d5d5cb4-%05d", name, at), UID: "6c6bd3d6-8b9e-4a52-8c5c-9b8a6f9d0a53"},
				})
			}
			return create(ctx, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice)
		})
	}
	must.Succeed(b, group.Wait())
}

// BenchmarkKubernetesFirstSync measures the time from nothing until the Target has 5,000 Services
// with 50,000 endpoints from a real API server. The unit is listing and decoding the same objects,
// page by page, without using them. The two alternate, and the medians of the rounds are compared.
// Both include the API server's work on the same processors.
func BenchmarkKubernetesFirstSync(b *testing.B) {
	const services = 5000
	c := kubetest.Start(b, kubetest.Options{})
	fillCluster(b, c, services)
	client := must.Get(kubeclient.New(kubeclient.Config{Kubeconfig: c.Kubeconfig(b, "bench", kubetest.Masters)}))(b)
	b.Cleanup(client.CloseIdle)
	timed := func(f func()) float64 {
		runtime.GC()
		began := time.Now()
		f()
		return time.Since(began).Seconds()
	}
	var bare, ours []float64
	for b.Loop() {
		bare = append(bare, timed(func() {
			listAll(b, client, corev1.SchemeGroupVersion, "services", func() kruntime.Object { return &corev1.ServiceList{} })
			listAll(b, client, discoveryv1.SchemeGroupVersion, "endpointslices", func() kruntime.Object { return &discoveryv1.EndpointSliceList{} })
		}))
		var end func()
		ours = append(ours, timed(func() { end = firstSync(b, client, services) }))
		end()
	}
	b.ReportMetric(median(bare)*1000, "bare-ms")
	b.ReportMetric(median(ours)/median(bare), "x-bare")
	b.ReportMetric(0, "ns/op")
}

// listAll lists all objects of a resource in pages of the source's size.
func listAll(b *testing.B, client *kubeclient.Client, gv schema.GroupVersion, resource string, list func() kruntime.Object) {
	options := metav1.ListOptions{Limit: 500}
	for {
		into := list()
		if err := client.REST(gv).Get().Resource(resource).VersionedParams(&options, client.Params()).Do(b.Context()).Into(into); err != nil {
			b.Fatal(err)
		}
		page := must.Get(meta.ListAccessor(into))(b)
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return
		}
	}
}

// firstSync runs a source and every stage behind it until the Target has that many frontends. End
// stops them.
func firstSync(b *testing.B, client *kubeclient.Client, services int) (end func()) {
	clock := table.NewClock(time.Now())
	l := newStages(b, clock)
	source := kubernetes.New(kubernetes.Options{Client: client})
	supervisor := sources.NewSupervisor(sources.Options{Resolver: l.Resolve, Services: l.Services, Statuses: table.New(clock, sources.KeyOfStatus, sources.SameStatus)})
	supervisor.Add(kubernetes.Type, kubernetes.Type, source)
	l.complete()
	stop := scope.Go(b, supervisor.Run)
	<-l.Loop.Synced()
	if got := len(l.target.Have()); got != services {
		b.Fatalf("the target has %d frontends of %d", got, services)
	}
	return func() { stop(); l.end() }
}
