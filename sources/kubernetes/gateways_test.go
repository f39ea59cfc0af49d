package kubernetes

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/sources/kubernetes/gateway"
	"github.com/ironvip/ironvip/sources/kubernetes/statuswriter"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func classNamed(name, controller string) *gatewayapi.GatewayClass {
	out := &gatewayapi.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "1"}}
	out.Spec.ControllerName = controller
	return out
}

// gatewayNamed returns a Gateway of the class ironvip with listeners like "tcp/80", whose names are tcp-80.
func gatewayNamed(name string, listeners ...string) *gatewayapi.Gateway {
	out := &gatewayapi.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	out.Spec.GatewayClassName = "ironvip"
	for _, l := range listeners {
		protocol, number, _ := strings.Cut(l, "/")
		var port int32
		fmt.Sscan(number, &port)
		out.Spec.Listeners = append(out.Spec.Listeners, gatewayapi.Listener{Name: protocol + "-" + number, Port: port, Protocol: strings.ToUpper(protocol)})
	}
	return out
}

// routeNamed returns a TCPRoute of a Gateway with backends like "web:80=90", at one listener unless section is "".
func routeNamed(name, parent, section string, backends ...string) *gatewayapi.Route {
	out := &gatewayapi.Route{TypeMeta: metav1.TypeMeta{Kind: gatewayapi.TCPRoute}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1"}}
	out.Spec.ParentRefs = []gatewayapi.ParentRef{{Name: parent}}
	if section != "" {
		out.Spec.ParentRefs[0].SectionName = &section
	}
	out.Spec.Rules = []gatewayapi.RouteRule{{}}
	for _, b := range backends {
		ref := gatewayapi.BackendRef{Port: new(int32), Weight: new(int32)}
		service, rest, _ := strings.Cut(b, ":")
		fmt.Sscanf(rest, "%d=%d", ref.Port, ref.Weight)
		if namespace, name, found := strings.Cut(service, "/"); found {
			ref.Namespace, ref.Name = &namespace, name
		} else {
			ref.Name = service
		}
		out.Spec.Rules[0].BackendRefs = append(out.Spec.Rules[0].BackendRefs, ref)
	}
	return out
}

// plain returns a Service that is only a backend.
func plain(name string) *corev1.Service {
	out := balancer(name)
	out.Spec.Type, out.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
	return out
}

// withGateway returns a cluster with a Gateway whose two listeners lead to web, and to web and canary.
func withGateway() *cluster {
	c := newCluster()
	c.put(plain("web"), slice("web-1", "web", 1, 2), plain("canary"), slice("canary-1", "canary", 9),
		classNamed("ironvip", gateway.Controller), gatewayNamed("main", "tcp/80", "tcp/81"),
		routeNamed("a", "main", "tcp-80", "web:80=1"), routeNamed("b", "main", "tcp-81", "web:80=90", "canary:80=10"))
	return c
}

func withGatewayAPI(o *Options) { o.GatewayAPI = true }

var (
	onPort80 = "shop/" + gateway.ServiceName("main", "tcp-80")
	onPort81 = "shop/" + gateway.ServiceName("main", "tcp-81")
)

// has fails the test unless these services are in effect: "first=1,2 second=..." with the names of listeners' services.
func (b *bench) has(what, want string) {
	b.t.Helper()
	synctest.Wait()
	b.out.mu.Lock()
	defer b.out.mu.Unlock()
	var got []string
	for _, s := range b.out.services {
		got = append(got, strings.NewReplacer(onPort80, "first", onPort81, "second").Replace(brief(s)))
	}
	slices.Sort(got)
	expect.Equal(b.t, strings.Join(got, " "), want, what)
}

// documents returns the statuses that the Writer would write, with these VIPs of all listeners: "RESOURCE NAME: STATUS".
func (b *bench) status(resource, name string, vips ...string) any {
	b.t.Helper()
	synctest.Wait()
	key := statuswriter.DocumentKey{Resource: resource, Namespace: "shop", Name: name}
	if resource == gateway.ResourceClasses {
		key.Namespace = ""
	}
	d, _, there := b.source.objects.Documents.Get(key)
	if !there {
		return nil
	}
	_, after := d.Status(time.Now(), func(key vip.ServiceKey) (vip.Allocation, bool) {
		b.out.mu.Lock()
		defer b.out.mu.Unlock()
		s, there := b.out.services[key]
		out := vip.Allocation{Asked: &s}
		for _, text := range vips {
			out.VIPs = append(out.VIPs, netip.MustParseAddr(text))
		}
		return out, there
	})
	return after
}

func reasons(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		out = append(out, fmt.Sprintf("%s=%s", c.Type, cmp.Or(c.Reason, string(c.Status))))
	}
	return strings.Join(out, " ")
}

