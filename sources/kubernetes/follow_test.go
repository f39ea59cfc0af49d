package kubernetes

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip"
)

// recorder is a Sink that records its calls and the services in effect.
type recorder struct {
	mu       sync.Mutex
	words    []string
	rev      uint64 // of the newest row; 1 belongs to no row
	services map[vip.ServiceKey]vip.Service
	problems []vip.Problem
	stale    string
}

func (s *recorder) say(word string) { s.words = append(s.words, word) }

func brief(v vip.Service) string {
	var out []string
	for _, b := range v.Backends {
		out = append(out, strings.TrimPrefix(b.Address.String(), "10.0.0."))
	}
	return v.Key.String() + "=" + strings.Join(out, ",")
}

func (s *recorder) Replace(services []vip.Service, problems []vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services = map[vip.ServiceKey]vip.Service{}
	var all []string
	for _, v := range services {
		s.services[v.Key] = v
		all = append(all, brief(v))
	}
	slices.Sort(all)
	s.problems, s.stale = problems, ""
	s.say(strings.TrimSpace("replace " + strings.Join(all, " ")))
	s.rev = max(s.rev, 1)
}

func (s *recorder) Put(services ...vip.Service) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	revs := make([]uint64, len(services))
	for i, v := range services {
		if revs[i] = 1; compile.SameService(s.services[v.Key], v) { // like the claims table
			continue
		}
		s.rev++
		revs[i] = s.rev
		s.services[v.Key] = v
		s.say("put " + brief(v))
	}
	return revs
}

func (s *recorder) Delete(keys ...vip.ServiceKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		delete(s.services, key)
		s.say("delete " + key.String())
	}
}

func (s *recorder) Problems(problems []vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = problems
}

func (s *recorder) Stale(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale == "" {
		s.say("stale")
	}
	s.stale = err.Error()
}

// Fresh is recorded only if the source was stale.
func (s *recorder) Fresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale != "" {
		s.say("fresh")
	}
	s.stale = ""
}

// take returns the calls since the last take.
func (s *recorder) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.words, "; ")
	s.words = nil
	return out
}

func (s *recorder) is() (stale string, problems []vip.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale, s.problems
}

// bench is a source that follows a cluster.
type bench struct {
	*cluster
	t      *testing.T
	out    *recorder
	source *Source

	mu     sync.Mutex
	ranges []string
}

// start runs a source until the test ends.
func (c *cluster) start(t *testing.T, change func(*Options)) *bench {
	t.Helper()
	b := &bench{cluster: c, t: t, out: &recorder{services: map[vip.ServiceKey]vip.Service{}}}
	o := Options{Client: c.client(t), Ranges: func(all []netip.Prefix) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ranges = append(b.ranges, fmt.Sprint(all))
	}}
	if change != nil {
		change(&o)
	}
	b.source = New(o)
	scope.Go(t, func(ctx context.Context) error { return b.source.Run(ctx, b.out) })
	return b
}

// inSmallCluster runs a test in a bubble with a source that has published the small cluster.
func inSmallCluster(t *testing.T, f func(*testing.T, *bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, nil)
		b.says("first", smallIs)
		f(t, b)
	})
}

// says fails the test unless these were the calls since the last check.
func (b *bench) says(what, want string) {
	b.t.Helper()
	synctest.Wait()
	expect.Equal(b.t, b.out.take(), want, "%s: received", what)
}

// after lets time pass.
func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// asks fails the test unless these were the requests for this resource since the last call.
func (b *bench) asks(what, resource string, want ...string) {
	b.t.Helper()
	synctest.Wait()
	var got []string
	for _, request := range b.asked() {
		if strings.Contains(request, resource) {
			got = append(got, strings.Fields(request)[0])
		}
	}
	expect.SameList(b.t, got, want, "%s: asked for %s", what, resource)
}

func balancer(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(DefaultLoadBalancerClass), ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, NodePort: 30080}}}}
}

// slice returns an EndpointSlice of a Service. Ends are the last bytes of its addresses.
func slice(name, service string, ends ...int) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1",
		Labels: map[string]string{discoveryv1.LabelServiceName: service}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}}}
	for _, end := range ends {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", end)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}, NodeName: new("n1"), Zone: new("z1")})
	}
	return out
}

