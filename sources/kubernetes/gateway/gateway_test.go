package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// read reads an object from YAML.
func read[T any](t *testing.T, text string) *T {
	t.Helper()
	var tree any
	must.Succeed(t, yaml.Unmarshal([]byte(text), &tree), text)
	out := new(T)
	must.Succeed(t, json.Unmarshal(must.Get(json.Marshal(tree))(t), out), text)
	return out
}

// world has the Services shop/web, shop/canary and shop/dns with the port 80, 53 of UDP for dns, and others/db.
func world(t *testing.T, grants ...string) View {
	services := map[vip.ServiceKey]*corev1.Service{}
	for _, text := range []string{
		"{metadata: {namespace: shop, name: web}, spec: {ports: [{port: 80}]}}", "{metadata: {namespace: shop, name: canary}, spec: {ports: [{port: 80}, {port: 81}]}}",
		"{metadata: {namespace: shop, name: dns}, spec: {ports: [{port: 53, protocol: UDP}]}}", "{metadata: {namespace: others, name: db}, spec: {ports: [{port: 5432}]}}",
		"{metadata: {namespace: shop, name: headless}, spec: {clusterIP: None, ports: [{port: 80}]}}", "{metadata: {namespace: shop, name: outside}, spec: {type: ExternalName}}",
	} {
		s := read[corev1.Service](t, text)
		services[vip.ServiceKey{Namespace: s.Namespace, Name: s.Name}] = s
	}
	return View{
		Service: func(key vip.ServiceKey) *corev1.Service { return services[key] },
		Grants: func(namespace string) (out []*gatewayapi.ReferenceGrant) {
			for _, text := range grants {
				if g := read[gatewayapi.ReferenceGrant](t, text); g.Namespace == namespace {
					out = append(out, g)
				}
			}
			return out
		},
		Namespace: func(name string) (map[string]string, bool) {
			return map[string]string{"tier": name}, name != "unknown"
		},
	}
}

// gatewayOf returns a Gateway shop/main with fields of its specification.
func gatewayOf(t *testing.T, fields string) *gatewayapi.Gateway {
	t.Helper()
	return read[gatewayapi.Gateway](t, "{metadata: {namespace: shop, name: main, uid: u, generation: 3}, spec: {gatewayClassName: ironvip, "+fields+"}}")
}

// routeOf returns a TCPRoute of this age, or a UDPRoute if its name begins with udp. The name may have a namespace.
func routeOf(t *testing.T, name string, age int, spec string) *gatewayapi.Route {
	t.Helper()
	namespace, short, found := strings.Cut(name, "/")
	if !found {
		namespace, short = "shop", name
	}
	r := read[gatewayapi.Route](t, fmt.Sprintf("{metadata: {namespace: %s, name: %s, generation: 2}, spec: {%s}}", namespace, short, spec))
	r.Kind = gatewayapi.TCPRoute
	if strings.HasPrefix(short, "udp") {
		r.Kind = gatewayapi.UDPRoute
	}
	r.CreationTimestamp = metav1.NewTime(time.Unix(int64(1000-age), 0))
	return r
}

// brief returns conditions as "Type" if good, else "Type=Reason".
func brief(conditions []metav1.Condition) string {
	var out []string
	for _, c := range conditions {
		switch {
		case c.Reason == good[c.Type] && (c.Type == "Conflicted") == (c.Status == metav1.ConditionFalse):
			if c.Type != "Conflicted" {
				out = append(out, c.Type)
			}
		default:
			out = append(out, c.Type+"="+c.Reason)
		}
	}
	return strings.Join(out, " ")
}

// lines returns a Plan as text.
func lines(p *Plan) string {
	out := []string{brief([]metav1.Condition{p.Accepted})}
	for _, l := range p.Listeners {
		line := fmt.Sprintf("%s: %s, %d of %v", l.Name, brief(l.Conditions), l.Attached, l.Kinds)
		for i, b := range l.Backends {
			line += fmt.Sprintf("%s %s=%d at %s:%d", map[bool]string{true: " ->", false: ","}[i == 0], b.Group, b.Weight, b.Service, b.Port)
		}
		out = append(out, line)
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.Routes), func(a, b RouteKey) int { return strings.Compare(a.Namespace+a.Name, b.Namespace+b.Name) }) {
		for _, parent := range p.Routes[key] {
			out = append(out, strings.TrimPrefix(key.Namespace+"/", "shop/")+key.Name+": "+brief(parent.Conditions))
		}
	}
	return strings.Join(out, "\n")
}

