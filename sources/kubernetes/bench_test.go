package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// large is an API server with prepared pages of 500 objects: 5,000 Services with 50,000 endpoints,
// as controllers write them.
type large map[string][]string

func newLarge(b *testing.B, services, endpoints int) large {
	scheme := kruntime.NewScheme()
	must.Succeed(b, corev1.AddToScheme(scheme))
	must.Succeed(b, discoveryv1.AddToScheme(scheme))
	encoder := protobuf.NewSerializer(scheme, scheme)
	out := large{}
	const page = 500
	encode := func(resource string, list kruntime.Object) {
		var text strings.Builder
		must.Succeed(b, encoder.Encode(list, &text))
		out[resource] = append(out[resource], text.String())
	}
	managed := []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:spec":{}}`, 60))}}
	for from := 0; from < services; from += page {
		meta := metav1.ListMeta{ResourceVersion: "100"}
		if from+page < services {
			meta.Continue = fmt.Sprint(from/page + 1)
		}
		list := &corev1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: meta}
		ends := &discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, ListMeta: meta}
		for i := from; i < min(from+page, services); i++ {
			name := fmt.Sprintf("service-%04d", i)
			s := balancer(name)
			s.Labels = map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop"}
			s.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: strings.Repeat("x", 600)}
			s.ManagedFields = managed
			list.Items = append(list.Items, *s)
			e := slice(name+"-abcde", name)
			for j := range endpoints / services {
				at := i*endpoints/services + j
				e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, byte(at >> 16), byte(at >> 8), byte(at)}).String()},
					Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
					NodeName:   new(fmt.Sprintf("node-%d.example.org", at%50)), Zone: new(fmt.Sprintf("zone-%d", at%3)),
					TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("%s-7c6d5d5cb4-%05d", name, at), UID: "6c6bd3d6-8b9e-4a52-8c5c-9b8a6f9d0a53"}})
			}
			e.ManagedFields = managed
			ends.Items = append(ends.Items, *e)
		}
		encode("services", list)
		encode("endpointslices", ends)
	}
	return out
}

// RoundTrip implements http.RoundTripper. Watches have no events.
func (l large) RoundTrip(r *http.Request) (*http.Response, error) {
	header := http.Header{"Content-Type": {kruntime.ContentTypeProtobuf}}
	query := r.URL.Query()
	if query.Get("watch") != "" {
		body, writer := io.Pipe()
		context.AfterFunc(r.Context(), func() { _ = writer.Close() })
		header.Set("Content-Type", kruntime.ContentTypeProtobuf+";stream=watch")
		return &http.Response{StatusCode: http.StatusOK, Header: header, Body: body}, nil
	}
	page := 0
	_, _ = fmt.Sscan(query.Get("continue"), &page)
	text := l[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]][page]
	return &http.Response{StatusCode: http.StatusOK, Header: header, ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(text))}, nil
}

// first is a Sink that ends a run at the first list.
type first struct {
	recorder
	end context.CancelFunc
}

func (f *first) Replace(services []vip.Service, problems []vip.Problem) {
	defer f.end()
	f.services = make(map[vip.ServiceKey]vip.Service, len(services))
	for _, s := range services {
		f.services[s.Key] = s
	}
}

// BenchmarkFirstSync measures the time and the memory for the full list of services from the start.
// Both are multiples of listing and decoding the same objects without using them.
func BenchmarkFirstSync(b *testing.B) {
	const services, endpoints = 5000, 50000
	client := must.Get(kubeclient.NewThrough(newLarge(b, services, endpoints)))(b)
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var bare, synced time.Duration
	var objects, inEffect uint64
	for b.Loop() {
		began := time.Now()
		for _, of := range []struct {
			client   rest.Interface
			resource string
			make     func() kruntime.Object
		}{
			{client.REST(corev1.SchemeGroupVersion), "services", func() kruntime.Object { return &corev1.ServiceList{} }},
			{client.REST(discoveryv1.SchemeGroupVersion), "endpointslices", func() kruntime.Object { return &discoveryv1.EndpointSliceList{} }},
		} {
			for page := range services / 500 {
				must.Succeed(b, of.client.Get().Resource(of.resource).Param("continue", fmt.Sprint(page)).Do(b.Context()).Into(of.make()))
			}
		}
		bare += time.Since(began)

		b.StopTimer()
		before := used()
		source := New(Options{Client: client})
		ctx, cancel := context.WithCancel(b.Context())
		out := &first{end: cancel}
		r := newRun(source, out)
		b.StartTimer()
		began = time.Now()
		var reading sync.WaitGroup
		for _, s := range r.streams {
			reading.Go(func() {
				expect.Succeed(b, r.readAll(ctx, s))
			})
		}
		reading.Wait()
		r.publisher.Publish()
		synced += time.Since(began)
		must.Equal(b, len(out.services), services, "services")
		b.StopTimer()
		inEffect = used() - before
		out.services = nil
		objects = used() - before
		runtime.KeepAlive(r)
		b.StartTimer()
	}
	b.ReportMetric(float64(synced)/float64(bare), "x-bare")
	b.ReportMetric(float64(objects)/(1<<20), "MB-objects")
	b.ReportMetric(float64(inEffect)/(1<<20), "MB-all")
}
