package compile

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// kubeProxyCase is one case of kube-proxy's unit tests for the endpoints of a Service on a node.
type kubeProxyCase struct {
	name               string
	external, internal vip.TrafficPolicy // zero is Cluster
	node, zone         string            // this node's; its name is n1 unless stated, "-" for none
	endpoints          string            // see endpoint
	// The endpoints that kube-proxy uses under each policy, by number: "none" is a policy in use
	// without an endpoint, "-" one that is not in use.
	cluster, local string

	// If the result of ironvip differs intentionally: the reason, and the clients.
	differs         string
	outside, inside string // the clients with a different result; "" if there is no difference
}

// endpoint parses "1 ready here zones=za,zb nodes=n1": the number, the condition (ready, unready,
// terminating, or down for one that no longer serves while it terminates), whether it is on this
// node, and the hints. The Kubernetes adapter omits an endpoint that is not ready and not
// terminating. Drain has the same effect for a listed one.
func endpoint(t *testing.T, text string) vip.Backend {
	words := strings.Fields(text)
	b := vip.Backend{Address: addr("10.1.0." + words[0]), Weight: 1, Node: "n2"}
	conditions := map[string]vip.State{"ready": vip.Ready, "terminating": vip.Terminating, "unready": vip.Drain, "down": vip.Drain}
	state, known := conditions[words[1]]
	if !known {
		t.Fatalf("%q is no condition", words[1])
	}
	b.State = state
	for _, word := range words[2:] {
		switch key, list, _ := strings.Cut(word, "="); key {
		case "here":
			b.Node = "n1"
		case "zones":
			b.ForZones = vip.NamesOf(strings.Split(list, ",")...)
		case "nodes":
			b.ForNodes = vip.NamesOf(strings.Split(list, ",")...)
		default:
			t.Fatalf("%q says nothing of an endpoint", word)
		}
	}
	return b
}

// The reasons for differences, each for several cases.
const (
	everyVIPIsExternal = "a VIP is there for clients outside, too: they have a policy of their own, and kube-proxy's Service had none"
	internalPolicyOnly = "kube-proxy sends clients inside the cluster that come to an external address by all endpoints, though both policies are Local; " +
		"here the internal policy is kept at every address"
	refusesInsteadOfDropping = "kube-proxy drops packets where endpoints are on other nodes only; here no endpoint means that clients are refused at once"
)