const (
	tcp      = "listeners: [{name: tcp, protocol: TCP, port: 80}]"
	tcpIs    = "Accepted\ntcp: Accepted ResolvedRefs, "
	toWeb    = "parentRefs: [{name: main}], rules: [{backendRefs: [{name: web, port: 80}]}]"
	webIs    = " -> web=1 at shop/web:80\n"
	fine     = ": Accepted ResolvedRefs"
	selected = "listeners: [{name: tcp, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {tier: others}}}}}]"
	all      = "listeners: [{name: tcp, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: All}}}]"
	grant    = "{metadata: {namespace: others, name: a}, spec: {from: [{group: gateway.networking.k8s.io, kind: %s, namespace: shop}], to: [{group: '', kind: Service%s}]}}"
)

func toBackends(refs string) string {
	return "parentRefs: [{name: main}], rules: [{backendRefs: [" + refs + "]}]"
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		name, gateway string
		routes        []*gatewayapi.Route
		grants        []string
		want          string
	}{
		{"no route", tcp, nil, nil, tcpIs + "0 of [TCPRoute]"},
		{"one backend", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toWeb)}, nil, tcpIs + "1 of [TCPRoute]" + webIs + "a" + fine},
		{"a canary", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web, port: 80, weight: 90}, {name: canary, port: 80, weight: 10}"))}, nil,
			tcpIs + "1 of [TCPRoute] -> web=90 at shop/web:80, canary=10 at shop/canary:80\na" + fine},
		{"weights above ours", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web, port: 80, weight: 900000}, {name: canary, port: 80, weight: 100000}, {name: canary, port: 81, weight: 0}"))}, nil,
			tcpIs + "1 of [TCPRoute] -> web=65535 at shop/web:80, canary=7281 at shop/canary:80, backend-43db14d228945e9f=0 at shop/canary:81\na" + fine},
		{"one backend twice", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web, port: 80, weight: 2}, {name: web, port: 80, weight: 3}"))}, nil,
			tcpIs + "1 of [TCPRoute] -> web=5 at shop/web:80\na" + fine},
		{"a negative weight", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web, port: 80, weight: 70000}, {name: canary, port: 80, weight: -1}"))}, nil,
			tcpIs + "1 of [TCPRoute] -> web=65535 at shop/web:80, canary=0 at shop/canary:80\na" + fine},
		{"too many backends", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends(strings.Repeat("{name: web, port: 80}, ", 17)))}, nil, tcpIs + "0 of [TCPRoute]\na: Accepted=UnsupportedValue ResolvedRefs"},
		{"no backends", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends(""))}, nil, tcpIs + "1 of [TCPRoute]\na" + fine},
		{"two rules", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, "parentRefs: [{name: main}], rules: [{}, {}]")}, nil, tcpIs + "0 of [TCPRoute]\na: Accepted=UnsupportedValue ResolvedRefs"},
		{"a route without parents", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, "rules: [{}]")}, nil, tcpIs + "0 of [TCPRoute]"},
		{"another parent", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, "parentRefs: [{name: main, kind: Service, group: ''}, {name: main, namespace: others}], rules: [{}]")}, nil, tcpIs + "0 of [TCPRoute]"},

		{"the oldest of two routes", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: canary, port: 80}")), routeOf(t, "b", 2, toWeb)}, nil,
			tcpIs + "2 of [TCPRoute]" + webIs + "a: Accepted ResolvedRefs ironvip.io/Superseded=OlderRoute\nb" + fine},
		{"the first name of two routes", tcp, []*gatewayapi.Route{routeOf(t, "b", 1, toBackends("{name: canary, port: 80}")), routeOf(t, "a", 1, toWeb)}, nil,
			tcpIs + "2 of [TCPRoute]" + webIs + "a" + fine + "\nb: Accepted ResolvedRefs ironvip.io/Superseded=OlderRoute"},
		{"a sectionName and a port", "listeners: [{name: x, protocol: TCP, port: 80}, {name: y, protocol: TCP, port: 81}]", []*gatewayapi.Route{
			routeOf(t, "a", 1, "parentRefs: [{name: main, sectionName: y, port: 81}], rules: [{backendRefs: [{name: web, port: 80}]}]"),
			routeOf(t, "b", 1, "parentRefs: [{name: main, sectionName: y, port: 80}], rules: [{}]"), routeOf(t, "c", 1, "parentRefs: [{name: main, sectionName: z}], rules: [{}]")}, nil,
			"Accepted\nx: Accepted ResolvedRefs, 0 of [TCPRoute]\ny: Accepted ResolvedRefs, 1 of [TCPRoute]" + webIs + "a" + fine + "\nb: Accepted=NoMatchingParent ResolvedRefs\nc: Accepted=NoMatchingParent ResolvedRefs"},

		{"one port for TCP and UDP", "listeners: [{name: t, protocol: TCP, port: 53}, {name: u, protocol: UDP, port: 53}]", []*gatewayapi.Route{
			routeOf(t, "udp", 1, toBackends("{name: dns, port: 53}")), routeOf(t, "a", 1, toBackends("{name: web, port: 80}"))}, nil,
			"Accepted\nt: Accepted ResolvedRefs, 1 of [TCPRoute] -> web=1 at shop/web:80\nu: Accepted ResolvedRefs, 1 of [UDPRoute] -> dns=1 at shop/dns:53\na" + fine + "\nudp" + fine},
		{"a route of another protocol", tcp, []*gatewayapi.Route{routeOf(t, "udp", 1, toBackends("{name: dns, port: 53}"))}, nil, tcpIs + "0 of [TCPRoute]\nudp: Accepted=NotAllowedByListeners ResolvedRefs"},
		{"a port twice", "listeners: [{name: x, protocol: TCP, port: 80}, {name: y, protocol: TCP, port: 80}]", nil, nil,
			"Accepted=ListenersNotValid\nx: Accepted ResolvedRefs, 0 of [TCPRoute]\ny: Accepted=PortUnavailable Conflicted=ProtocolConflict ResolvedRefs, 0 of [TCPRoute]"},
		{"a port that is none", "listeners: [{name: x, protocol: TCP, port: 80}, {name: y, protocol: TCP, port: 65616}, {name: z, protocol: UDP}]", nil, nil,
			"Accepted=ListenersNotValid\nx: Accepted ResolvedRefs, 0 of [TCPRoute]\ny: Accepted=PortUnavailable ResolvedRefs, 0 of [TCPRoute]\nz: Accepted=PortUnavailable ResolvedRefs, 0 of [UDPRoute]"},
		{"HTTP", "listeners: [{name: x, protocol: HTTP, port: 80}]", []*gatewayapi.Route{routeOf(t, "a", 1, toWeb)}, nil,
			"Accepted=ListenersNotValid\nx: Accepted=UnsupportedProtocol ResolvedRefs, 0 of []\na: Accepted=NotAllowedByListeners ResolvedRefs"},
		{"kinds", "listeners: [{name: x, protocol: TCP, port: 80, allowedRoutes: {kinds: [{kind: HTTPRoute}, {kind: TCPRoute}]}}, {name: y, protocol: TCP, port: 81, allowedRoutes: {kinds: [{kind: TCPRoute, group: x}]}}]", nil, nil,
			"Accepted\nx: Accepted ResolvedRefs=InvalidRouteKinds, 0 of [TCPRoute]\ny: Accepted ResolvedRefs=InvalidRouteKinds, 0 of []"},

		{"another namespace", tcp, []*gatewayapi.Route{routeOf(t, "others/a", 1, "parentRefs: [{name: main, namespace: shop}], rules: [{}]")}, nil, tcpIs + "0 of [TCPRoute]\nothers/a: Accepted=NotAllowedByListeners ResolvedRefs"},
		{"all namespaces", all, []*gatewayapi.Route{routeOf(t, "others/a", 1, "parentRefs: [{name: main, namespace: shop}], rules: [{backendRefs: [{name: db, port: 5432}]}]")}, nil,
			tcpIs + "1 of [TCPRoute] -> db=1 at others/db:5432\nothers/a" + fine},
		{"selected namespaces", selected, []*gatewayapi.Route{routeOf(t, "others/a", 1, "parentRefs: [{name: main, namespace: shop}], rules: [{}]"), routeOf(t, "b", 1, toWeb)}, nil,
			tcpIs + "1 of [TCPRoute]\nothers/a" + fine + "\nb: Accepted=NotAllowedByListeners ResolvedRefs"},
		{"no namespace", "listeners: [{name: tcp, protocol: TCP, port: 80, allowedRoutes: {namespaces: {from: None}}}]", []*gatewayapi.Route{routeOf(t, "a", 1, toWeb)}, nil,
			tcpIs + "0 of [TCPRoute]\na: Accepted=NotAllowedByListeners ResolvedRefs"},

		{"unusable backends", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web, port: 81}, {name: web, port: 80}"))}, nil, tcpIs + "1 of [TCPRoute]" + webIs + "a: Accepted ResolvedRefs=BackendNotFound"},
		{"no Service", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: none, port: 80}"))}, nil, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=BackendNotFound"},
		{"no port", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web}"))}, nil, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=BackendNotFound"},
		{"headless", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: headless, port: 80}"))}, nil, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=BackendNotFound"},
		{"an ExternalName", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: outside, port: 80}"))}, nil, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=BackendNotFound"},
		{"the protocol of a port", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: dns, port: 53}"))}, nil, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=UnsupportedProtocol"},
		{"another kind", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: web, kind: Bucket, group: example.com, port: 80}"))}, nil, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=InvalidKind"},
		{"no grant", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: db, namespace: others, port: 5432}"))},
			[]string{fmt.Sprintf(grant, "UDPRoute", ""), fmt.Sprintf(grant, "TCPRoute", ", name: x")}, tcpIs + "1 of [TCPRoute]\na: Accepted ResolvedRefs=RefNotPermitted"},
		{"a grant", tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toBackends("{name: db, namespace: others, port: 5432}"))}, []string{fmt.Sprintf(grant, "TCPRoute", ", name: db")},
			tcpIs + "1 of [TCPRoute] -> db=1 at others/db:5432\na" + fine},

		{"an address of another type", "addresses: [{type: Hostname, value: x.example.com}], " + tcp, nil, nil, "Accepted=UnsupportedAddress\ntcp: Accepted ResolvedRefs, 0 of [TCPRoute]"},
		{"two addresses of a family", "addresses: [{value: 192.0.2.1}, {value: 192.0.2.2}], " + tcp, nil, nil, "Accepted=UnsupportedAddress\ntcp: Accepted ResolvedRefs, 0 of [TCPRoute]"},
		{"parameters", "infrastructure: {parametersRef: {group: x, kind: Y, name: z}}, " + tcp, []*gatewayapi.Route{routeOf(t, "a", 1, toWeb)}, nil,
			"Accepted=InvalidParameters\ntcp: Accepted ResolvedRefs, 1 of [TCPRoute]" + webIs + "a" + fine},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect.Equal(t, lines(Make(gatewayOf(t, test.gateway), test.routes, world(t, test.grants...))), test.want)
		})
	}
}

