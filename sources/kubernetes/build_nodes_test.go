package kubernetes

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ironvip/ironvip/test/expect"
)

// aNode returns a Node: "ready zone=a internal=10.0.0.1 external=192.0.2.1 hostname=n1 cordoned
// excluded=false deleting".
func aNode(text string) *corev1.Node {
	n := &corev1.Node{}
	n.Labels = map[string]string{}
	for _, word := range strings.Fields(text) {
		key, value, _ := strings.Cut(word, "=")
		kind := map[string]corev1.NodeAddressType{"internal": corev1.NodeInternalIP, "external": corev1.NodeExternalIP, "hostname": corev1.NodeHostName, "dns": corev1.NodeInternalDNS}
		switch {
		case kind[key] != "":
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind[key], Address: value})
		case key == "zone":
			n.Labels[corev1.LabelTopologyZone] = value
		case key == "excluded":
			n.Labels[corev1.LabelNodeExcludeBalancers] = value
		case key == "cordoned":
			n.Spec.Unschedulable = true
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
		case key == "deleting":
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taintToBeDeleted, Effect: corev1.TaintEffectNoSchedule})
		default:
			status := map[string]corev1.ConditionStatus{"ready": corev1.ConditionTrue, "!ready": corev1.ConditionFalse, "unknown": corev1.ConditionUnknown}[key]
			if status == "" {
				panic(key)
			}
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: status}}
		}
	}
	return n
}

func TestNodeWeightOfNodePorts(t *testing.T) {
	light := aNode("ready internal=10.0.0.1")
	light.Annotations = map[string]string{annotationPrefix + "weight": "5"}
	made := nodeOf(light)
	made.readWeight(light, Type)
	in := input{service: aService(), nodes: nodeSet{"n1": made, "n2": nodeOf(aNode("ready internal=10.0.0.2"))}}
	checkBackends(t, Options{Config: Config{Backends: BackendsNodePorts}}, in, "80/tcp>30080: 10.0.0.1 @n1 w=5; 10.0.0.2 @n2", "")
}

func TestNodeOf(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	for _, test := range []struct {
		text string
		want node
	}{
		{"ready internal=10.0.0.1 zone=a", node{ipv4: four, zone: "a", ready: true}},
		{"ready external=192.0.2.1 internal=10.0.0.1", node{ipv4: four, ready: true}},
		{"ready external=10.0.0.1", node{ipv4: four, ready: true}},
		{"ready internal=10.0.0.1 internal=10.0.0.2 internal=fd00::1 external=2001:db8::1", node{ipv4: four, ipv6: six, ready: true}},
		{"ready internal=10.0.0.1 external=192.0.2.1 external=fd00::1", node{ipv4: four, ipv6: six, ready: true}},
		{"ready hostname=10.0.0.9 dns=10.0.0.8 internal=n1 internal=10.0.0.1", node{ipv4: four, ready: true}},
		{"ready", node{ready: true}},
		{"!ready internal=10.0.0.1", node{ipv4: four}},
		{"unknown internal=10.0.0.1", node{ipv4: four}},
		{"internal=10.0.0.1", node{ipv4: four}},
		{"ready cordoned internal=10.0.0.1", node{ipv4: four, ready: true}},
		{"ready deleting internal=10.0.0.1", node{ipv4: four}},
		{"ready internal=10.0.0.1 excluded=", node{}},
		{"ready internal=10.0.0.1 excluded=false", node{}},
	} {
		expect.Equal(t, nodeOf(aNode(test.text)), test.want, "%s", test.text)
	}
}

