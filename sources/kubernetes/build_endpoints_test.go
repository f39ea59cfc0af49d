package kubernetes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestEndpoints(t *testing.T) {
	two := ports("http=80>web", "metrics=9090>metrics")
	dns := ports("dns=53/udp>dns", "dns-tcp=53>dns-tcp")
	direct := func(s *corev1.Service) { ports("http=80", "https=443")(s); annotate("forward", "dr")(s) }
	for _, test := range []struct {
		name     string
		change   func(*corev1.Service)
		slices   []*discoveryv1.EndpointSlice
		want     string
		problems string
	}{
		{"no slices yet", nil, nil, "80/tcp>8080", ""},
		{"an empty slice", nil, slicesOf(aSlice("a 9999")), "80/tcp>8080", ""},
		{"a slice without ports", nil, slicesOf(aSlice("a", "10.1.0.1")), "80/tcp>8080", "endpointslices[a].ports: none is a port of the Service; its endpoints are left out"},
		{"where the pods have the port", nil, slicesOf(aSlice("a 8081", "10.1.0.2", "10.1.0.1")), "80/tcp>8081: 10.1.0.1; 10.1.0.2", ""},
		{"a named target, nobody there", ports("80>web"), nil, "80/tcp>80", ""},
		{"a named target", ports("80>web"), slicesOf(aSlice("a 8080", "10.1.0.1")), "80/tcp>8080: 10.1.0.1", ""},
		{"named targets", two, slicesOf(aSlice("a http=8080,metrics=9100", "10.1.0.1")), "http>8080 metrics>9100: 10.1.0.1", ""},
		{"two ports in one place", two, slicesOf(aSlice("a http=8080,metrics=8080", "10.1.0.1")), "http>8080 metrics>8080: 10.1.0.1", ""},
		{"several slices", two, slicesOf(aSlice("a http=8080,metrics=9100", "10.1.0.1", "10.1.0.3"), aSlice("b http=8080,metrics=9100", "10.1.0.2")),
			"http>8080 metrics>9100: 10.1.0.1; 10.1.0.2; 10.1.0.3", ""},
		{"a target that differs by pod", ports("80>web"), slicesOf(aSlice("a 8080", "10.1.0.1"), aSlice("b 9090", "10.1.0.2")), "80/tcp>80: 10.1.0.1:8080; 10.1.0.2:9090", ""},
		{"a slice of another target, without endpoints", ports("80>web"), slicesOf(aSlice("a 8080", "10.1.0.1"), aSlice("b 9090")), "80/tcp>8080: 10.1.0.1", ""},
		{"targets that differ by pod", two, slicesOf(aSlice("a http=8080,metrics=9100", "10.1.0.1"), aSlice("b http=8081,metrics=9100", "10.1.0.2")),
			"http>80 metrics>9090: 10.1.0.1:8080 [http]; 10.1.0.1:9100 [metrics]; 10.1.0.2:8081 [http]; 10.1.0.2:9100 [metrics]", ""},
		{"a port that some lack", two, slicesOf(aSlice("a http=8080,metrics=9100", "10.1.0.1"), aSlice("b http=8080", "10.1.0.2")),
			"http>80 metrics>9090: 10.1.0.1:8080 [http]; 10.1.0.1:9100 [metrics]; 10.1.0.2:8080 [http]", ""},
		{"a port that all lack", two, slicesOf(aSlice("a http=8080", "10.1.0.1")), "http>80 metrics>9090: 10.1.0.1:8080 [http]", ""},
		{"in one place here, in two there", two, slicesOf(aSlice("a http=8080,metrics=8080", "10.1.0.1"), aSlice("b http=8080,metrics=9100", "10.1.0.2")),
			"http>80 metrics>9090: 10.1.0.1:8080; 10.1.0.2:8080 [http]; 10.1.0.2:9100 [metrics]", ""},
		{"a port that isn't the Service's", nil, slicesOf(aSlice("a 8080,admin=9000", "10.1.0.1")), "80/tcp>8080: 10.1.0.1", ""},
		{"no port that is the Service's", nil, slicesOf(aSlice("a admin=9000", "10.1.0.1", "10.1.0.2"), aSlice("b 8080", "10.1.0.3")), "80/tcp>8080: 10.1.0.3",
			"endpointslices[a].ports: none is a port of the Service; its endpoints are left out"},
		{"a port without a number", nil, slicesOf(aSlice("a 0", "10.1.0.1")), "80/tcp>8080", "endpointslices[a].ports: none is a port of the Service; its endpoints are left out"},
		{"two protocols on one number", dns, slicesOf(aSlice("a dns=5353/udp,dns-tcp=5353/tcp", "10.1.0.1")), "dns>5353 dns-tcp>5353: 10.1.0.1", ""},
		{"two protocols in two places", dns, slicesOf(aSlice("a dns=5353/udp,dns-tcp=5354/tcp", "10.1.0.1")), "dns>5353 dns-tcp>5354: 10.1.0.1", ""},
		{"two protocols, one of them some lack", dns, slicesOf(aSlice("a dns=5353/udp,dns-tcp=5353/tcp", "10.1.0.1"), aSlice("b dns=5353/udp", "10.1.0.2")),
			"dns>53 dns-tcp>53: 10.1.0.1:5353; 10.1.0.2:5353 [dns]", ""},
		{"the name of a port with another protocol", dns, slicesOf(aSlice("a dns=5353/tcp,dns-tcp=5353/tcp", "10.1.0.1")), "dns>53 dns-tcp>53: 10.1.0.1:5353 [dns-tcp]", ""},
		{"sctp", ports("38412/sctp"), slicesOf(aSlice("a 38412/sctp", "10.1.0.1")), "38412/sctp>38412: 10.1.0.1", ""},

		{"conditions", nil, slicesOf(aSlice("a 8080", "10.1.0.1", "10.1.0.2 ready serving !terminating", "10.1.0.3 !ready !serving !terminating", "10.1.0.4 !ready serving terminating",
			"10.1.0.5 !ready !serving terminating", "10.1.0.6 !ready terminating", "10.1.0.7 !ready serving !terminating", "10.1.0.8 ready serving terminating")),
			"80/tcp>8080: 10.1.0.1; 10.1.0.2; 10.1.0.3 unhealthy; 10.1.0.4 terminating; 10.1.0.5 drain; 10.1.0.6 terminating; 10.1.0.7 unhealthy; 10.1.0.8", ""},
		{"where they are", nil, slicesOf(aSlice("a 8080", "10.1.0.1 @n1 zone=a", "10.1.0.2 @n2", "10.1.0.3 zone=b")),
			"80/tcp>8080: 10.1.0.1 @n1 zone=a; 10.1.0.2 @n2; 10.1.0.3 zone=b", ""},
		{"whom they are for", nil, slicesOf(aSlice("a 8080", "10.1.0.1 zones=b,a,b", "10.1.0.2 nodes=n2,n1 zones=a")),
			"80/tcp>8080: 10.1.0.1 zones=a b; 10.1.0.2 zones=a nodes=n1 n2", ""},
		{"only the first address counts", nil, slicesOf(aSlice("a 8080", "10.1.0.1,10.1.0.9")), "80/tcp>8080: 10.1.0.1", ""},
		{"no address", nil, slicesOf(&discoveryv1.EndpointSlice{AddressType: "IPv4", Ports: aSlice("a 8080").Ports, Endpoints: make([]discoveryv1.Endpoint, 2)}), "80/tcp>8080", ""},

		{"one endpoint twice in a slice", nil, slicesOf(aSlice("a 8080", "10.1.0.1 !ready", "10.1.0.1 @n1")), "80/tcp>8080: 10.1.0.1 @n1", ""},
		{"moving, ready in the old one", nil, slicesOf(aSlice("a 8080,created=1", "10.1.0.1 @n1"), aSlice("b 8080,created=2", "10.1.0.1 !ready !serving terminating @n2")), "80/tcp>8080: 10.1.0.1 @n1", ""},
		{"moving, ready in the new one", nil, slicesOf(aSlice("a 8080,created=1", "10.1.0.1 !ready"), aSlice("b 8080,created=2", "10.1.0.1 @n2")), "80/tcp>8080: 10.1.0.1 @n2", ""},
		{"moving, on its way out", nil, slicesOf(aSlice("a 8080,created=1", "10.1.0.1 !ready !serving"), aSlice("b 8080,created=2", "10.1.0.1 !ready serving terminating")), "80/tcp>8080: 10.1.0.1 terminating", ""},
		{"moving, ready in both: the newer counts", nil, slicesOf(aSlice("a 8080,created=1", "10.1.0.1 zone=old"), aSlice("b 8080,created=2", "10.1.0.1 zone=new")), "80/tcp>8080: 10.1.0.1 zone=new", ""},
		{"two of an age: the first by name counts", nil, slicesOf(aSlice("b 8080", "10.1.0.1 zone=b"), aSlice("a 8080", "10.1.0.1 zone=a")), "80/tcp>8080: 10.1.0.1 zone=a", ""},
		{"moving while a port is added", two, slicesOf(aSlice("a http=8080,created=1", "10.1.0.1"), aSlice("b http=8080,metrics=8080,created=2", "10.1.0.1 !ready")),
			"http>80 metrics>9090: 10.1.0.1:8080", ""},
		{"one port here, one there", two, slicesOf(aSlice("a http=8080", "10.1.0.1"), aSlice("b metrics=8080", "10.1.0.1")), "http>80 metrics>9090: 10.1.0.1:8080", ""},
		{"moving while a target changes", ports("80>web"), slicesOf(aSlice("a 8080,created=1", "10.1.0.1 !ready serving terminating"), aSlice("b 9090,created=2", "10.1.0.1")),
			"80/tcp>80: 10.1.0.1:8080 terminating; 10.1.0.1:9090", ""},

		{"dual stack", dualStack, slicesOf(aSlice("a 8080", "10.1.0.1"), aSlice("b ipv6,8080", "2001:db8::1")), "80/tcp>8080: 10.1.0.1; 2001:db8::1", ""},
		{"dual stack, in different places", dualStack, slicesOf(aSlice("a 8080", "10.1.0.1"), aSlice("b ipv6,9090", "2001:db8::1")), "80/tcp>8080: 10.1.0.1:8080; [2001:db8::1]:9090", ""},
		{"a family that the Service hasn't got", nil, slicesOf(aSlice("a 8080", "10.1.0.1"), aSlice("b ipv6,9090", "2001:db8::1")), "80/tcp>8080: 10.1.0.1", ""},
		{"a family that the slice hasn't got", dualStack, slicesOf(aSlice("a 8080", "10.1.0.1", "2001:db8::1")), "80/tcp>8080: 10.1.0.1", ""},
		{"families not stated", func(s *corev1.Service) { s.Spec.IPFamilies = nil }, slicesOf(aSlice("a 8080", "10.1.0.1"), aSlice("b ipv6,8080", "2001:db8::1")), "80/tcp>8080: 10.1.0.1; 2001:db8::1", ""},
		{"names", nil, slicesOf(aSlice("a fqdn,8080", "db.example", "db2.example"), aSlice("b 8080", "10.1.0.1")), "80/tcp>8080: 10.1.0.1",
			"endpoints: 2 are left out: they have names, which are not looked up"},

		{"what is no server", nil, slicesOf(aSlice("a 8080", "10.1.0.1", "host-7", "224.0.0.1", "10.1.0.2 zone=a\u200bb")), "80/tcp>8080: 10.1.0.1",
			`endpointslices[a].endpoints[1]: is left out: "host-7" is not an address; endpointslices[a].endpoints[2]: is left out: 224.0.0.1 is not a unicast address; ` +
				`endpointslices[a].endpoints[3]: is left out: wants up to 253 printable characters without spaces`},
		{"much that is no server", nil, slicesOf(aSlice("a 8080", "a", "b", "c", "d", "e", "f", "g", "10.1.0.1")), "80/tcp>8080: 10.1.0.1",
			`endpointslices[a].endpoints[0]: is left out: "a" is not an address; endpointslices[a].endpoints[1]: is left out: "b" is not an address; ` +
				`endpointslices[a].endpoints[2]: is left out: "c" is not an address; endpointslices[a].endpoints[3]: is left out: "d" is not an address; ` +
				`endpointslices[a].endpoints[4]: is left out: "e" is not an address; endpoints: 2 more are left out`},

		{"direct routing", direct, slicesOf(aSlice("a http=80,https=443", "10.1.0.1")), "http>80 https>443: 10.1.0.1", ""},
		{"direct routing, of some ports", direct, slicesOf(aSlice("a http=80,https=443", "10.1.0.1"), aSlice("b http=80", "10.1.0.2")),
			"http>80 https>443: 10.1.0.1:80 [http]; 10.1.0.1:443 [https]; 10.1.0.2:80 [http]", ""},
		{"direct routing to where the port would have to change", direct, slicesOf(aSlice("a http=80,https=443", "10.1.0.1"), aSlice("b http=80,https=8443", "10.1.0.2")),
			"http>80 https>443: 10.1.0.1:80 [http]; 10.1.0.1:443 [https]; 10.1.0.2:80 [http]",
			"endpointslices[b].endpoints[0]: is left out: forward dr does not change the port: 8443 is not that of ports[1], 443/tcp"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input{service: aService(), slices: test.slices}
			if test.change != nil {
				test.change(in.service)
			}
			checkBackends(t, Options{}, in, test.want, test.problems)
		})
	}
}