func nodeNamed(name, cidr string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0." + strings.TrimPrefix(name, "n")}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// small returns a cluster with two Services.
func small() *cluster {
	c := newCluster()
	c.put(balancer("web"), slice("web-1", "web", 1, 2), balancer("api"), slice("api-1", "api", 9), nodeNamed("n1", "10.1.0.0/24"), serviceCIDR("kubernetes", "10.96.0.0/16"))
	return c
}

const smallIs = "replace shop/api=9 shop/web=1,2"

// Everything is listed once. Afterwards each change is one call for one service.
func TestOneChangeIsOnePut(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.asks("first", "", "list", "list", "list", "list", "watch", "watch", "watch", "watch")
		b.after(time.Second)
		b.put(slice("web-1", "web", 1, 2, 3))
		b.says("an endpoint more", "put shop/web=1,2,3")
		b.after(time.Second)
		b.put(slice("web-1", "web", 1, 3))
		b.says("one less", "put shop/web=1,3")
		b.after(time.Second)
		b.put(slice("web-2", "web", 4))
		b.says("a second slice", "put shop/web=1,3,4")
		b.after(time.Second)
		b.put(slice("web-2", "api", 4))
		b.says("which becomes another's", "put shop/api=4,9; put shop/web=1,3")
		b.after(time.Second)
		b.remove(slice("web-2", "api"))
		b.says("and goes", "put shop/api=9")
		b.after(time.Second)
		touched := slice("web-1", "web", 1, 3)
		touched.Annotations = map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "now"}
		b.put(touched)
		b.says("nothing that counts", "")
		b.put(slice("new-1", "new", 7))
		b.says("a slice without a Service", "")
		b.put(balancer("new"))
		b.says("its Service", "put shop/new=7")
		b.after(time.Second)
		b.remove(balancer("new"))
		b.says("its end", "delete shop/new")
		b.after(time.Second)
		other := balancer("other")
		other.Spec.Type, other.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
		b.put(other, slice("other-1", "other", 8))
		b.says("one that isn't ours", "")
		b.put(balancer("other"))
		b.says("and then is", "put shop/other=8")
		b.after(time.Second)
		b.put(other)
		b.says("and isn't", "delete shop/other")
		b.after(2 * time.Minute)
		b.says("after a while", "")
		b.asks("all that", "")
	})
}

// The services of a cluster have its prefix everywhere outside of the source.
func TestNamespacePrefix(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, func(o *Options) { o.NamespacePrefix = "east-" })
		b.says("first", "replace east-shop/api=9 east-shop/web=1,2")
		b.after(time.Second)
		b.remove(balancer("web"))
		b.says("its end", "delete east-shop/web")
		b.after(time.Second)
		wrong := balancer("api")
		wrong.Annotations = map[string]string{annotationPrefix + "pol": "x"}
		b.put(wrong)
		synctest.Wait()
		if _, problems := b.out.is(); len(problems) != 1 || problems[0].Service != "east-shop/api" || problems[0].Place != "service shop/api in kubernetes" {
			t.Errorf("%+v", problems)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, func(o *Options) { o.NamespacePrefix = strings.Repeat("e", 60) })
		synctest.Wait()
		_, problems := b.out.is()
		expect.Len(t, problems, 2, "problems of a prefix that is too long")
		for _, p := range problems {
			expect.Contains(t, p.Message, "is too long with the namespace_prefix")
		}
	})
}

// A server that fails to list the nodes for a moment does not make a start forget their weights.
func TestNodeWeightsAtAStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		n := nodeNamed("n1", "10.1.0.0/24")
		n.Annotations = map[string]string{annotationPrefix + "weight": "0"}
		c.put(n)
		c.set(true, func() {
			c.refuse = func(request string) *http.Response {
				if strings.Contains(request, "nodes") {
					return refusal(http.StatusInternalServerError)
				}
				return nil
			}
		})
		b := c.start(t, func(o *Options) { o.Node = "lb1" })
		b.after(time.Second)
		b.says("without nodes", "")
		b.set(false, func() { b.refuse = nil })
		b.after(15 * time.Second)
		b.says("with nodes", smallIs)
		for _, backend := range b.out.services[vip.ServiceKey{Namespace: "shop", Name: "web"}].Backends {
			expect.Equal(t, backend.Weight, 0, "the weight")
		}
	})
}

