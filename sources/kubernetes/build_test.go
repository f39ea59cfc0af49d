package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ironvip/ironvip/sources/draft"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// aService returns shop/web, 80 to 8080, as an API server returns it, with changes.
func aService(changes ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1", Annotations: map[string]string{}, Labels: map[string]string{}}}
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(DefaultLoadBalancerClass), ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		SessionAffinity: corev1.ServiceAffinityNone, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), AllocateLoadBalancerNodePorts: new(true),
		Ports: []corev1.ServicePort{aPort("80>8080+30080")},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// aPort parses "http=80/udp>8080+30080". The target may be a name.
func aPort(text string) corev1.ServicePort {
	p := corev1.ServicePort{Protocol: corev1.ProtocolTCP}
	if name, rest, named := strings.Cut(text, "="); named {
		p.Name, text = name, rest
	}
	text, nodePort, _ := strings.Cut(text, "+")
	text, target, _ := strings.Cut(text, ">")
	text, protocol, with := strings.Cut(text, "/")
	if with {
		p.Protocol = corev1.Protocol(strings.ToUpper(protocol))
	}
	p.Port, p.NodePort = int32(number(text)), int32(number(nodePort))
	p.TargetPort = intstr.Parse(target)
	if target == "" {
		p.TargetPort = intstr.FromInt32(p.Port)
	}
	return p
}

func number(text string) int { n, _ := strconv.Atoi(text); return n }

// ports replaces the Service's ports.
func ports(texts ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = nil
		for _, text := range texts {
			s.Spec.Ports = append(s.Spec.Ports, aPort(text))
		}
	}
}

func annotate(name, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[annotationPrefix+name] = value }
}

// other sets an annotation of another load balancer.
func other(name, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[name] = value }
}

// hasStatus sets the addresses of the status.
func hasStatus(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func dualStack(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	s.Spec.ClusterIPs = []string{"fd00::10", "10.96.0.10"}
	s.Spec.ClusterIP = "fd00::10"
}

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31999
}

// aSlice returns the slice "web-a http=8080,dns=53/udp" with endpoints: "10.1.0.1 @n1 zone=a !ready
// serving terminating zones=a,b nodes=n1". Other fields are not set.
func aSlice(head string, endpoints ...string) *discoveryv1.EndpointSlice {
	name, list, _ := strings.Cut(head, " ")
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, AddressType: discoveryv1.AddressTypeIPv4}
	for _, text := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		if text == "ipv6" || text == "fqdn" {
			s.AddressType = map[string]discoveryv1.AddressType{"ipv6": discoveryv1.AddressTypeIPv6, "fqdn": discoveryv1.AddressTypeFQDN}[text]
			continue
		}
		if age, aged := strings.CutPrefix(text, "created="); aged {
			s.CreationTimestamp = metav1.NewTime(time.Unix(int64(number(age)), 0))
			continue
		}
		if !strings.Contains(text, "=") {
			text = "=" + text
		}
		p := aPort(text)
		port := discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol}
		if p.Port == 0 {
			port.Port = nil
		}
		s.Ports = append(s.Ports, port)
	}
	for _, text := range endpoints {
		s.Endpoints = append(s.Endpoints, anEndpoint(text))
	}
	return s
}

func anEndpoint(text string) discoveryv1.Endpoint {
	var e discoveryv1.Endpoint
	for i, word := range strings.Fields(text) {
		key, values, _ := strings.Cut(word, "=")
		word, not := strings.CutPrefix(word, "!")
		switch {
		case i == 0:
			e.Addresses = strings.Split(word, ",")
		case word[0] == '@':
			e.NodeName = new(word[1:])
		case word == "ready":
			e.Conditions.Ready = new(!not)
		case word == "serving":
			e.Conditions.Serving = new(!not)
		case word == "terminating":
			e.Conditions.Terminating = new(!not)
		case key == "zone":
			e.Zone = &values
		case key == "zones" || key == "nodes":
			if e.Hints == nil {
				e.Hints = &discoveryv1.EndpointHints{}
			}
			for _, name := range strings.Split(values, ",") {
				if key == "zones" {
					e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
				} else {
					e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
				}
			}
		default:
			panic(word)
		}
	}
	return e
}

func slicesOf(s ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice { return s }

// backendsOf returns a service's target ports and backends: "http>8080: 10.1.0.1 terminating;
// 10.1.0.2:9090 [http] @n1 zone=a zones=a".
func backendsOf(s vip.Service) string {
	var head, out []string
	for _, p := range s.Ports {
		head = append(head, fmt.Sprintf("%s>%d", p.Name, p.TargetPort))
	}
	for _, b := range s.Backends {
		word := b.ID()
		for _, more := range []struct{ before, value, after string }{
			{" [", string(b.Ports), "]"}, {" ", strings.TrimPrefix(stateOf(b), "ready"), ""}, {" @", b.Node, ""},
			{" zone=", b.Zone, ""}, {" zones=", string(b.ForZones), ""}, {" nodes=", string(b.ForNodes), ""},
		} {
			if more.value != "" {
				word += more.before + more.value + more.after
			}
		}
		if b.Weight != 1 {
			word += fmt.Sprintf(" w=%d", b.Weight)
		}
		out = append(out, word)
	}
	return strings.TrimSuffix(strings.Join(head, " ")+": "+strings.Join(out, "; "), ": ")
}

// toldOf returns problems as "field: message".
func texts(problems []vip.Problem) string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Field+": "+p.Message)
	}
	return strings.Join(out, "; ")
}