// kubeProxyCases are the cases of kube-proxy's own tests of endpoints and topology in this
// notation. Cases for removed feature gates, and for the annotation that once enabled hints, have
// no row: hints always count. Cases with hints for nodes follow the rule of kube-proxy 1.33 and
// later.
var kubeProxyCases = []kubeProxyCase{
	// Hints for zones.
	{name: "every endpoint is hinted, and some for this zone", zone: "za",
		endpoints: "1 ready zones=za; 2 ready zones=zb; 3 ready zones=zc; 4 ready zones=za", cluster: "1 4", local: "-"},
	{name: "external Local knows no hints", external: vip.Local, zone: "za",
		endpoints: "1 ready here zones=za; 2 ready here zones=zb; 3 ready zones=zc; 4 ready zones=za", cluster: "1 4", local: "1 2"},
	{name: "internal Local knows no hints", internal: vip.Local, zone: "za",
		endpoints: "1 ready here zones=za; 2 ready here zones=zb; 3 ready zones=zc; 4 ready zones=za", cluster: "1 4", local: "1 2"},
	{name: "a node without labels", endpoints: "1 ready zones=za", cluster: "1", local: "-"},
	{name: "a node whose zone is empty", zone: "", endpoints: "1 ready zones=za; 2 ready zones=zb", cluster: "1 2", local: "-"},
	{name: "a node in a zone that nobody is hinted for", zone: "zb", endpoints: "1 ready zones=za", cluster: "1", local: "-"},
	{name: "an endpoint of the zone is not ready", zone: "za",
		endpoints: "1 ready zones=za; 2 ready zones=zb; 3 ready zones=zc; 4 unready zones=za", cluster: "1", local: "-"},
	{name: "no endpoint of the zone is ready", zone: "za",
		endpoints: "1 unready zones=za; 2 ready zones=zb; 3 ready zones=zc; 4 unready zones=za", cluster: "2 3", local: "-"},
	{name: "one ready endpoint lacks a hint", zone: "za",
		endpoints: "1 ready zones=za; 2 ready zones=zb; 3 ready; 4 ready zones=za", cluster: "1 2 3 4", local: "-"},
	{name: "endpoints hinted for several zones", zone: "zc",
		endpoints: "1 ready zones=za,zb,zc; 2 ready zones=zb,zc; 3 ready zones=zb,zd; 4 ready zones=zc", cluster: "1 2 4", local: "-"},
	{name: "hints and localness choose differently", external: vip.Local, zone: "za",
		endpoints: "1 ready here zones=za; 2 ready here zones=zb; 3 ready zones=za; 4 ready zones=zb", cluster: "1 3", local: "1 2"},

	// Hints for nodes, which have priority over those for zones.
	{name: "every endpoint is hinted for a node, and one for this", zone: "za",
		endpoints: "1 ready nodes=n1 zones=za; 2 ready nodes=n2 zones=za; 3 ready nodes=n3 zones=zb", cluster: "1", local: "-"},
	{name: "an endpoint is hinted for several nodes", zone: "za",
		endpoints: "1 ready nodes=n2; 2 ready nodes=n1,n2; 3 ready nodes=n3,n10", cluster: "2", local: "-"},
	{name: "none is hinted for this node: the zone counts", zone: "za",
		endpoints: "1 ready nodes=n2 zones=za; 2 ready nodes=n3 zones=zb", cluster: "1", local: "-"},
	{name: "none is hinted for this node, nor for its zone", zone: "zc",
		endpoints: "1 ready nodes=n2 zones=za; 2 ready nodes=n3 zones=zb", cluster: "1 2", local: "-"},
	{name: "one lacks a hint for nodes: the zone counts", zone: "za",
		endpoints: "1 ready nodes=n1 zones=zb; 2 ready zones=za; 3 ready nodes=n3 zones=za", cluster: "2 3", local: "-"},
	{name: "one lacks a hint for nodes, one lacks one for zones", zone: "za",
		endpoints: "1 ready nodes=n1 zones=za; 2 ready zones=za; 3 ready nodes=n3", cluster: "1 2 3", local: "-"},
	{name: "hints for nodes need no zone", endpoints: "1 ready nodes=n1; 2 ready nodes=n2", cluster: "1", local: "-"},
	{name: "the endpoint hinted for this node is not ready", zone: "za",
		endpoints: "1 unready nodes=n1 zones=za; 2 ready nodes=n2 zones=za; 3 ready nodes=n3 zones=zb", cluster: "2", local: "-"},
	{name: "one that is not ready needs no hint", zone: "za",
		endpoints: "1 ready nodes=n1; 2 ready nodes=n2; 3 unready; 4 terminating", cluster: "1", local: "-"},
	{name: "a node without a name", node: "-", zone: "za",
		endpoints: "1 ready nodes=n1 zones=zb; 2 ready nodes=n2 zones=za", cluster: "2", local: "-"},
	{name: "none is ready: hints are no matter", zone: "za",
		endpoints: "1 terminating nodes=n1 zones=za; 2 terminating nodes=n2 zones=zb", cluster: "1 2", local: "-"},
	{name: "external Local knows no hints for nodes", external: vip.Local,
		endpoints: "1 ready here nodes=n2; 2 ready nodes=n1", cluster: "2", local: "1"},

	// Internal Local on a Service without clients outside.
	{name: "internal Local without endpoints", internal: vip.Local, endpoints: "", cluster: "-", local: "none",
		differs: everyVIPIsExternal, outside: "none"},
	{name: "internal Local, all endpoints elsewhere", internal: vip.Local, endpoints: "1 ready; 2 ready", cluster: "-", local: "none",
		differs: everyVIPIsExternal + "; " + refusesInsteadOfDropping, outside: "1 2"},
	{name: "internal Local, all endpoints here", internal: vip.Local, endpoints: "1 ready here; 2 ready here", cluster: "-", local: "1 2",
		differs: everyVIPIsExternal, outside: "1 2"},
	{name: "internal Local, one endpoint here", internal: vip.Local, endpoints: "1 ready here; 2 ready", cluster: "-", local: "1",
		differs: everyVIPIsExternal, outside: "1 2"},
	{name: "internal Local, the second endpoint here", internal: vip.Local, endpoints: "1 ready; 2 ready here", cluster: "-", local: "2",
		differs: everyVIPIsExternal, outside: "1 2"},

	// Conditions under Cluster.
	{name: "no endpoint is ready", endpoints: "1 unready; 2 unready", cluster: "none", local: "-"},
	{name: "one endpoint is ready", endpoints: "1 unready; 2 ready", cluster: "2", local: "-"},
	{name: "all endpoints are terminating", endpoints: "1 terminating here; 2 terminating", cluster: "1 2", local: "-"},
	{name: "all are terminating, one serves no more", endpoints: "1 terminating; 2 down", cluster: "1", local: "-"},

	// Both policies.
	{name: "internal Local, external Cluster", internal: vip.Local, endpoints: "1 ready here; 2 ready", cluster: "1 2", local: "1"},
	{name: "internal Cluster, external Local", external: vip.Local, endpoints: "1 ready here; 2 ready", cluster: "1 2", local: "1"},
	{name: "both Local, one endpoint here", internal: vip.Local, external: vip.Local, endpoints: "1 ready here; 2 ready", cluster: "1 2", local: "1",
		differs: internalPolicyOnly},
	{name: "both Local, all endpoints elsewhere", internal: vip.Local, external: vip.Local, endpoints: "1 ready; 2 ready", cluster: "1 2", local: "none",
		differs: internalPolicyOnly + "; " + refusesInsteadOfDropping},
	{name: "both Local, all elsewhere and terminating", internal: vip.Local, external: vip.Local, endpoints: "1 terminating; 2 terminating",
		cluster: "1 2", local: "none", differs: internalPolicyOnly + "; " + refusesInsteadOfDropping},
	{name: "internal Cluster, external Local, terminating ones", external: vip.Local,
		endpoints: "1 ready; 2 down here; 3 terminating here; 4 terminating", cluster: "1", local: "3"},
	{name: "external Local on a Service without clients outside", external: vip.Local, endpoints: "1 ready; 2 ready here", cluster: "1 2", local: "-",
		differs: everyVIPIsExternal, outside: "2"},
}