// Backends have the weight of their node. A change of a node changes the services with backends on it.
func TestNodeWeights(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.after(time.Second)
		elsewhere := slice("api-1", "api", 9)
		elsewhere.Endpoints[0].NodeName = new("n2")
		b.put(elsewhere)
		b.says("on another node", "put shop/api=9")
		for _, step := range []struct {
			weight, says string
			want         uint32
			problems     int
		}{
			{"50", "put shop/web=1,2", 50, 0},
			{"0", "put shop/web=1,2", 0, 0},
			{"heavy", "put shop/web=1,2", 1, 1},
			{"70000", "", 1, 1},
			{"", "", 1, 0},
		} {
			b.after(time.Second)
			n := nodeNamed("n1", "10.1.0.0/24")
			n.Annotations = map[string]string{annotationPrefix + "weight": step.weight}
			b.put(n)
			b.says("weight "+step.weight, step.says)
			for _, backend := range b.out.services[vip.ServiceKey{Namespace: "shop", Name: "web"}].Backends {
				expect.Equal(t, backend.Weight, step.want, "weight %s", step.weight)
			}
			_, problems := b.out.is()
			expect.Len(t, problems, step.problems, "problems with weight %s", step.weight)
		}
	})
}

// The first change of a service is published at once, later ones at most every 100 ms. The last one
// is always published.
func TestBurstsAreBundled(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.after(time.Second)
		for end := 11; end <= 30; end++ {
			b.put(slice("web-1", "web", end))
			b.after(10 * time.Millisecond)
		}
		b.after(time.Second)
		words := strings.Split(b.out.take(), "; ")
		if len(words) > 4 || words[0] != "put shop/web=11" || words[len(words)-1] != "put shop/web=30" {
			t.Errorf("%q", words)
		}
	})
}

// A list with many pages is one list. Nothing is published before its end.
func TestListsInPages(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster()
		for i := range 25 {
			c.put(balancer(fmt.Sprintf("s%02d", i)))
		}
		b := c.start(t, func(o *Options) { o.timing.page = 10 })
		synctest.Wait()
		if words := b.out.take(); strings.Count(words, "replace") != 1 || strings.Count(words, "shop/") != 25 {
			t.Errorf("received %q", words)
		}
		b.asks("first", "services", "list", "list", "list", "watch")
	})
}

// Normal behavior of a server is not reported and causes no list.
func TestWatchesThatEnd(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.asked()
		b.after(time.Hour)
		b.says("an hour", "")
		for _, request := range b.asked() {
			expect.True(t, strings.HasPrefix(request, "watch "), "asked %q in an hour of nothing", request)
		}
		b.after(2 * time.Second)
		b.asked()
		b.set(true, func() {})
		b.after(5 * time.Second)
		b.says("a break", "")
		b.asks("a break", "services", "probe", "watch")
		b.put(slice("web-1", "web", 5))
		b.says("a change after it", "put shop/web=5")
	})
}