// checkBackends builds a service, and compares its backends and problems.
func checkBackends(t *testing.T, o Options, in input, want, problems string) {
	t.Helper()
	got := o.build(in)
	if !got.use || backendsOf(got.service) != want {
		t.Errorf("%v\n%s, not\n%s", got.use, backendsOf(got.service), want)
	}
	if texts(got.problems) != problems {
		t.Errorf("problems\n%s, not\n%s", texts(got.problems), problems)
	}
	checkBuilt(t, o, in, got)
}

// checkBuilt checks what applies to every build: spec accepts the service, problems have a place,
// exactly the idle backends have a reason, and the order of the slices does not matter.
func checkBuilt(t *testing.T, o Options, in input, got built) {
	t.Helper()
	for _, p := range got.problems {
		place := fmt.Sprintf("service %s/%s in kubernetes", in.service.Namespace, in.service.Name)
		key := vip.ServiceKey{Namespace: in.service.Namespace, Name: in.service.Name}
		if p.Place != place || p.Service != key.String() || p.Code == "" || p.Field == "" || p.Message == "" {
			t.Errorf("%+v", p)
		}
	}
	if got.use {
		written := spec.FromService(got.service)
		again, problems := written.Build(got.service.Source, got.service.Origin)
		again.Assigned, again.Preferred = got.service.Assigned, got.service.Preferred
		for i, b := range got.service.Backends { // no user writes a reason
			if idle := b.State == vip.Drain || b.Health == vip.Unhealthy; idle == (b.Reason == vip.Reason{}) {
				t.Errorf("%s is %s: %q", b.Address, b.State, b.Reason.Text(time.Time{}))
			}
			again.Backends[i].Reason = b.Reason
		}
		if len(problems) > 0 || !reflect.DeepEqual(again, got.service) {
			t.Errorf("%v\n%+v\n%+v", problems, again, got.service)
		}
	}
	in.slices = slices.Clone(in.slices)
	for range 2 {
		slices.Reverse(in.slices)
		if again := o.build(in); !reflect.DeepEqual(again, got) {
			t.Errorf("in another order of slices:\n%+v, not\n%+v", again, got)
		}
		rand.New(rand.NewPCG(1, 0)).Shuffle(len(in.slices), func(i, j int) { in.slices[i], in.slices[j] = in.slices[j], in.slices[i] })
	}
}

func TestSelects(t *testing.T) {
	class := func(c string) func(*corev1.Service) { return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &c } }
	classless := func(s *corev1.Service) { s.Spec.LoadBalancerClass = nil }
	kind := func(k corev1.ServiceType) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Type, s.Spec.LoadBalancerClass = k, nil }
	}
	headless := func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }
	deleted := func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }
	label := func(key string) func(*corev1.Service) { return func(s *corev1.Service) { s.Labels[key] = "" } }
	type changes []func(*corev1.Service)
	var byClass, all, adopt Options
	all.Classless, adopt.AdoptClusterIPs = true, true
	for _, test := range []struct {
		name     string
		changes  changes
		by       Options
		selected bool
	}{
		{"our class", nil, byClass, true},
		{"our class, where the others are ours, too", nil, all, true},
		{"another class", changes{class("example.com/lb")}, all, false},
		{"a class of our own choice", changes{class("example.com/lb")}, Options{Config: Config{LoadBalancerClass: "example.com/lb"}}, true},
		{"the default one, where we chose", nil, Options{Config: Config{LoadBalancerClass: "example.com/lb"}}, false},
		{"no class", changes{classless}, byClass, false},
		{"no class, which is ours", changes{classless}, all, true},
		{"no load balancer", changes{kind(corev1.ServiceTypeClusterIP)}, all, false},
		{"a node port", changes{kind(corev1.ServiceTypeNodePort)}, all, false},
		{"a name", changes{kind(corev1.ServiceTypeExternalName)}, all, false},
		{"no address", changes{headless}, all, false},
		{"being deleted", changes{deleted}, byClass, false},
		{"in a namespace of ours", nil, Options{Config: Config{Namespaces: []string{"blog", "shop"}}}, true},
		{"in another namespace", nil, Options{Config: Config{Namespaces: []string{"blog"}}}, false},
		{"somebody else's proxy, and our class", changes{label(labelServiceProxyName)}, byClass, true},

		{"mirrored", changes{kind(corev1.ServiceTypeClusterIP)}, adopt, true},
		{"mirrored node port", changes{kind(corev1.ServiceTypeNodePort)}, adopt, true},
		{"mirrored load balancer of any class", changes{class("example.com/lb")}, adopt, true},
		{"a name can't be mirrored", changes{kind(corev1.ServiceTypeExternalName)}, adopt, false},
		{"nor no address", changes{kind(corev1.ServiceTypeClusterIP), headless}, adopt, false},
		{"nor one to come", changes{kind(corev1.ServiceTypeClusterIP), func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }}, adopt, false},
		{"mirrored while it is deleted", changes{deleted}, adopt, true},
		{"somebody else's proxy", changes{label(labelServiceProxyName)}, adopt, false},
		{"labelled headless", changes{label(corev1.IsHeadlessService)}, adopt, false},
		{"mirrored, in another namespace", nil, Options{Config: Config{AdoptClusterIPs: true, Namespaces: []string{"blog"}}}, false},
	} {
		s := aService(test.changes...)
		expect.Equal(t, test.by.selects(s), test.selected, "%s: selected is %v", test.name, !test.selected)
		if got := test.by.build(input{service: s}); got.use != test.selected || !test.selected && !reflect.DeepEqual(got, built{}) {
			t.Errorf("%s: built %+v", test.name, got)
		}
	}
}