func TestGatewaysAreServed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := withGateway().start(t, withGatewayAPI)
		b.has("first", "first=1,2 second=1,2,9")
		b.out.take()
		s := b.out.services[vip.ServiceKey{Namespace: "shop", Name: gateway.ServiceName("main", "tcp-81")}]
		expect.Equal(t, fmt.Sprint(s.Groups), "[{web 90} {canary 10}]", "groups")
		for _, backend := range s.Backends {
			expect.Equal(t, fmt.Sprint(backend.Port, backend.Group), map[bool]string{true: "8080canary", false: "8080web"}[backend.Address == netip.MustParseAddr("10.0.0.9")], "%s", backend.Address)
		}
		expect.Equal(t, s.ShareKey, gateway.ShareKey("main"), "share key")
		expect.Equal(t, s.Ports[0].Key(), vip.PortKey{Port: 81, Protocol: vip.TCP})
		expect.Equal(t, s.Origin, "listener tcp-81 of gateway shop/main in kubernetes")
		single := b.out.services[vip.ServiceKey{Namespace: "shop", Name: gateway.ServiceName("main", "tcp-80")}]
		expect.Len(t, single.Groups, 0, "groups of one backend")
		expect.Equal(t, single.Backends[0].Group, "", "group of a single backend")

		is := b.status(gateway.ResourceGateways, "main", "192.0.2.7").(gatewayapi.GatewayStatus)
		expect.Equal(t, fmt.Sprint(reasons(is.Conditions), is.Addresses[0].Value, is.Listeners[0].AttachedRoutes, reasons(is.Listeners[1].Conditions)),
			"Accepted=Accepted Programmed=Programmed192.0.2.71Accepted=Accepted Conflicted=NoConflicts ResolvedRefs=ResolvedRefs Programmed=Programmed")
		expect.Equal(t, reasons(b.status(gateway.ResourceClasses, "ironvip").(gatewayapi.ClassStatus).Conditions), "Accepted=Accepted")
		expect.Equal(t, reasons(b.status("tcproutes", "b").(gatewayapi.RouteStatus).Parents[0].Conditions), "Accepted=Accepted ResolvedRefs=ResolvedRefs")

		b.after(time.Second)
		b.asked()
		b.put(slice("canary-1", "canary", 8))
		b.says("another endpoint", "put "+onPort81+"=1,2,8")
		b.after(time.Second)
		b.put(slice("web-1", "web", 1))
		b.says("an endpoint of both", strings.Join(slices.Sorted(slices.Values([]string{"put " + onPort80 + "=1", "put " + onPort81 + "=1,8"})), "; "))
		b.asks("all that", "")

		written := gatewayNamed("main", "tcp/80", "tcp/81")
		written.Status.Conditions = []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue}}
		entry := b.source.current.Load().entries[vip.ServiceKey{Namespace: "shop", Name: gateway.ServiceName("main", "tcp-80")}]
		before := entry.listener
		b.put(written)
		b.after(time.Second)
		expect.True(t, entry.listener == before, "a service is built because a status was written")
		expect.Equal(t, len(b.status(gateway.ResourceGateways, "main").(gatewayapi.GatewayStatus).Conditions), 2, "conditions")
	})
}