// A server that is unavailable for minutes changes only the source's status. Changes made in the
// meantime are read afterwards.
func TestServerAway(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		bubble.Run(t, fmt.Sprintf("compacted %v", compacted), func(t *testing.T) {
			b := small().start(t, nil)
			b.says("first", smallIs)
			b.after(2 * time.Second)
			b.asked()
			b.leave()
			b.after(2 * time.Second)
			b.says("away for a moment", "")
			b.after(3 * time.Second)
			b.says("away", "stale")
			if stale, _ := b.out.is(); !strings.HasPrefix(stale, "kubernetes at https://kubernetes.invalid: list services: dial tcp") {
				t.Errorf("stale: %s", stale)
			}
			expect.False(t, b.source.objects.InTouch(), "in touch")
			b.after(10 * time.Minute)
			b.says("away for minutes", "")
			expect.AtMost(t, len(b.asked()), 4*10*60/4, "requests in ten minutes")
			b.put(slice("web-1", "web", 1, 2, 3))
			b.put(slice("api-2", "api", 8), balancer("fresh"))
			b.comeBack(compacted)
			b.after(15 * time.Second)
			got := strings.Split(b.out.take(), "; ")
			slices.Sort(got)
			// Services and slices can be read in any order, a short time apart.
			got = slices.DeleteFunc(got, func(word string) bool { return word == "put shop/fresh=" })
			expect.SameList(t, got, []string{"fresh", "put shop/api=8,9", "put shop/web=1,2,3"}, "back: received")
			expect.True(t, b.source.objects.InTouch(), "not in touch")
			if compacted {
				b.asks("back", "endpointslices", "list", "probe", "watch", "watch")
			} else {
				b.asks("back", "endpointslices", "probe", "watch")
			}
		})
	}
}

// Objects that are missing from a new list are removed by a full list, not by name, so that the
// shrink guard can doubt it.
func TestWhatIsMissingFromANewList(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.leave()
		b.after(time.Minute)
		b.says("away", "stale")
		b.remove(balancer("api"))
		b.comeBack(true)
		b.after(15 * time.Second)
		if words := b.out.take(); !strings.Contains(words, "replace shop/web=1,2") || strings.Contains(words, "delete") {
			t.Errorf("received %q", words)
		}
		stale, _ := b.out.is()
		expect.Equal(t, stale, "", "stale")
	})
}

// A restored server accepts a watch from a version in its future and sends nothing. The source
// detects that the server's state is older and reads everything again.
func TestRestoredServer(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.after(2 * time.Second)
		b.leave()
		b.after(10 * time.Second)
		b.set(false, func() { b.version, b.history = 10, nil })
		b.put(slice("web-1", "web", 7))
		b.comeBack(false)
		b.after(15 * time.Second)
		expect.Contains(t, b.out.take(), "put shop/web=7", "received")
		b.put(slice("web-1", "web", 8))
		b.says("and a change", "put shop/web=8")
	})
}

// A server that does not answer is detected. An overloaded server gets no requests for as long as
// it asks.
func TestStalledAndBusyServer(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		c.stalled = make(chan struct{})
		b := c.start(t, nil)
		b.after(29 * time.Second)
		b.says("silent", "")
		b.after(10 * time.Second)
		b.says("silent for long", "stale")
		stale, _ := b.out.is()
		expect.True(t, strings.HasSuffix(stale, "list services: no answer within 30s"), "stale: %s", stale)
		b.set(false, func() { close(b.stalled); b.stalled = nil })
		b.after(15 * time.Second)
		b.says("answers", smallIs)

		for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			b.set(true, func() { b.refuse = func(string) *http.Response { return refusal(code, "Retry-After", "40") } })
			b.after(time.Second)
			b.asked()
			b.after(38 * time.Second)
			expect.Empty(t, b.asked(), "%d: asked before the time is over", code)
			b.says("busy", "stale")
			b.set(false, func() { b.refuse = nil })
			b.after(time.Minute)
			b.says("back", "fresh")
		}
		b.set(true, func() { b.refuse = func(string) *http.Response { return refusal(http.StatusInternalServerError) } })
		b.after(time.Minute)
		b.says("errors", "stale")
		b.set(false, func() { b.refuse = nil })
		b.after(15 * time.Second)
		b.says("no errors", "fresh")
	})
}