// said returns the differences of a service from that of aService as JSON.
func said(t *testing.T, s vip.Service) string {
	t.Helper()
	plain := (&Options{}).build(input{service: aService()})
	fields := func(s vip.Service) map[string]any {
		text, err := json.Marshal(spec.FromService(s))
		out := map[string]any{}
		if err = errors.Join(err, json.Unmarshal(text, &out)); err != nil {
			t.Fatal(err)
		}
		if s.Assigned {
			out["assigned"] = true
		}
		if len(s.Preferred) > 0 {
			out["preferred"] = s.Preferred
		}
		return out
	}
	got, base := fields(s), fields(plain.service)
	for key := range base {
		if reflect.DeepEqual(got[key], base[key]) {
			delete(got, key)
		} else if _, has := got[key]; !has {
			got[key] = nil
		}
	}
	return string(must.Get(json.Marshal(got))(t))
}

func TestPlainService(t *testing.T) {
	got := (&Options{Name: "prod", Config: Config{Pool: "lan"}}).build(input{service: aService()})
	ours, err := json.Marshal(spec.FromService(got.service))
	want := `{"name":"web","namespace":"shop","pool":"lan","families":["ipv4"],"ports":[{"protocol":"tcp","port":80,"target_port":8080}],"scheduler":"wrr","forward":"nat",` +
		`"internal_traffic":"cluster","external_traffic":"cluster","traffic_distribution":"any","masquerade":"auto","drain_timeout":"1m","connect_timeout":"3s","idle_timeout":"1h","half_close_timeout":"30s","queue_timeout":"5s"}`
	if string(ours) != want || err != nil || !got.use || len(got.problems) > 0 {
		t.Errorf("%s\nis not\n%s, %v, %v", ours, want, err, got.problems)
	}
	if s := got.service; s.Source != "prod" || s.Origin != "service shop/web in prod" || s.Assigned {
		t.Errorf("%+v", s)
	}
}