// A status that was written to a route concerns no other object.
func TestStatusOfARouteCostsNoPlan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := withGateway()
		b := c.start(t, withGatewayAPI)
		route := routeNamed("a", "main", "tcp-80", "web:80=1")
		route.Generation = 1
		c.put(route)
		b.after(time.Second)
		documents := b.source.objects.Documents
		before := documents.Revision()
		written := routeNamed("a", "main", "tcp-80", "web:80=1")
		written.Generation, written.Status.Parents = 1, []gatewayapi.RouteParentStatus{{ControllerName: "example.com/x"}}
		c.put(written)
		b.after(time.Second)
		expect.Equal(t, documents.Revision()-before, 1, "documents that were made again")
		is := b.status("tcproutes", "a").(gatewayapi.RouteStatus)
		expect.Equal(t, fmt.Sprint(is.Parents[0].ControllerName, " ", reasons(is.Parents[1].Conditions)), "example.com/x Accepted=Accepted ResolvedRefs=ResolvedRefs")
	})
}

// Endpoints of a family that the Gateway doesn't ask for are no problem.
func TestGatewayOfOneFamily(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := withGateway()
		six := slice("web-6", "web", 5)
		six.AddressType, six.Endpoints[0].Addresses = discoveryv1.AddressTypeIPv6, []string{"2001:db8::5"}
		one := gatewayNamed("main", "tcp/80")
		one.Spec.Addresses = []gatewayapi.Address{{Value: "192.0.2.1"}}
		c.put(six, one)
		b := c.start(t, withGatewayAPI)
		b.has("first", "first=1,2")
		_, problems := b.out.is()
		expect.Empty(t, problems, "problems")
	})
}

// Each step changes the objects of withGateway, and then they are as before.
func TestChangesOfGateways(t *testing.T) {
	foreign := gatewayNamed("main", "tcp/80", "tcp/81")
	foreign.Spec.GatewayClassName = "foreign"
	another := routeNamed("a", "other", "", "web:80=1")
	for _, test := range []struct {
		name         string
		put, remove  []object
		want         string
		status, gate string // of the route b, and of the Gateway; "": not looked at
	}{
		{"a route goes", nil, []object{routeNamed("b", "", "")}, "first=1,2 second=", "", "Accepted=Accepted Programmed=Programmed"},
		{"a route leaves", []object{another}, nil, "first= second=1,2,9", "", ""},
		{"a Service goes", nil, []object{plain("canary")}, "first=1,2 second=1,2", "Accepted=Accepted ResolvedRefs=BackendNotFound", ""},
		{"a Service without the port", []object{func() object { s := plain("canary"); s.Spec.Ports[0].Port = 99; return s }()}, nil, "first=1,2 second=1,2", "Accepted=Accepted ResolvedRefs=BackendNotFound", ""},
		{"a listener goes", []object{gatewayNamed("main", "tcp/80")}, nil, "first=1,2", "Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs", "Accepted=Accepted Programmed=Programmed"},
		{"an unknown protocol", []object{gatewayNamed("main", "tcp/80", "http/8080")}, nil, "first=1,2", "Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs", "Accepted=ListenersNotValid Programmed=Programmed"},
		{"the Gateway goes", nil, []object{foreign}, "", "none", "none"},
		{"a class of another controller", []object{classNamed("foreign", "example.com/x"), foreign}, nil, "", "none", "none"},
		{"the class goes", nil, []object{classNamed("ironvip", "")}, "", "none", "none"},
		{"an address too many", []object{func() object {
			g := gatewayNamed("main", "tcp/80", "tcp/81")
			g.Spec.Addresses = []gatewayapi.Address{{Value: "192.0.2.1"}, {Value: "192.0.2.2"}}
			return g
		}()}, nil, "first=1,2 second=1,2,9", "Accepted=Accepted ResolvedRefs=ResolvedRefs", "Accepted=UnsupportedAddress Programmed=Invalid"},
		{"parameters of the class", []object{func() object {
			c := classNamed("ironvip", gateway.Controller)
			c.Spec.ParametersRef = []byte("{}")
			return c
		}()}, nil, "first=1,2 second=1,2,9", "Accepted=Accepted ResolvedRefs=ResolvedRefs", "Accepted=Accepted Programmed=Programmed"},
		{"a scheduler without weights", []object{func() object {
			g := gatewayNamed("main", "tcp/80", "tcp/81")
			g.Annotations = map[string]string{annotationPrefix + "scheduler": "rr"}
			return g
		}()}, nil, "first=1,2 second=1,2,9", "Accepted=Accepted ResolvedRefs=ResolvedRefs", "Accepted=Accepted Programmed=Invalid"},
		{"a name of a Service", []object{balancer(gateway.ServiceName("main", "tcp-80"))}, nil, "first= second=1,2,9", "", "Accepted=Accepted Programmed=Invalid"},
		{"a bad annotation", []object{func() object {
			g := gatewayNamed("main", "tcp/80", "tcp/82")
			g.Annotations = map[string]string{annotationPrefix + "pol": "x"}
			return g
		}()}, nil, "first=1,2", "", "Accepted=Accepted Programmed=Invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := withGateway()
				b := c.start(t, withGatewayAPI)
				synctest.Wait()
				b.after(time.Second)
				c.put(test.put...)
				c.remove(test.remove...)
				b.after(time.Second)
				b.has("after the change", test.want)
				route, gate := "none", "none"
				if s, is := b.status("tcproutes", "b").(gatewayapi.RouteStatus); is && len(s.Parents) > 0 {
					route = reasons(s.Parents[0].Conditions)
				}
				if s, is := b.status(gateway.ResourceGateways, "main", "192.0.2.7").(gatewayapi.GatewayStatus); is {
					gate = reasons(s.Conditions)
				}
				if test.status != "" {
					expect.Equal(t, route, test.status, "the route")
				}
				if test.gate != "" {
					expect.Equal(t, gate, test.gate, "the Gateway")
				}
				c.remove(test.put...)
				before := withGateway()
				for _, all := range before.objects {
					for _, o := range all {
						c.put(o)
					}
				}
				b.after(time.Second)
				b.has("as before", "first=1,2 second=1,2,9")
			})
		})
	}
}