// taking formats the numbers of the backends that take new connections.
func taking(f *vip.Frontend) string {
	var out []string
	for _, e := range f.Backends {
		if e.Weight > 0 {
			out = append(out, fmt.Sprint(e.Addr.Addr().As4()[3]))
		}
	}
	return cmp.Or(strings.Join(out, " "), "none")
}

// The endpoints of a Kubernetes Service, compared with kube-proxy case by case.
func TestAsKubeProxy(t *testing.T) {
	for _, tc := range kubeProxyCases {
		t.Run(tc.name, func(t *testing.T) {
			external, internal := cmp.Or(tc.external, vip.Cluster), cmp.Or(tc.internal, vip.Cluster)
			byPolicy := map[vip.TrafficPolicy]string{vip.Cluster: tc.cluster, vip.Local: tc.local}
			outside, inside := byPolicy[external], byPolicy[internal]
			if tc.differs == "" && (tc.outside != "" || tc.inside != "" || outside == "-" || inside == "-") {
				t.Fatal("another outcome needs a reason")
			}
			outside, inside = cmp.Or(tc.outside, outside), cmp.Or(tc.inside, inside)

			s := service(func(s *vip.Service) { s.ExternalTraffic, s.InternalTraffic, s.Backends = tc.external, tc.internal, nil })
			for text := range strings.SplitSeq(tc.endpoints, ";") {
				if strings.TrimSpace(text) != "" {
					s.Backends = append(s.Backends, endpoint(t, text))
				}
			}
			in := input(s, "192.0.2.10")
			in.Node = Node{Name: cmp.Or(tc.node, "n1"), Zone: tc.zone}
			if in.Node.Name == "-" {
				in.Node.Name = ""
			}
			got, problems := Service(in)
			if len(problems) > 0 || len(got) == 0 {
				t.Fatal(got, problems)
			}
			expect.Equal(t, taking(&got[0]), outside, "clients outside go to")
			expect.Equal(t, taking(&got[len(got)-1]), inside, "clients inside go to")
		})
	}
}