// TestFields covers each field of a Service and each annotation.
func TestFields(t *testing.T) {
	type S = *corev1.Service
	adopt, nodePorts := Options{Config: Config{AdoptClusterIPs: true}}, Options{Config: Config{Backends: BackendsNodePorts}}
	for _, test := range []struct {
		name     string
		change   func(S)
		by       Options
		want     string // "": not selected
		problems string
	}{
		{"nothing", func(s S) {}, Options{}, `{}`, ""},
		{"the source's pool", func(s S) {}, Options{Config: Config{Pool: "lan"}}, `{"pool":"lan"}`, ""},
		{"labels", func(s S) { s.Labels["app.kubernetes.io/name"] = "web" }, Options{}, `{"labels":{"app.kubernetes.io/name":"web"}}`, ""},
		{"a long label", func(s S) { s.Labels[strings.Repeat("a", 250)+"/web"] = "x"; s.Labels["a"] = "b" }, Options{}, `{"labels":{"a":"b"}}`,
			"metadata.labels[" + strings.Repeat("a", 250) + "/web]: is not shown: its name is longer than 253 characters"},

		{"both families, in their order", dualStack, Options{}, `{"families":["ipv6","ipv4"]}`, ""},
		{"IPv6", func(s S) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }, Options{}, `{"families":["ipv6"]}`, ""},
		{"families of an old server", func(s S) { s.Spec.IPFamilies = nil }, Options{}, `{"families":null}`, ""},
		{"a family to come", func(s S) { s.Spec.IPFamilies = []corev1.IPFamily{"IPv8"} }, Options{}, "", `spec.ipFamilies[0]: "IPv8" is not an address family`},

		{"named ports", ports("http=80>8080+30080", "metrics=9090>metrics+30090"), Options{},
			`{"ports":[{"name":"http","port":80,"protocol":"tcp","target_port":8080},{"name":"metrics","port":9090,"protocol":"tcp","target_port":9090}]}`, ""},
		{"two protocols on one number", ports("dns=53/udp+30053", "dns-tcp=53/tcp+30053"), Options{},
			`{"ports":[{"name":"dns","port":53,"protocol":"udp","target_port":53},{"name":"dns-tcp","port":53,"protocol":"tcp","target_port":53}]}`, ""},
		{"sctp", ports("38412/sctp"), Options{}, `{"ports":[{"port":38412,"protocol":"sctp","target_port":38412}]}`, ""},
		{"one port twice", ports("a=80", "b=80"), Options{}, "", "spec.ports[1].port: 80/tcp is that of ports[0], too"},
		{"no port", ports(), Options{}, "", "spec.ports: a service needs a port"},
		{"no protocol", func(s S) { s.Spec.Ports[0].Protocol = "" }, Options{}, `{}`, ""},
		{"a protocol to come", ports("a=80/quic"), Options{}, "", `spec.ports[0].protocol: "QUIC" is not a protocol`},

		{"affinity", func(s S) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(90))}}
		}, Options{}, `{"affinity":{"timeout":"1m30s"}}`, ""},
		{"affinity without a timeout", func(s S) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, Options{}, `{"affinity":{"timeout":"3h"}}`, ""},
		{"affinity for ever", func(s S) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(100_000))}}
		}, Options{}, "", "spec.sessionAffinityConfig.clientIP.timeoutSeconds: 27h46m40s is out of bounds"},
		{"local traffic", local, Options{}, `{"external_traffic":"local"}`, ""},
		{"local traffic inside", func(s S) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }, Options{}, `{"internal_traffic":"local"}`, ""},
		{"policies of an old server", func(s S) { s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = nil, "" }, Options{}, `{}`, ""},
		{"a policy to come", func(s S) { s.Spec.ExternalTrafficPolicy = "Near" }, Options{}, "", `spec.externalTrafficPolicy: "near" is not a known value`},
		{"close", func(s S) { s.Spec.TrafficDistribution = new("PreferClose") }, Options{}, `{"traffic_distribution":"same-zone"}`, ""},
		{"same zone", func(s S) { s.Spec.TrafficDistribution = new("PreferSameZone") }, Options{}, `{"traffic_distribution":"same-zone"}`, ""},
		{"same node", func(s S) { s.Spec.TrafficDistribution = new("PreferSameNode") }, Options{}, `{"traffic_distribution":"same-node"}`, ""},
		{"a distribution to come", func(s S) { s.Spec.TrafficDistribution = new("PreferWarm") }, Options{}, `{}`,
			`spec.trafficDistribution: this version does not know "PreferWarm", and prefers no endpoint`},
		{"source ranges", func(s S) { s.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.7/24", "10.0.0.0/8", "10.0.0.0/8"} }, Options{},
			`{"source_ranges":["10.0.0.0/8","192.0.2.0/24"]}`, ""},
		{"source ranges of another family", func(s S) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "2001:db8::/32"} }, Options{},
			`{"source_ranges":["10.0.0.0/8"]}`, "spec.loadBalancerSourceRanges[1]: 2001:db8::/32 is ipv6, which spec.ipFamilies leaves out"},
		{"no source ranges but of another family", func(s S) { s.Spec.LoadBalancerSourceRanges = []string{"2001:db8::/32"} }, Options{}, "",
			"spec.loadBalancerSourceRanges[0]: 2001:db8::/32 is ipv6, which spec.ipFamilies leaves out; " +
				"spec.loadBalancerSourceRanges: none of the ranges is of the Service's families, and nobody could reach it"},
		{"source ranges of both families", func(s S) {
			dualStack(s)
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "2001:db8::/32"}
		}, Options{}, `{"families":["ipv6","ipv4"],"source_ranges":["10.0.0.0/8","2001:db8::/32"]}`, ""},
		{"a bad source range", func(s S) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "10.0.0.0/33"} }, Options{}, "",
			`spec.loadBalancerSourceRanges[1]: "10.0.0.0/33" is not a range of addresses`},
		{"a bad source range after one that is left out", func(s S) { s.Spec.LoadBalancerSourceRanges = []string{"2001:db8::/32", "office"} }, Options{}, "",
			`spec.loadBalancerSourceRanges[0]: 2001:db8::/32 is ipv6, which spec.ipFamilies leaves out; spec.loadBalancerSourceRanges[1]: "office" is not a range of addresses`},
		{"source ranges as they were once written", func(s S) { s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] = "10.0.0.0/8, 192.0.2.0/24" }, Options{},
			`{"source_ranges":["10.0.0.0/8","192.0.2.0/24"]}`, ""},
		{"such that are bad", func(s S) { s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] = "10.0.0.0/8,x" }, Options{}, "",
			`metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]: "x" is not a range of addresses`},
		{"the field counts", func(s S) {
			s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey] = "x"
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
		}, Options{}, `{"source_ranges":["10.0.0.0/8"]}`, ""},

		{"loadBalancerIP", func(s S) { s.Spec.LoadBalancerIP = "192.0.2.7" }, Options{}, `{"vips":["192.0.2.7"]}`, "spec.loadBalancerIP: is deprecated by Kubernetes"},
		{"loadBalancerIP and the annotation", func(s S) { s.Spec.LoadBalancerIP = "192.0.2.7"; annotate("vips", "192.0.2.8")(s) }, Options{}, `{"vips":["192.0.2.8"]}`,
			"spec.loadBalancerIP: is not used: metadata.annotations[ironvip.io/vips] counts"},
		{"an address of MetalLB", other("metallb.io/loadBalancerIPs", "192.0.2.7,192.0.2.7"), Options{}, "", `metadata.annotations[metallb.io/loadBalancerIPs]: 192.0.2.7 is the second ipv4 address`},
		{"addresses of MetalLB", func(s S) { dualStack(s); other("metallb.universe.tf/loadBalancerIPs", "192.0.2.7, 2001:db8::7")(s) }, Options{},
			`{"families":["ipv6","ipv4"],"vips":["192.0.2.7","2001:db8::7"]}`, ""},
		{"an address of kube-vip", other("kube-vip.io/loadbalancerIPs", "192.0.2.7"), Options{}, `{"vips":["192.0.2.7"]}`, ""},
		{"any address of kube-vip", other("kube-vip.io/loadbalancerIPs", "0.0.0.0"), Options{}, `{}`, ""},
		{"an address of MetalLB, and the same loadBalancerIP", func(s S) {
			s.Spec.LoadBalancerIP = "192.0.2.7"
			other("metallb.io/loadBalancerIPs", "192.0.2.7")(s)
		}, Options{}, `{"vips":["192.0.2.7"]}`, ""},
		{"an address of MetalLB, and the annotation", func(s S) {
			annotate("vips", "192.0.2.8")(s)
			other("metallb.io/loadBalancerIPs", "192.0.2.7")(s)
		}, Options{}, `{"vips":["192.0.2.8"]}`, ""},
		{"a share key of MetalLB", other("metallb.io/allow-shared-ip", "web"), Options{}, `{"share_key":"web"}`, ""},
		{"a share key of MetalLB that is no label", other("metallb.universe.tf/allow-shared-ip", "Web_1"), Options{}, `{"share_key":"shared-24b9b5947a33a281"}`, ""},
		{"the addresses of the status", hasStatus("192.0.2.7", "2001:db8::7", ""), Options{}, `{"preferred":["192.0.2.7","2001:db8::7"]}`, ""},
		{"the address of the status, and a request", func(s S) { hasStatus("192.0.2.7")(s); annotate("vips", "192.0.2.8")(s) }, Options{}, `{"vips":["192.0.2.8"]}`, ""},
		{"the address of the status, mirrored", hasStatus("192.0.2.7"), adopt,
			`{"assigned":true,"ports":[{"node_port":30080,"port":80,"protocol":"tcp","target_port":8080}],"vips":["10.96.0.10"]}`, ""},
		{"a bad loadBalancerIP", func(s S) { s.Spec.LoadBalancerIP = "lb.example" }, Options{}, "", `spec.loadBalancerIP: is deprecated by Kubernetes; spec.loadBalancerIP: "lb.example" is not an address`},
		{"a loadBalancerIP of another family", func(s S) { s.Spec.LoadBalancerIP = "2001:db8::7" }, Options{}, "",
			`spec.loadBalancerIP: is deprecated by Kubernetes; spec.loadBalancerIP: 2001:db8::7 is of a family that spec.ipFamilies leaves out`},
		{"addresses of both families", func(s S) { dualStack(s); annotate("vips", "2001:db8::7, 192.0.2.7")(s) }, Options{},
			`{"families":["ipv6","ipv4"],"vips":["192.0.2.7","2001:db8::7"]}`, ""},
		{"an address of another family, and one that is none", annotate("vips", "2001:db8::7,192.0.2.7,x"), Options{}, "",
			`metadata.annotations[ironvip.io/vips]: 2001:db8::7 is of a family that spec.ipFamilies leaves out; metadata.annotations[ironvip.io/vips]: "x" is not an address`},

		{"pool", annotate("pool", "public"), Options{Config: Config{Pool: "lan"}}, `{"pool":"public"}`, ""},
		{"a bad pool", annotate("pool", "Public Pool"), Options{}, "", `metadata.annotations[ironvip.io/pool]: "Public Pool" is not a DNS label: use a-z, 0-9 and inner "-"`},
		{"hostnames", annotate("hostnames", "shop.example.com, a.example"), Options{}, `{"hostnames":["a.example","shop.example.com"]}`, ""},
		{"a bad hostname", annotate("hostnames", "a.example,Shop.example.com"), Options{}, "", `metadata.annotations[ironvip.io/hostnames]: "Shop.example.com" is not a DNS name: use labels of a-z, 0-9 and inner "-" with dots between them`},
		{"scheduler flags", func(s S) { annotate("scheduler", "mh")(s); annotate("scheduler-flags", "port, fallback")(s) }, Options{},
			`{"scheduler":"mh","scheduler_flags":["fallback","port"]}`, ""},
		{"a bad flag", func(s S) { annotate("scheduler", "mh")(s); annotate("scheduler-flags", "prot")(s) }, Options{}, "",
			`metadata.annotations[ironvip.io/scheduler-flags]: "prot" is not a scheduler flag`},
		{"forward", func(s S) { ports("80+30080")(s); annotate("forward", "dr")(s) }, Options{}, `{"forward":"dr","ports":[{"port":80,"protocol":"tcp","target_port":80}]}`, ""},
		{"forward that can't change ports", annotate("forward", "dr"), Options{}, "", "spec.ports[0].targetPort: forward dr does not change the port: 8080 is not that of 80/tcp"},
		{"forward that can't change ports, to node ports", func(s S) { ports("80+30080")(s); annotate("forward", "dr")(s) }, nodePorts, "",
			"spec.ports[0].nodePort: forward dr does not change the port: 30080 is not that of 80/tcp"},
		{"drain timeout", annotate("drain-timeout", "5m"), Options{}, `{"drain_timeout":"5m"}`, ""},
		{"no drain timeout", annotate("drain-timeout", "soon"), Options{}, "", `metadata.annotations[ironvip.io/drain-timeout]: "soon" is not a time span`},
		{"too long a drain timeout", annotate("drain-timeout", "25h"), Options{}, "", "metadata.annotations[ironvip.io/drain-timeout]: 25h is out of bounds"},
		{"an empty annotation", func(s S) { annotate("pool", "")(s); annotate("shceduler", "")(s) }, Options{Config: Config{Pool: "lan"}}, `{"pool":"lan"}`, ""},
		{"somebody else's annotation", func(s S) { s.Annotations["example.com/pool"] = "x" }, Options{}, `{}`, ""},
		{"an unknown annotation", annotate("shceduler", "mh"), Options{}, "", "metadata.annotations[ironvip.io/shceduler]: is no annotation of ours"},
		{"a health check by its type", annotate("health", "tcp"), Options{}, `{"health":{"fall":3,"fast_interval":"500ms","interval":"2s","rise":2,"timeout":"1s","type":"tcp"}}`, ""},
		{"a health check in full", annotate("health", `{"type": "http", "path": "/healthz", "interval": "10s"}`), Options{},
			`{"health":{"fall":3,"fast_interval":"500ms","interval":"10s","method":"GET","path":"/healthz","rise":2,"status":"200-399","timeout":"1s","type":"http"}}`, ""},
		{"a bad field of a health check", annotate("health", `{"type": "http", "path": "x"}`), Options{}, "", `metadata.annotations[ironvip.io/health]: "x" is not a path`},
		{"an unknown key of a health check", annotate("health", `{"type": "http", "pth": "/"}`), Options{}, "", `metadata.annotations[ironvip.io/health]: pth: unknown key`},
		{"a slow start of a hash", func(s S) { annotate("slow-start", "30s")(s); annotate("scheduler", "mh")(s) }, Options{}, "", "metadata.annotations[ironvip.io/slow-start]: scheduler mh would move clients with each step"},
		{"all that is wrong at once", func(s S) {
			annotate("scheduler", "fast")(s)
			annotate("pol", "x")(s)
			s.Spec.LoadBalancerSourceRanges = []string{"x"}
		}, Options{}, "",
			`metadata.annotations[ironvip.io/pol]: is no annotation of ours; metadata.annotations[ironvip.io/scheduler]: "fast" is not a known value; ` +
				`spec.loadBalancerSourceRanges[0]: "x" is not a range of addresses`},

		{"mirrored", func(s S) {}, adopt, `{"assigned":true,"ports":[{"node_port":30080,"port":80,"protocol":"tcp","target_port":8080}],"vips":["10.96.0.10"]}`, ""},
		{"mirrored, without node ports", func(s S) { ports("80>8080")(s); s.Spec.AllocateLoadBalancerNodePorts = new(false) }, adopt, `{"assigned":true,"vips":["10.96.0.10"]}`, ""},
		{"mirrored of both families", func(s S) { dualStack(s); ports("80>8080")(s) }, Options{Config: Config{AdoptClusterIPs: true, Pool: "cluster"}},
			`{"assigned":true,"families":["ipv6","ipv4"],"pool":"cluster","vips":["10.96.0.10","fd00::10"]}`, ""},
		{"mirrored, of an old server", func(s S) { ports("80>8080")(s); s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil }, adopt, `{"assigned":true,"families":null,"vips":["10.96.0.10"]}`, ""},
		{"mirrored, local", func(s S) { ports("80>8080+30080")(s); local(s) }, adopt,
			`{"assigned":true,"external_traffic":"local","health_check_node_port":31999,"ports":[{"node_port":30080,"port":80,"protocol":"tcp","target_port":8080}],"vips":["10.96.0.10"]}`, ""},
		{"a mirrored cluster IP that is local", func(s S) {
			ports("80>8080")(s)
			s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeClusterIP, "", new(corev1.ServiceInternalTrafficPolicyLocal)
		}, adopt, `{"assigned":true,"external_traffic":"local","internal_traffic":"local","vips":["10.96.0.10"]}`, ""},
		{"a mirrored node port that is local inside", func(s S) {
			ports("80>8080")(s)
			s.Spec.Type, s.Spec.InternalTrafficPolicy = corev1.ServiceTypeNodePort, new(corev1.ServiceInternalTrafficPolicyLocal)
		}, adopt, `{"assigned":true,"internal_traffic":"local","vips":["10.96.0.10"]}`, ""},
		{"what mirroring settles", func(s S) {
			ports("80>8080")(s)
			annotate("vips", "192.0.2.7")(s)
			annotate("pool", "lan")(s)
			annotate("scheduler", "mh")(s)
			s.Spec.LoadBalancerIP, s.Spec.LoadBalancerSourceRanges, s.Spec.ExternalIPs = "192.0.2.8", []string{"10.0.0.0/8"}, []string{"192.0.2.9"}
		}, adopt, `{"assigned":true,"scheduler":"mh","vips":["10.96.0.10"]}`,
			"metadata.annotations[ironvip.io/pool]: has no effect: the addresses are those that Kubernetes assigned; " +
				"metadata.annotations[ironvip.io/vips]: has no effect: the addresses are those that Kubernetes assigned; " +
				"spec.externalIPs: are not served: only cluster IPs and node ports are mirrored"},
		{"mirrored, and not to node ports", func(s S) { ports("80>8080")(s) }, Options{Config: Config{AdoptClusterIPs: true, Backends: BackendsNodePorts}}, `{"assigned":true,"vips":["10.96.0.10"]}`, ""},

		{"local traffic, on a host outside", func(s S) { local(s); s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }, Options{},
			`{}`, ""},
		{"mirrored, local, on a host outside", func(s S) { ports("80>8080")(s); local(s) }, adopt,
			`{"assigned":true,"vips":["10.96.0.10"]}`, ""},

		{"to node ports", func(s S) { local(s); s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }, nodePorts,
			`{"ports":[{"port":80,"protocol":"tcp","target_port":30080}]}`, ""},
		{"to node ports that aren't there", ports("http=80>8080", "https=443>8443+30443"), nodePorts,
			`{"ports":[{"name":"http","port":80,"protocol":"tcp","target_port":80},{"name":"https","port":443,"protocol":"tcp","target_port":30443}]}`,
			"spec.ports[0].nodePort: there is none, and this source reaches Services by their node ports only"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input{service: aService(test.change), outside: strings.HasSuffix(test.name, "on a host outside")}
			got := test.by.build(in)
			text := ""
			if got.use {
				text = said(t, got.service)
			}
			expect.Equal(t, text, test.want)
			if texts(got.problems) != test.problems {
				t.Errorf("problems\n%s, not\n%s", texts(got.problems), test.problems)
			}
			checkBuilt(t, test.by, in, got)
		})
	}
}