// A route to another namespace needs a grant, which takes effect when it comes and when it goes. So do the labels of namespaces.
func TestGrantsAndNamespaces(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := withGateway()
		db, ends := plain("db"), slice("db-1", "db", 5)
		db.Namespace, ends.Namespace = "others", "others"
		grant := &gatewayapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: "others", Name: "a", UID: "1"}}
		grant.Spec.From = append(grant.Spec.From, struct {
			Group     string `json:"group"`
			Kind      string `json:"kind"`
			Namespace string `json:"namespace"`
		}{gatewayapi.Group, gatewayapi.TCPRoute, "shop"})
		grant.Spec.To = append(grant.Spec.To, struct {
			Group string  `json:"group"`
			Kind  string  `json:"kind"`
			Name  *string `json:"name,omitempty"`
		}{"", "Service", nil})
		c.put(db, ends, routeNamed("a", "main", "tcp-80", "others/db:80=1"))
		b := c.start(t, withGatewayAPI)
		b.has("without a grant", "first= second=1,2,9")
		b.after(time.Second)
		c.put(grant)
		b.after(time.Second)
		b.has("with a grant", "first=5 second=1,2,9")
		c.remove(grant)
		b.after(time.Second)
		b.has("after the grant", "first= second=1,2,9")

		selecting := gatewayNamed("main", "tcp/80")
		selecting.Spec.Listeners[0].AllowedRoutes = &gatewayapi.AllowedRoutes{Namespaces: &gatewayapi.RouteNamespaces{From: new("Selector"), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "front"}}}}
		c.put(selecting, routeNamed("a", "main", "tcp-80", "web:80=1"))
		b.after(time.Second)
		b.has("a namespace without the label", "first=")
		c.put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "1", Labels: map[string]string{"tier": "front"}}})
		b.after(time.Second)
		b.has("with the label", "first=1,2")
		c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
		b.after(time.Second)
		b.has("without the namespace", "first=")
	})
}