func TestNodePortsOfServices(t *testing.T) {
	nodes := func(texts ...string) nodeSet {
		out := nodeSet{}
		for _, text := range texts {
			name, rest, _ := strings.Cut(text, " ")
			out[name] = nodeOf(aNode(rest))
		}
		return out
	}
	three := nodes("n1 ready internal=10.0.0.1 zone=a", "n2 ready internal=10.0.0.2 zone=b", "n3 ready internal=10.0.0.3")
	two := func(s *corev1.Service) { ports("http=80>web+30080", "dns=53/udp>dns+30053")(s) }
	localTwo := func(s *corev1.Service) { two(s); local(s) }
	for _, test := range []struct {
		name     string
		change   func(*corev1.Service)
		nodes    nodeSet
		slices   []*discoveryv1.EndpointSlice
		want     string
		problems string
	}{
		{"every node", nil, three, nil, "80/tcp>30080: 10.0.0.1 @n1 zone=a; 10.0.0.2 @n2 zone=b; 10.0.0.3 @n3", ""},
		{"whatever the slices say", nil, three, slicesOf(aSlice("a 9090", "10.1.0.1 @n1 zone=z zones=b")), "80/tcp>30080: 10.0.0.1 @n1 zone=a; 10.0.0.2 @n2 zone=b; 10.0.0.3 @n3", ""},
		{"each port", two, nodes("n1 ready internal=10.0.0.1"), nil, "http>30080 dns>30053: 10.0.0.1 @n1", ""},
		{"a port without one", ports("http=80", "dns=53/udp+30053"), nodes("n1 ready internal=10.0.0.1"), nil, "http>80 dns>30053: 10.0.0.1 [dns] @n1",
			"spec.ports[0].nodePort: there is none, and this source reaches Services by their node ports only"},
		{"none at all", ports("80"), three, nil, "80/tcp>80", "spec.ports[0].nodePort: there is none, and this source reaches Services by their node ports only"},
		{"no nodes", nil, nil, nil, "80/tcp>30080", ""},
		{"not ready", nil, nodes("n1 !ready internal=10.0.0.1", "n2 ready internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.1 unhealthy @n1; 10.0.0.2 @n2", ""},
		{"none is ready", nil, nodes("n1 unknown internal=10.0.0.1", "n2 unknown internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.1 @n1; 10.0.0.2 @n2", ""},
		{"none is ready but one that is left out", nil, nodes("n1 unknown internal=10.0.0.1", "n2 ready excluded= internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.1 @n1", ""},
		{"none is ready but one without an address", nil, nodes("n1 unknown internal=10.0.0.1", "n2 ready"), nil, "80/tcp>30080: 10.0.0.1 @n1", ""},
		{"cordoned", nil, nodes("n1 ready cordoned internal=10.0.0.1"), nil, "80/tcp>30080: 10.0.0.1 @n1", ""},
		{"left out", nil, nodes("n1 ready excluded= internal=10.0.0.1", "n2 ready internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.2 @n2", ""},
		{"about to go", nil, nodes("n1 ready deleting internal=10.0.0.1", "n2 ready internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.1 unhealthy @n1; 10.0.0.2 @n2", ""},
		{"without an address", nil, nodes("n1 ready", "n2 ready internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.2 @n2", ""},
		{"without an address of the family", nil, nodes("n1 ready internal=fd00::1"), nil, "80/tcp>30080", "spec.ipFamilies[0]: no node of the cluster has an address of ipv4 that traffic may be sent to"},
		{"dual stack", dualStack, nodes("n1 ready internal=10.0.0.1 internal=fd00::1", "n2 ready internal=10.0.0.2"), nil,
			"80/tcp>30080: 10.0.0.1 @n1; 10.0.0.2 @n2; fd00::1 @n1", ""},
		{"dual stack, in a cluster that isn't", dualStack, three, nil, "80/tcp>30080: 10.0.0.1 @n1 zone=a; 10.0.0.2 @n2 zone=b; 10.0.0.3 @n3",
			"spec.ipFamilies[0]: no node of the cluster has an address of ipv6 that traffic may be sent to"},
		{"families not stated", func(s *corev1.Service) { s.Spec.IPFamilies = nil }, nodes("n1 ready internal=10.0.0.1 internal=fd00::1"), nil, "80/tcp>30080: 10.0.0.1 @n1; fd00::1 @n1", ""},
		{"two with one address", nil, nodes("n1 !ready internal=10.0.0.1", "n2 ready internal=10.0.0.1"), nil, "80/tcp>30080: 10.0.0.1 @n2", ""},
		{"an address that is no server", nil, nodes("n1 ready internal=0.0.0.0", "n2 ready internal=10.0.0.2"), nil, "80/tcp>30080: 10.0.0.2 @n2",
			"nodes[n1]: is left out: 0.0.0.0 is not a unicast address"},

		{"local: where endpoints are", local, three, slicesOf(aSlice("a 8080", "10.1.0.1 @n2", "10.1.0.2 @n2", "10.1.0.3")), "80/tcp>30080: 10.0.0.2 @n2 zone=b", ""},
		{"local, and nobody there", local, three, nil, "80/tcp>30080", ""},
		{"local, on nodes that aren't known", local, three, slicesOf(aSlice("a 8080", "10.1.0.1 @n9")), "80/tcp>30080", ""},
		{"local, by the best endpoint", local, three, slicesOf(aSlice("a 8080", "10.1.0.1 @n1 !ready", "10.1.0.2 @n2 !ready", "10.1.0.3 @n2 !ready serving terminating",
			"10.1.0.4 @n3 !ready serving terminating", "10.1.0.5 @n3", "10.1.0.6 @n3 !ready")),
			"80/tcp>30080: 10.0.0.1 unhealthy @n1 zone=a; 10.0.0.2 terminating @n2 zone=b; 10.0.0.3 @n3", ""},
		{"local, on a node that isn't ready", local, nodes("n1 !ready internal=10.0.0.1", "n2 ready internal=10.0.0.2"), slicesOf(aSlice("a 8080", "10.1.0.1 @n1", "10.1.0.2 @n2")),
			"80/tcp>30080: 10.0.0.1 unhealthy @n1; 10.0.0.2 @n2", ""},
		{"local, some ports here, some there", localTwo, three, slicesOf(aSlice("a http=8080,dns=53/udp", "10.1.0.1 @n1"), aSlice("b dns=53/udp", "10.1.0.2 @n2"), aSlice("c http=8080", "10.1.0.3 @n3"),
			aSlice("d dns=53/udp", "10.1.0.4 @n3")), "http>30080 dns>30053: 10.0.0.1 @n1 zone=a; 10.0.0.2 [dns] @n2 zone=b; 10.0.0.3 @n3", ""},
		{"local, by family", func(s *corev1.Service) { dualStack(s); local(s) }, nodes("n1 ready internal=10.0.0.1 internal=fd00::1", "n2 ready internal=10.0.0.2 internal=fd00::2"),
			slicesOf(aSlice("a 8080", "10.1.0.1 @n1"), aSlice("b ipv6,8080", "2001:db8::1 @n2")), "80/tcp>30080: 10.0.0.1 @n1; fd00::2 @n2", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := input{service: aService(), slices: test.slices, nodes: test.nodes}
			if test.change != nil {
				test.change(in.service)
			}
			checkBackends(t, Options{Config: Config{Backends: BackendsNodePorts}}, in, test.want, test.problems)
		})
	}
}

// An idle backend has the reason, in the words of explain.
func TestReasonsOfIdleBackends(t *testing.T) {
	both := slicesOf(aSlice("web 8080", "10.1.0.1 !ready !serving !terminating @n1", "10.1.0.2 !ready !serving terminating @n2", "10.1.0.3 @n3"))
	lost, found := node{ipv4: netip.MustParseAddr("10.0.0.1")}, node{ipv4: netip.MustParseAddr("10.0.0.2"), ready: true}
	byNode := Options{Config: Config{Backends: BackendsNodePorts}}
	for _, test := range []struct {
		name string
		by   Options
		in   input
		want []string
	}{
		{"endpoints", Options{}, input{service: aService(), slices: both}, []string{"Kubernetes endpoint not ready", "Kubernetes endpoint terminating", ""}},
		{"a node", byNode, input{service: aService(ports("80+30080")), slices: both, nodes: nodeSet{"n1": lost, "n2": found}}, []string{"Kubernetes node n1 not ready", ""}},
		{"a node without ready endpoints", byNode, input{service: aService(ports("80+30080"), local), slices: both, nodes: nodeSet{"n1": lost, "n2": found}},
			[]string{"Kubernetes node n1 not ready", "no ready endpoint on Kubernetes node n2"}},
	} {
		var got []string
		for _, b := range test.by.build(test.in).service.Backends {
			got = append(got, b.Reason.Text(time.Time{}))
		}
		expect.SameList(t, got, test.want, "%s", test.name)
	}
}