func TestManyLabels(t *testing.T) {
	s := aService()
	for i := range 80 {
		s.Labels[fmt.Sprintf("l%02d", i)] = "x"
	}
	got := (&Options{}).build(input{service: s})
	if _, last := got.service.Labels["l63"]; len(got.service.Labels) != 64 || !last || texts(got.problems) != "metadata.labels: only the first 64 by name are shown" {
		t.Errorf("%v %v", got.service.Labels, got.problems)
	}
}

// Problems that a person can solve have a hint.
func TestHints(t *testing.T) {
	for _, test := range []struct{ name, value, hint string }{
		{"shceduler", "mh", `did you mean "ironvip.io/scheduler"?`},
		{"drain_timeout", "5m", `did you mean "ironvip.io/drain-timeout"?`},
		{"external-traffic", "local", "use spec.externalTrafficPolicy"},
		{"source_ranges", "10.0.0.0/8", "use spec.loadBalancerSourceRanges"},
		{"colour", "red", "remove it; known: " + annotationPrefix + strings.Join(sorted(annotations), ", "+annotationPrefix)},
		{"scheduler", "mg", `did you mean "mh"? use rr, wrr, lc, wlc, sh, mh, sed, nq, fo, dh`},
		{"drain-timeout", "soon", `write seconds, or a unit with them: "90", "5m"`},
		{"vips", "2001:db8::1", "request an address of the Service's own family, or set spec.ipFamilyPolicy: RequireDualStack"},
	} {
		got := (&Options{}).build(input{service: aService(annotate(test.name, test.value))})
		if got.use || len(got.problems) != 1 || got.problems[0].Hint != test.hint {
			t.Errorf("%s: %+v", test.name, got.problems)
		}
	}
}