// Ports without names are distinguished by their names in spec.
func TestUnnamedPortsOfMany(t *testing.T) {
	in := input{service: aService(ports("80", "53/udp")), slices: slicesOf(aSlice("a 8080/tcp", "10.1.0.1"))}
	got := (&Options{}).build(in)
	if backendsOf(got.service) != "80/tcp>80 53/udp>53: 10.1.0.1:8080 [80/tcp]" {
		t.Error(backendsOf(got.service), texts(got.problems))
	}
	checkBuilt(t, Options{}, in, got)
}

// manySlices returns full slices of one family: 1,000 endpoints each, which is the API's limit.
func manySlices(n int, family vip.Family, more string) (out []*discoveryv1.EndpointSlice) {
	for i := range n {
		head, format := "s%d 8080", "10.%d.%d.%d"
		if family == vip.IPv6 {
			head, format = "six%d ipv6,8080", "2001:db8:%x:%x::%x"
		}
		s := aSlice(fmt.Sprintf(head, i))
		for j := range 1000 {
			s.Endpoints = append(s.Endpoints, anEndpoint(fmt.Sprintf(format, i, j/250, j%250+1)+more))
		}
		out = append(out, s)
	}
	return out
}

// Slow: slices of 10,000 endpoints and more, with the race detector.
func TestFullSlices(t *testing.T) {
	count := func(s vip.Service, health vip.Health, f vip.Family) (n int) {
		for _, b := range s.Backends {
			if b.Health == health && vip.FamilyOf(b.Address) == f {
				n++
			}
		}
		return n
	}
	for _, test := range []struct {
		name      string
		slices    []*discoveryv1.EndpointSlice
		ready     [2]int // IPv4, IPv6
		rest      [2]int
		problemed string
	}{
		{"ten", manySlices(10, vip.IPv4, ""), [2]int{10_000, 0}, [2]int{}, ""},
		{"ten, and some of them moving", append(manySlices(10, vip.IPv4, ""), manySlices(1, vip.IPv4, " !ready")...), [2]int{10_000, 0}, [2]int{}, ""},
		{"eleven", manySlices(11, vip.IPv4, ""), [2]int{10_000, 0}, [2]int{}, "endpoints: 11000 are more than 10000: some are left out"},
		{"ten, and more that take nothing", slices.Concat(manySlices(2, vip.IPv6, " !ready"), manySlices(9, vip.IPv4, "")), [2]int{9000, 0}, [2]int{0, 1000},
			"endpoints: 11000 are more than 10000: some are left out"},
		{"many of both families", slices.Concat(manySlices(9, vip.IPv4, ""), manySlices(8, vip.IPv6, "")), [2]int{5000, 5000}, [2]int{}, "endpoints: 17000 are more than 10000: some are left out"},
		{"few of the other family", slices.Concat(manySlices(3, vip.IPv4, ""), manySlices(8, vip.IPv6, "")), [2]int{3000, 7000}, [2]int{}, "endpoints: 11000 are more than 10000: some are left out"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input{service: aService(dualStack), slices: test.slices}
			got := (&Options{}).build(in)
			for i, f := range []vip.Family{vip.IPv4, vip.IPv6} {
				if n, m := count(got.service, vip.Healthy, f), count(got.service, vip.Unhealthy, f); n != test.ready[i] || m != test.rest[i] {
					t.Errorf("%d ready and %d others of %s", n, m, f)
				}
			}
			if !got.use || texts(got.problems) != test.problemed {
				t.Errorf("%v %s", got.use, texts(got.problems))
			}
			checkBuilt(t, Options{}, in, got)
		})
	}
	expect.Equal(t, spec.MaxBackends, 10_000, "the numbers above are of another bound")
}