// A missing permission is reported by name. Required objects are awaited, and kept if they can no
// longer be read. The source works without the others.
func TestLackingRights(t *testing.T) {
	forbid := func(b *cluster, words ...string) {
		b.set(true, func() {
			b.refuse = func(request string) *http.Response {
				for _, word := range words {
					if strings.Contains(request, word) {
						return refusal(http.StatusForbidden)
					}
				}
				return nil
			}
		})
	}
	bubble.Test(t, func(t *testing.T) {
		c := small()
		forbid(c, "endpointslices")
		b := c.start(t, nil)
		b.after(15 * time.Second)
		b.says("without EndpointSlices", "stale")
		stale, _ := b.out.is()
		for _, word := range []string{"list endpointslices.discovery.k8s.io", "may not", `"endpointslices" of discovery.k8s.io`, "configs/kubernetes/clusterrole.yaml"} {
			expect.Contains(t, stale, word)
		}
		if b.source.objects.Row(vip.ServiceKey{Namespace: "shop", Name: "web"}) == nil || b.source.objects.InTouch() {
			t.Error("the others don't work on")
		}
		if b.mu.Lock(); !slices.Equal(b.ranges[len(b.ranges)-1:], []string{"[10.1.0.0/24 10.96.0.0/16]"}) {
			t.Errorf("ranges %q", b.ranges)
		}
		b.mu.Unlock()
		forbid(c, "nodes", "servicecidrs", "watch services")
		b.after(15 * time.Second)
		b.says("now others", smallIs+"; stale")
		stale, problems := b.out.is()
		if !strings.Contains(stale, "watch services") || len(problems) != 2 || !strings.Contains(problems[0].Message, "nodes: ") ||
			!strings.Contains(problems[0].Message, "ranges of pods are not known") || !strings.Contains(problems[1].Hint, `"servicecidrs" of networking.k8s.io`) {
			t.Errorf("stale %s, problems %+v", stale, problems)
		}
		b.put(slice("web-1", "web", 3))
		b.says("a change", "put shop/web=3")
		forbid(c, "endpointslices")
		b.after(20 * time.Second)
		b.put(slice("web-1", "web", 4))
		b.after(20 * time.Second)
		if words := b.out.take(); strings.Contains(words, "shop") {
			t.Errorf("what can't be seen: received %q", words)
		}
		forbid(c)
		b.after(20 * time.Second)
		b.says("all rights", "put shop/web=4; fresh")
	})
}

func TestWithoutServiceCIDRs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		c.refuse = func(request string) *http.Response {
			if strings.Contains(request, "servicecidrs") {
				return refusal(http.StatusNotFound)
			}
			return nil
		}
		b := c.start(t, nil)
		b.after(30 * time.Second)
		b.says("an older server", smallIs)
		if stale, problems := b.out.is(); stale != "" || len(problems) != 1 || problems[0].Code != vip.CodeUnsupported {
			t.Errorf("stale %q, problems %+v", stale, problems)
		}
		b.asks("30 s", "servicecidrs", "list")
	})
}

// The ranges in use are published when they change. Frequent writes by kubelets cause nothing.
func TestRanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		for i := range 3 {
			c.put(nodeNamed(fmt.Sprintf("n%d", i+2), fmt.Sprintf("10.1.%d.0/24", i+1)))
		}
		b := c.start(t, nil)
		ranges := func(what, want string) {
			t.Helper()
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			got := ""
			if len(b.ranges) > 0 {
				got = b.ranges[len(b.ranges)-1]
			}
			if b.ranges = nil; got != want {
				t.Errorf("%s: %s, not %s", what, got, want)
			}
		}
		b.after(time.Second)
		b.says("first", smallIs)
		ranges("first", "[10.1.0.0/24 10.1.1.0/24 10.1.2.0/24 10.1.3.0/24 10.96.0.0/16]")
		beat := nodeNamed("n1", "10.1.0.0/24")
		beat.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		b.put(beat)
		ranges("a heartbeat", "")
		b.after(time.Second)
		b.remove(nodeNamed("n4", ""))
		ranges("a node less", "[10.1.0.0/24 10.1.1.0/24 10.1.2.0/24 10.96.0.0/16]")
		b.after(time.Second)
		b.put(serviceCIDR("more", "10.97.0.0/16", "fd00::/112"))
		ranges("a ServiceCIDR more", "[10.1.0.0/24 10.1.1.0/24 10.1.2.0/24 10.96.0.0/16 10.97.0.0/16 fd00::/112]")
		b.after(time.Second)
		b.leave()
		b.after(time.Minute)
		b.comeBack(true)
		b.after(time.Minute)
		ranges("after a break", "")
		b.says("nothing of that is about services", "stale; fresh")
	})
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, func(o *Options) { o.AdoptClusterIPs = true })
		b.after(time.Second)
		if b.ranges == nil || b.ranges[0] != "[10.1.0.0/24]" {
			t.Errorf("adopting: %q", b.ranges)
		}
		b.asks("adopting", "servicecidrs")
	})
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, func(o *Options) { o.Ranges = nil })
		b.says("nobody asks", smallIs)
		b.asks("nobody asks", "nodes")
	})
}