// A server does not decide how long a problem is: names of its objects are shortened.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("n", 5000)
	for what, change := range map[string]func(*corev1.Service, *discoveryv1.EndpointSlice){
		"Service":    func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Name = long },
		"namespace":  func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Namespace = long },
		"annotation": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Annotations[annotationPrefix+long] = "x" },
		"value": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Annotations[annotationPrefix+"scheduler"] = long
		},
		"label": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Labels[long] = "x" },
		"port":  func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports[0].Name = long },
		"class": func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.TrafficDistribution = &long },
		"slice": func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
			slice.Name, slice.Endpoints[0].Addresses = long, []string{"0.0.0.0"}
		},
		"address": func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
			slice.Endpoints[0].Addresses = []string{long}
		},
	} {
		s, slice := aService(), aSlice("web-1 8080", "10.1.0.1")
		change(s, slice)
		got := (&Options{}).build(input{service: s, slices: slicesOf(slice)})
		expect.True(t, len(got.problems) > 0, "%s: no problem", what)
		for _, p := range got.problems {
			expect.AtMost(t, len(p.Error())+len(p.Hint), 1500, "%s: bytes of a problem", what)
		}
	}
}

// The reference page names every field of a Service that takes the place of an annotation.
func TestPageHasAllFields(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/kubernetes.md"))(t))
	for key, field := range specFields {
		expect.True(t, strings.Contains(page, field[strings.LastIndex(field, ".")+1:]), "docs/kubernetes.md does not name %s, which sets %s", field, key)
		expect.True(t, draft.Fields[draft.Name(key)] != nil || key == "ports", "%s is no field of a service", key)
	}
}