// A Service with many ports keeps fewer endpoints.
func TestEndpointsOfManyPorts(t *testing.T) {
	b := builder{draft: spec.Service{Ports: make([]spec.Port, 20)}}
	expect.Equal(t, len(b.limit(make([]server, 5000))), 5000)
	expect.Equal(t, texts(b.problems), "")
	expect.Equal(t, len(b.limit(make([]server, 5001))), 5000)
	expect.Equal(t, texts(b.problems), "endpoints: 5001 are more than 5000: some are left out")
}

// A build changes neither its input nor its results.
func TestInputIsLeftAlone(t *testing.T) {
	make := func() input {
		old := aSlice("b 8080", "10.1.0.2 zones=b,a")
		old.CreationTimestamp = metav1.NewTime(time.Unix(1, 0))
		return input{service: aService(annotate("pool", "lan")), slices: slicesOf(old, aSlice("a 9090", "10.1.0.1", "x"))}
	}
	in, same := make(), make()
	(&Options{}).build(in)
	expect.Equal(t, fmt.Sprintf("%+v %+v %+v", in.service, in.slices[0], in.slices[1]), fmt.Sprintf("%+v %+v %+v", same.service, same.slices[0], same.slices[1]), "%+v", in)
}

// The cost of one endpoint does not grow with the number of endpoints.
func BenchmarkBuild(b *testing.B) {
	all := manySlices(10, vip.IPv4, " ready serving !terminating @n1 zone=a")
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			in := input{service: aService()}
			for left, i := n, 0; left > 0; left, i = left-1000, i+1 {
				s := *all[i]
				s.Endpoints = s.Endpoints[:min(left, 1000)]
				in.slices = append(in.slices, &s)
			}
			var o Options
			b.ReportAllocs()
			for b.Loop() {
				if got := o.build(in); len(got.service.Backends) != n {
					b.Fatal(len(got.service.Backends))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/endpoint")
		})
	}
}