// The definition of a listener's service has the Gateway's annotations and addresses, and shares addresses with the other listeners.
func TestServiceOfListener(t *testing.T) {
	gw := gatewayOf(t, "addresses: [{value: 192.0.2.1}, {type: IPAddress, value: '2001:db8::1'}], infrastructure: {labels: {team: a}, annotations: {ironvip.io/drain-timeout: 5s}}, listeners: [{name: dns.tcp, protocol: TCP, port: 53}, {name: udp, protocol: UDP, port: 53}]")
	gw.Annotations = map[string]string{"ironvip.io/pool": "x"}
	p := Make(gw, nil, world(t))
	first, second := p.Listeners[0].Service, p.Listeners[1].Service
	expect.Equal(t, fmt.Sprint(first.Name, " ", first.Labels, " ", first.Annotations, " ", first.Spec.Ports[0].Port, first.Spec.Ports[0].Protocol),
		"main-dns-tcp-"+first.Name[len("main-dns-tcp-"):]+" map[gateway.networking.k8s.io/gateway-name:main team:a] map[ironvip.io/drain-timeout:5s ironvip.io/pool:x ironvip.io/share-key:"+ShareKey("main")+" ironvip.io/vips:192.0.2.1,2001:db8::1] 53TCP")
	expect.Equal(t, second.Annotations["ironvip.io/share-key"], ShareKey("main"))
	expect.True(t, first.UID != second.UID, "two services with one UID")
}