// With node ports, a relevant change of a node affects the services that use it as a backend.
func TestNodesAsBackends(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		local := balancer("local")
		local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		c.put(local, slice("local-1", "local", 5), nodeNamed("n2", "10.1.1.0/24"))
		b := c.start(t, func(o *Options) { o.Backends = BackendsNodePorts })
		b.says("first", "replace shop/api=1,2 shop/local=1 shop/web=1,2")
		beat := nodeNamed("n2", "10.1.1.0/24")
		beat.Status.Conditions[0].LastHeartbeatTime = metav1.Now()
		beat.Status.Images = []corev1.ContainerImage{{SizeBytes: 7}}
		b.put(beat)
		b.says("a heartbeat", "")
		b.after(time.Second)
		b.remove(beat)
		b.says("a node less", "put shop/api=1; put shop/web=1")
		b.after(time.Second)
		b.put(slice("web-1", "web", 7))
		b.says("endpoints don't count", "")
	})
}

// A policy Local is in effect only on the cluster's nodes. On another host it counts as Cluster. A
// host can join and leave the cluster.
func TestLocalTrafficOutside(t *testing.T) {
	forbidden := func(request string) *http.Response {
		if strings.Contains(request, "nodes") {
			return refusal(http.StatusForbidden)
		}
		return nil
	}
	for _, test := range []struct {
		name   string
		node   string
		refuse func(string) *http.Response
		want   vip.TrafficPolicy
	}{
		{"a node", "n1", nil, vip.Local},
		{"no node", "lb1", nil, vip.Cluster},
		{"nobody knows", "n1", forbidden, vip.Cluster},
		{"a host without a name", "", nil, vip.Local},
	} {
		bubble.Run(t, test.name, func(t *testing.T) {
			c := small()
			local := balancer("local")
			local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			c.put(local, slice("local-1", "local", 5))
			c.refuse = test.refuse
			b := c.start(t, func(o *Options) { o.Node = test.node })
			b.says("first", "replace shop/api=9 shop/local=5 shop/web=1,2")
			policy := func() vip.TrafficPolicy {
				b.out.mu.Lock()
				defer b.out.mu.Unlock()
				return b.out.services[vip.ServiceKey{Namespace: "shop", Name: "local"}].ExternalTraffic
			}
			expect.Equal(t, policy(), test.want, "the policy")
			if test.node != "lb1" {
				return
			}
			b.after(time.Second)
			joined := nodeNamed("lb1", "10.1.9.0/24")
			b.put(joined)
			b.says("it joins", "put shop/local=5")
			b.after(time.Second)
			expect.Equal(t, policy(), vip.Local, "a node has the policy")
			b.leave()
			b.after(time.Minute)
			b.comeBack(true)
			b.after(time.Minute)
			expect.Equal(t, policy(), vip.Local, "policy of a node after a break")
			b.out.take()
			b.remove(joined)
			b.says("it leaves", "put shop/local=5")
			expect.Equal(t, policy(), vip.Cluster, "policy once it has left")
		})
	}
}

// Each namespace is followed separately. The server applies the selector.
func TestNamespacesAndSelector(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		elsewhere := func(o object) object {
			o.SetNamespace("elsewhere")
			return o
		}
		labelled := balancer("web")
		labelled.Labels = map[string]string{"tier": "edge"}
		c.put(labelled, elsewhere(labelled.DeepCopy()), elsewhere(slice("web-1", "web", 7)))
		third := labelled.DeepCopy()
		third.Namespace = "third"
		c.put(third)
		b := c.start(t, func(o *Options) { o.Namespaces, o.Selector = []string{"shop", "elsewhere"}, "tier=edge" })
		b.says("first", "replace elsewhere/web=7 shop/web=1,2")
		b.asks("first", "services", "list", "list", "watch", "watch")
		b.after(time.Second)
		b.leave()
		b.comeBack(true)
		b.after(time.Minute)
		b.says("read reread, one by one", "")
	})
}