// A Service with invalid settings still follows its endpoints.
func TestFormerSettingsRemain(t *testing.T) {
	o := Options{}
	first := o.build(input{service: aService(annotate("scheduler", "mh"))})
	if first.settings == nil || !first.use {
		t.Fatalf("%+v", first)
	}
	bad := aService(annotate("scheduler", "fast"), annotate("pool", "lan"))
	in := input{service: bad, slices: slicesOf(aSlice("web-a 8080", "10.1.0.1")), last: first.settings}
	got := o.build(in)
	if !got.use || got.service.Scheduler != vip.MaglevHash || got.service.Pool != "" || backendsOf(got.service) != "80/tcp>8080: 10.1.0.1" || got.settings != first.settings {
		t.Errorf("%+v", got)
	}
	if texts(got.problems) != `metadata.annotations[ironvip.io/scheduler]: "fast" is not a known value` || !strings.HasSuffix(got.problems[0].Hint, "; the service keeps its former settings until then") {
		t.Errorf("%+v", got.problems)
	}
	checkBuilt(t, o, in, got)

	// This also applies to settings that leave no endpoint.
	in = input{service: aService(ports("80"), annotate("forward", "dr")), slices: in.slices, last: first.settings}
	got = o.build(in)
	if backendsOf(got.service) != "80/tcp>8080: 10.1.0.1" || got.service.Forward != vip.ForwardNAT || len(got.problems) != 1 || got.settings != first.settings {
		t.Errorf("%+v", got)
	}
	// Without earlier settings, the service exists without backends.
	in.last = nil
	if got = o.build(in); !got.use || backendsOf(got.service) != "80/tcp>80" || got.settings != in.service ||
		texts(got.problems) != "endpointslices[web-a].endpoints[0]: is left out: forward dr does not change the port: 8080 is not that of ports[0], 80/tcp" {
		t.Errorf("%+v", got)
	}
	// An earlier Service with the same name is a different one.
	in = input{service: aService(annotate("scheduler", "fast"), func(s *corev1.Service) { s.UID = types.UID("2") }), last: first.settings}
	if got = o.build(in); got.use || got.settings != nil || len(got.problems) != 1 {
		t.Errorf("%+v", got)
	}
	// A Service that is no longer ours keeps no settings.
	in = input{service: aService(func(s *corev1.Service) { s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil }), last: first.settings}
	if got = o.build(in); !reflect.DeepEqual(got, built{}) {
		t.Errorf("%+v", got)
	}
}