func TestServiceNames(t *testing.T) {
	seen := map[string]bool{}
	long := strings.Repeat("a", 253)
	for _, of := range [][2]string{{"a-b", "c"}, {"a", "b-c"}, {"a.b", "c"}, {long, "x"}, {long, "y"}, {"x.", "y"}} {
		name := ServiceName(of[0], of[1])
		expect.False(t, seen[name], "%v: the name %s twice", of, name)
		seen[name] = true
		must.Succeed(t, vip.CheckLabel(name))
	}
	must.Succeed(t, vip.CheckLabel(ShareKey(long)))
}

// statusOf returns the status of a Gateway with the listeners x and y of which each has a grant.
func statusOf(gw *gatewayapi.Gateway, now time.Time, grants ...Grant) gatewayapi.GatewayStatus {
	p := Make(gw, nil, View{})
	i := 0
	return p.Status(now, func(vip.ServiceKey) Grant { i++; return grants[i-1] })
}

// While nobody knows what a listener is granted, the status stays as it is. Former settings without an address serve nobody.
func TestStatusOfUnknownGrants(t *testing.T) {
	gw := gatewayOf(t, tcp)
	gw.Status.Addresses = []gatewayapi.Address{{Value: "192.0.2.1"}}
	gw.Status.Conditions = []metav1.Condition{condition("Programmed", "", "")}
	gw.Status.Listeners = []gatewayapi.ListenerStatus{{Name: "tcp", Conditions: gw.Status.Conditions}}
	waiting := &vip.Allocation{Problems: []vip.Problem{{Code: vip.CodeWaiting}}}
	for i, grant := range []Grant{{}, {Allocation: &vip.Allocation{}}, {Allocation: waiting}} {
		is := statusOf(gw, time.Now(), grant)
		expect.Equal(t, fmt.Sprint(brief(is.Conditions), len(is.Addresses), brief(is.Listeners[0].Conditions)), "Accepted Programmed1Accepted ResolvedRefs Programmed", "grant %d", i)
	}
	is := statusOf(gw, time.Now(), Grant{Former: true, Problems: []vip.Problem{{Message: "m"}}})
	expect.Equal(t, brief(is.Listeners[0].Conditions), "Accepted ResolvedRefs Programmed=Invalid", "former settings without an address")
}