// A new run, as after a resync, publishes a full list first and removes what is gone.
func TestAnotherRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := small()
		s := New(Options{Client: c.client(t)})
		for _, want := range []string{smallIs, "replace shop/web=1,2"} {
			out := &recorder{}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- s.Run(ctx, out) }()
			synctest.Wait()
			expect.Equal(t, out.take(), want, "received")
			if n := strings.Count(want, "shop/"); s.objects.Len() != n || !s.objects.InTouch() {
				t.Errorf("%d objects, not %d", s.objects.Len(), n)
			}
			cancel()
			if err := <-done; err != context.Canceled || s.objects.InTouch() {
				t.Errorf("%v", err)
			}
			if strings.Contains(want, "api") {
				c.remove(balancer("api")) // while no run follows the cluster
			}
		}
	})
}

// The Writer receives each change of a Service's object, whether it is ours or not, without unused
// fields.
func TestObjects(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, nil)
		synctest.Wait()
		objects := b.source.objects
		feed := objects.Watch()
		defer feed.Close()
		taken := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			changes, _ := feed.TryNext()
			for _, c := range changes {
				got = append(got, c.Value.Key.Name)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: changed %q, not %q", what, got, want)
			}
		}
		taken("first", "api", "web")
		b.put(slice("web-1", "web", 3))
		taken("an endpoint")
		mine := balancer("web")
		mine.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "ironvip.io/nonsense": "1"}
		mine.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		mine.Spec.Type, mine.Spec.LoadBalancerClass = corev1.ServiceTypeNodePort, nil
		b.after(time.Second)
		b.put(mine)
		taken("no more of ours", "web")
		row, _, there := objects.Get(vip.ServiceKey{Namespace: "shop", Name: "web"})
		if got := row.Service; !there || got.Spec.Type != corev1.ServiceTypeNodePort || got.ManagedFields != nil || !reflect.DeepEqual(slices.Sorted(maps.Keys(got.Annotations)), []string{"ironvip.io/nonsense"}) {
			t.Errorf("%v %+v", there, got)
		}
		b.after(time.Second)
		b.remove(balancer("api"))
		taken("gone", "api")
		expect.True(t, objects.Row(vip.ServiceKey{Namespace: "shop", Name: "api"}) == nil, "still there")
	})
}

func TestProblemsWithWritingAreTheSources(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, nil)
		b.after(time.Second)
		b.out.take()
		b.source.report([]vip.Problem{{Message: "no right"}})
		synctest.Wait()
		if _, problems := b.out.is(); len(problems) != 1 || problems[0].Message != "no right" {
			t.Errorf("problems %+v", problems)
		}
		b.source.report(nil)
		synctest.Wait()
		if _, problems := b.out.is(); len(problems) != 0 {
			t.Errorf("problems %+v", problems)
		}
	})
}