// Every build ends. Its result satisfies the rules and does not depend on the order of the slices.
func FuzzBuild(f *testing.F) {
	f.Add(uint8(0), "scheduler", "mh", "80>8080+30080", "web-a 8080", "10.1.0.1 @n1 zone=a", "10.1.0.1 !ready serving terminating", "192.0.2.7")
	f.Add(uint8(1), "forward", "dr", "http=80>web dns=53/udp", "b http=80,dns=5353/udp", "10.1.0.1 zones=a,b nodes=n1", "10.1.0.1 @n1", "10.0.0.0/8")
	f.Add(uint8(2), "vips", "192.0.2.7,2001:db8::1", "a=1 b=2 c=3/sctp", "c a=1,b=1,c=1/sctp", "10.1.0.9,10.1.0.8", "x !ready", "2001:db8::/32")
	f.Add(uint8(15), "drain-timeout", "1h", "a=53/tcp+30053 b=53/udp+30053", "d ipv6,a=53,b=53/udp", "2001:db8::1 zone=", "::ffff:10.0.0.1", "0.0.0.0/0")
	f.Add(uint8(16), "health", "1h", "0 70000", "d fqdn,a=53", "example.com", "", "")
	f.Fuzz(func(t *testing.T, how uint8, key, value, portWords, head, one, other, address string) {
		s := aService(annotate(key, value), ports(strings.Fields(portWords)...))
		o := Options{Config: Config{AdoptClusterIPs: how&1 != 0, Pool: strings.TrimSpace(value)}}
		if how&2 != 0 {
			o.Backends = BackendsNodePorts
		}
		if how&4 != 0 {
			local(s)
		}
		if how&8 != 0 {
			dualStack(s)
		}
		if how&16 != 0 {
			s.Spec.LoadBalancerIP = address
		} else {
			s.Spec.LoadBalancerSourceRanges = []string{address, "10.0.0.0/8"}
		}
		head, one, other = sayable(head), sayable(one), sayable(other)
		in := input{service: s, slices: slicesOf(aSlice("b "+head, one, other), aSlice("a "+head, other), aSlice("c 8080,a=1,b=2,http=80", one))}
		in.nodes = nodeSet{"n1": {ipv4: netip.MustParseAddr("10.0.0.1"), ready: how&32 != 0, zone: strings.TrimSpace(value)}, key: {ipv6: netip.MustParseAddr("2001:db8::a")}}
		checkBuilt(t, o, in, o.build(in))
		in.last = aService()
		checkBuilt(t, o, in, o.build(in))
	})
}

// sayable removes the words that anEndpoint does not support.
func sayable(text string) string {
	var out []string
	for i, word := range strings.Fields(text) {
		key, _, pair := strings.Cut(word, "=")
		if i == 0 || word[0] == '@' || pair && slices.Contains([]string{"zone", "zones", "nodes"}, key) ||
			slices.Contains([]string{"ready", "serving", "terminating"}, strings.TrimPrefix(word, "!")) {
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}

// stateOf returns the state of a backend, or that it is unhealthy.
func stateOf(b vip.Backend) string {
	if b.Health == vip.Unhealthy {
		return b.Health.String()
	}
	return b.State.String()
}