// A server without the Gateway API, or with an older version of some kinds, is in order. A later installation is found.
func TestVersionsOfTheGatewayAPI(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := withGateway()
		c.put(balancer("own"), slice("own-1", "own", 7))
		none := []string{"/" + gateway.ResourceClasses, "/" + gateway.ResourceGateways, "/" + gateway.ResourceGrants, "/tcproutes", "/udproutes"}
		c.missing = none
		b := c.start(t, withGatewayAPI)
		b.has("without the Gateway API", "shop/own=7")
		b.asked()
		b.after(4 * time.Minute)
		stale, problems := b.out.is()
		expect.Equal(t, fmt.Sprint(stale, problems), "[]", "stale and problems")
		b.asks("four minutes", "routes")
		c.set(false, func() { c.missing = []string{"/v1/tcproutes", "/v1/udproutes", "/v1/" + gateway.ResourceGrants} })
		b.after(2 * time.Minute)
		b.has("with older versions", "first=1,2 second=1,2,9 shop/own=7")
		expect.Equal(t, b.source.objects.Documents.Row(statuswriter.DocumentKey{Resource: "tcproutes", Namespace: "shop", Name: "a"}).Value.API, gatewayapi.V1Alpha2, "the version of routes")
		c.set(true, func() { c.missing = []string{"/v1alpha2/tcproutes"} })
		b.after(time.Minute)
		b.put(routeNamed("a", "main", "tcp-80", "canary:80=1"))
		b.after(time.Second)
		b.has("with a newer one alone", "first=9 second=1,2,9 shop/own=7")
	})
}

// withoutRoutes refuses requests for TCPRoutes.
func withoutRoutes(code int) func(request string) *http.Response {
	return func(request string) *http.Response {
		if strings.Contains(request, "tcproutes") {
			return refusal(code)
		}
		return nil
	}
}

// A missing right concerns Gateways only, which stay as they are. A start without it serves none.
func TestGatewaysWithoutARight(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := withGateway()
		c.put(balancer("own"), slice("own-1", "own", 7))
		b := c.start(t, withGatewayAPI)
		b.has("first", "first=1,2 second=1,2,9 shop/own=7")
		c.set(true, func() { c.refuse = withoutRoutes(http.StatusForbidden) })
		b.after(30 * time.Second)
		b.put(slice("web-1", "web", 3), slice("own-1", "own", 8))
		b.after(time.Second)
		b.has("while routes can't be read", "first=3 second=3,9 shop/own=8")
		stale, problems := b.out.is()
		if stale != "" || len(problems) != 1 || !strings.Contains(problems[0].Hint, `"tcproutes" of gateway.networking.k8s.io in configs/kubernetes/clusterrole.yaml`) {
			t.Errorf("stale %q, problems %+v", stale, problems)
		}
	})
	bubble.Test(t, func(t *testing.T) { // a server that fails is waited for
		c := withGateway()
		c.put(balancer("own"), slice("own-1", "own", 7))
		c.refuse = withoutRoutes(http.StatusInternalServerError)
		b := c.start(t, withGatewayAPI)
		b.after(20 * time.Second)
		b.has("while routes can't be read", "")
		c.set(true, func() { c.refuse = nil })
		b.after(30 * time.Second)
		b.has("afterwards", "first=1,2 second=1,2,9 shop/own=7")
	})
	bubble.Test(t, func(t *testing.T) {
		c := withGateway()
		c.put(balancer("own"), slice("own-1", "own", 7))
		c.refuse = withoutRoutes(http.StatusForbidden)
		b := c.start(t, withGatewayAPI)
		b.has("without the right", "shop/own=7")
		expect.True(t, b.status(gateway.ResourceGateways, "main") == nil, "a status from half of the objects")
		c.set(true, func() { c.refuse = nil })
		b.after(30 * time.Second)
		b.has("with the right", "first=1,2 second=1,2,9 shop/own=7")
	})
}