// Answers that lead nowhere are requested again with growing pauses, and the source is stale.
func TestAnswersWithoutProgress(t *testing.T) {
	n := 0
	page := func(items ...any) *http.Response {
		n++
		return answer(http.StatusOK, map[string]any{"kind": "ServiceList", "apiVersion": "v1", "items": items,
			"metadata": map[string]string{"resourceVersion": "100", "continue": fmt.Sprint(n)}})
	}
	for name, test := range map[string]struct {
		says     string
		services func() *http.Response
	}{
		"empty pages":           {"the list continues without new objects", func() *http.Response { return page() }},
		"the same object":       {"the list continues without new objects", func() *http.Response { return page(balancer("web")) }},
		"always another object": {"the server has more than 10 objects", func() *http.Response { return page(balancer(fmt.Sprint("s", n)), balancer(fmt.Sprint("s", -n))) }},
		"short pages":           {"the list has more than 6 pages", func() *http.Response { return page(balancer(fmt.Sprint("s", n))) }},
		"a page, and then expired": {"what was listed is at once too old to be watched", func() *http.Response {
			if n%2 == 0 {
				return page(balancer("web"))
			}
			n++
			return refusal(http.StatusGone)
		}},
	} {
		n = 0
		bubble.Run(t, name, func(t *testing.T) {
			c := small()
			c.refuse = func(request string) *http.Response {
				if request != "list services" {
					return nil
				}
				return test.services()
			}
			b := c.start(t, func(o *Options) { o.timing.objects, o.timing.page = 10, 5 })
			b.after(time.Minute)
			if stale, _ := b.out.is(); !strings.Contains(stale, "list services: "+test.says) {
				t.Errorf("stale: %q", stale)
			}
			expect.AtMost(t, len(b.asked()), 200, "requests in a minute")
			b.set(true, func() { b.refuse = nil })
			b.after(time.Minute)
			if stale, _ := b.out.is(); stale != "" {
				t.Errorf("stale after it: %q", stale)
			}
			expect.Len(t, b.out.services, 2, "services after it")
		})
	}
}

// A watch that ends after each change begins again with growing pauses, until one lasts.
func TestWatchesThatEndAfterAChange(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.after(2 * time.Second)
		b.set(true, func() {
			b.refuse = func(request string) *http.Response {
				if request != "watch services" {
					return nil
				}
				gone := balancer("other")
				gone.APIVersion, gone.Kind, gone.ResourceVersion = "v1", "Service", "200"
				return answer(http.StatusOK, map[string]any{"type": "DELETED", "object": gone})
			}
		})
		b.after(time.Second)
		b.asked()
		b.after(time.Minute)
		expect.AtMost(t, len(b.asked()), 40, "requests in a minute")
		b.set(true, func() { b.refuse = nil })
		b.after(time.Minute)
		b.out.take()
		b.put(slice("web-1", "web", 7))
		b.says("a change after it", "put shop/web=7")
	})
}

// slowly is a body that takes its time before each read.
type slowly struct {
	io.ReadCloser
	wait time.Duration
}

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(s.wait)
	return s.ReadCloser.Read(p)
}

// A watch that sends nothing that can be read begins again with growing pauses, also if that takes it some time, and the
// source is stale.
func TestWatchesThatCantBeRead(t *testing.T) {
	inSmallCluster(t, func(t *testing.T, b *bench) {
		b.after(2 * time.Second)
		b.set(true, func() {
			b.refuse = func(request string) *http.Response {
				if request != "watch services" {
					return nil
				}
				r := answer(http.StatusOK, []string{"no event"})
				r.Body = slowly{r.Body, 2 * time.Second}
				return r
			}
		})
		b.after(time.Minute)
		b.asked()
		for range 60 {
			b.after(time.Second)
			if stale, _ := b.out.is(); !strings.Contains(stale, "watch services") {
				t.Fatalf("stale: %q", stale)
			}
		}
		expect.AtMost(t, len(b.asked()), 20, "requests in a minute")
		b.set(true, func() { b.refuse = nil })
		b.after(time.Minute)
		if stale, _ := b.out.is(); stale != "" {
			t.Errorf("stale after it: %q", stale)
		}
	})
}

// A watch that adds objects without an end is replaced by a list.
func TestWatchOfTooManyObjects(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := small().start(t, func(o *Options) { o.timing.objects = 10 })
		b.says("first", smallIs)
		b.after(2 * time.Second)
		b.asked()
		for i := range 20 {
			b.put(balancer(fmt.Sprintf("s%02d", i)))
		}
		b.after(time.Minute)
		if stale, _ := b.out.is(); !strings.HasSuffix(stale, "list services: the server has more than 10 objects") {
			t.Errorf("stale: %q", stale)
		}
		for i := range 20 {
			b.remove(balancer(fmt.Sprintf("s%02d", i)))
		}
		b.after(time.Minute)
		if stale, _ := b.out.is(); stale != "" || len(b.out.services) != 2 {
			t.Errorf("stale after it: %q, with %v", stale, b.out.services)
		}
	})
}