func TestGatewayStatus(t *testing.T) {
	const both = "listeners: [{name: x, protocol: TCP, port: 80}, {name: y, protocol: UDP, port: 80}]"
	of := func(addr string, problems ...vip.Problem) Grant {
		a := &vip.Allocation{Problems: problems}
		if addr != "" {
			a.VIPs = append(a.VIPs, addrs(addr)...)
		}
		return Grant{Allocation: a}
	}
	for _, test := range []struct {
		name   string
		grants []Grant
		want   string
	}{
		{"served", []Grant{of("192.0.2.1 2001:db8::1"), of("192.0.2.1 2001:db8::1")}, "Accepted Programmed at 192.0.2.1 2001:db8::1; x Programmed; y Programmed"},
		{"no answer yet", []Grant{of("192.0.2.1"), {}}, "Accepted Programmed=Pending at 192.0.2.1; x Programmed; y Programmed=Pending"},
		{"the store is away", []Grant{of("192.0.2.1"), of("", vip.Problem{Code: vip.CodeStore})}, "Accepted Programmed=Pending at 192.0.2.1; x Programmed; y Programmed=Pending"},
		{"outside of pools", []Grant{of("", vip.Problem{Code: vip.CodeOutsidePool, Message: "m"}), of("", vip.Problem{Code: vip.CodeOutsidePool})}, "Accepted Programmed=AddressNotUsable; x Programmed=Invalid; y Programmed=Invalid"},
		{"another's", []Grant{of("", vip.Problem{Code: vip.CodeAddressTaken}), of("")}, "Accepted Programmed=AddressNotUsable; x Programmed=Invalid; y Programmed=Pending"},
		{"a full pool", []Grant{of("", vip.Problem{Code: vip.CodePoolFull}), of("", vip.Problem{Code: vip.CodePoolFull})}, "Accepted Programmed=AddressNotAssigned; x Programmed=Invalid; y Programmed=Invalid"},
		{"a port of another service", []Grant{of("192.0.2.1"), of("", vip.Problem{Code: vip.CodePortTaken})}, "Accepted Programmed=AddressNotAssigned at 192.0.2.1; x Programmed; y Accepted=PortUnavailable Programmed=Invalid"},
		{"a requested address of another", []Grant{of("192.0.2.1", vip.Problem{Code: vip.CodeAddressTaken}), of("192.0.2.1")}, "Accepted Programmed=AddressNotUsable at 192.0.2.1; x Programmed; y Programmed"},
		{"one family of two", []Grant{of("192.0.2.1", vip.Problem{Code: vip.CodePoolFull}), of("192.0.2.1")}, "Accepted Programmed=AddressNotAssigned at 192.0.2.1; x Programmed; y Programmed"},
		{"former settings", []Grant{{Allocation: of("192.0.2.1").Allocation, Former: true, Problems: []vip.Problem{{Message: "m"}}}, of("192.0.2.1")}, "Accepted Programmed=Invalid at 192.0.2.1; x Programmed; y Programmed"},
		{"a bad annotation", []Grant{of("192.0.2.1"), {Problems: []vip.Problem{{Message: "m"}}}}, "Accepted Programmed=Invalid at 192.0.2.1; x Programmed; y Programmed=Invalid"},
	} {
		s := statusOf(gatewayOf(t, both), time.Unix(1, 0), test.grants...)
		got := brief(s.Conditions)
		for i, a := range s.Addresses {
			got += map[bool]string{true: " at ", false: " "}[i == 0] + a.Value
		}
		for _, l := range s.Listeners {
			got += "; " + l.Name + strings.TrimSuffix(strings.ReplaceAll(strings.ReplaceAll(" "+brief(l.Conditions)+" ", " Accepted ", " "), " ResolvedRefs ", " "), " ")
		}
		expect.Equal(t, got, test.want, test.name)
	}
	none := statusOf(gatewayOf(t, "listeners: [{name: x, protocol: TLS, port: 1}]"), time.Unix(1, 0))
	expect.Equal(t, brief(none.Conditions), "Accepted=ListenersNotValid Programmed=Invalid", "no valid listener")
}

func TestStatusKeepsTimesAndOthersConditions(t *testing.T) {
	gw := gatewayOf(t, tcp)
	gw.Status.Conditions = []metav1.Condition{{Type: "Other", Status: "True"}, {Type: "Programmed", Status: "Unknown"}}
	gw.Status = statusOf(gw, time.Unix(1, 0), Grant{})
	expect.Equal(t, brief(gw.Status.Conditions), "Accepted Programmed=Pending Other")
	again := statusOf(gw, time.Unix(2, 0), Grant{})
	expect.True(t, same(again, gw.Status), "the status of the same state differs")
	later := statusOf(gw, time.Unix(3, 0), Grant{Allocation: &vip.Allocation{VIPs: addrs("192.0.2.1")}})
	expect.Equal(t, fmt.Sprint(later.Conditions[0].LastTransitionTime.Unix(), later.Conditions[1].LastTransitionTime.Unix(), later.Conditions[1].ObservedGeneration), "1 3 3", "times of changes, and the generation")
}

func TestRouteStatus(t *testing.T) {
	r := routeOf(t, "a", 1, "parentRefs: [{name: main}, {name: foreign}], rules: [{}]")
	expect.True(t, same(RouteStatus(r, nil, time.Unix(1, 0)), r.Status), "the status of a route without a parent of ours changes")
	foreign := gatewayapi.RouteParentStatus{ParentRef: r.Spec.ParentRefs[1], ControllerName: "example.com/x"}
	r.Status.Parents = []gatewayapi.RouteParentStatus{foreign}
	parents := Make(gatewayOf(t, tcp), []*gatewayapi.Route{r}, world(t)).Routes[KeyOfRoute(r)]
	r.Status = RouteStatus(r, parents, time.Unix(1, 0))
	expect.Equal(t, len(r.Status.Parents), 2, "parents")
	expect.Equal(t, r.Status.Parents[1].ControllerName+": "+brief(r.Status.Parents[1].Conditions), Controller+": Accepted ResolvedRefs")
	expect.True(t, same(RouteStatus(r, parents, time.Unix(2, 0)), r.Status), "the status of the same state differs")
	expect.True(t, same(RouteStatus(r, nil, time.Unix(2, 0)).Parents, []gatewayapi.RouteParentStatus{foreign}), "the parents of others alone, after ours is gone")
}

func TestClassStatus(t *testing.T) {
	c := read[gatewayapi.GatewayClass](t, "{metadata: {name: x}, spec: {controllerName: ironvip.io/vip}}")
	expect.Equal(t, brief(ClassStatus(c, time.Unix(1, 0)).Conditions), "Accepted")
	c.Spec.ParametersRef = json.RawMessage(`{"kind": "X"}`)
	expect.Equal(t, brief(ClassStatus(c, time.Unix(1, 0)).Conditions), "Accepted=InvalidParameters")
}

func addrs(text string) (out []netip.Addr) {
	for _, a := range strings.Fields(text) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}
