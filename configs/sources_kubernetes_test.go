//go:build !nokubernetes

package configs

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/sources/kubernetes"
	"github.com/ironvip/ironvip/test/problemtest"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestKubernetesSources(t *testing.T) {
	c, problems := Parse("/etc/ironvip/ironvip.toml", []byte(`
[[pool]]
name = "public"
cidrs = ["192.0.2.0/24"]
[[source]]
type = "kubernetes"
kubeconfig = "kubeconfig"
[[source]]
type = "kubernetes"
name = "east"
kubeconfig = "$CREDENTIALS_DIRECTORY/east"
context = "admin@east"
load_balancer_class = "example.com/edge"
classless = true
namespaces = ["web", "default"]
namespace_prefix = "east-"
selector = "app in (a, b),!internal"
backends = "node-ports"
pool = "public"
ip_mode = "vip"
lease_namespace = "kube-system"
lease_name = "ironvip.edge"
shrink_guard = "0s"
[[source]]
type = "kubernetes"
name = "west"
kubeconfig = "west"
gateway_api = true
[[source]]
type = "kubernetes"
name = "mirror"
in_cluster = true
adopt_cluster_ips = true
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	guard := spec.Duration(30 * time.Second)
	want := []Source{
		{"kubernetes", "kubernetes", &kubernetes.Config{ShrinkGuard: guard, Kubeconfig: "/etc/ironvip/kubeconfig",
			LoadBalancerClass: "ironvip.io/vip", Backends: "endpoints", IPMode: "proxy", LeaseNamespace: "ironvip", LeaseName: "ironvip"}},
		{"kubernetes", "east", &kubernetes.Config{Pool: "public", Kubeconfig: "$CREDENTIALS_DIRECTORY/east", Context: "admin@east",
			LoadBalancerClass: "example.com/edge", Classless: true, Namespaces: []string{"web", "default"}, NamespacePrefix: "east-", Selector: "app in (a, b),!internal",
			Backends: "node-ports", IPMode: "vip", LeaseNamespace: "kube-system", LeaseName: "ironvip.edge"}},
		{"kubernetes", "west", &kubernetes.Config{ShrinkGuard: guard, Kubeconfig: "/etc/ironvip/west", GatewayAPI: true,
			LoadBalancerClass: "ironvip.io/vip", Backends: "endpoints", IPMode: "proxy", LeaseNamespace: "ironvip", LeaseName: "ironvip"}},
		{"kubernetes", "mirror", &kubernetes.Config{ShrinkGuard: guard, InCluster: true, AdoptClusterIPs: true, Backends: "endpoints"}},
	}
	if diff := cmp.Diff(want, c.Sources); diff != "" {
		t.Error(diff)
	}
	other, _ := Parse("/etc/ironvip/ironvip.toml", []byte("[[source]]\ntype = 'kubernetes'\nkubeconfig = 'kubeconfig'\nclassless = true"))
	if live, restart := Diff(c, other); strings.Join(live, " ") != "pool" || strings.Join(restart, " ") != "source" {
		t.Errorf("changed sources: live %v, restart %v", live, restart)
	}
}

func TestKubernetesSourcesRefuse(t *testing.T) {
	const begin = "[[source]]\ntype = 'kubernetes'\n"
	for _, test := range []struct {
		what, doc string
		want      []string
	}{
		{"nobody to ask", begin, []string{`c.toml:1: source[0].kubeconfig: a kubernetes source needs a kubeconfig | add kubeconfig = "/etc/ironvip/kubeconfig", or in_cluster`}},
		{"two to ask", begin + "kubeconfig = '/x'\nin_cluster = true\ncontext = 'a'", []string{
			`c.toml:3: source[0].kubeconfig: in_cluster is set at c.toml:4: the agent's pod names the server | keep one`,
			`c.toml:5: source[0].context: is a context of a kubeconfig, and in_cluster uses none | remove it`}},
		{"files", begin + "kubeconfig = '$HOME/.kube/config'\ncontext = 'a b'", []string{
			`c.toml:3: source[0].kubeconfig: "$HOME/.kube/config": no variable but CREDENTIALS_DIRECTORY is known here | use a path, or "$CREDENTIALS_DIRECTORY/NAME"`,
			`c.toml:4: source[0].context: wants up to 253 printable characters without spaces`}},
		{"which services", begin + "kubeconfig = '/x'\nload_balancer_class = 'a/b/c'\nnamespaces = ['web', 'Web', 'web']\nselector = 'app in a'\npool = 'public'\nshrink_guard = '25h'", []string{
			`c.toml:4: source[0].load_balancer_class: "a/b/c" is not a load balancer class: a name, or a DNS name, / and a name | use "ironvip.io/vip"`,
			`c.toml:5: source[0].namespaces[1]: "Web" is not a DNS label`, `c.toml:5: source[0].namespaces[2]: "web" is defined twice | remove it`,
			`c.toml:6: source[0].selector: "app in a" is not a label selector: `,
			`c.toml:7: source[0].pool: there is no pool "public"`, `c.toml:8: source[0].shrink_guard: 25h is out of bounds`}},
		{"words", begin + "kubeconfig = '/x'\nbackends = 'nodeports'\nip_mode = 'Proxy'\nlease_namespace = 'kube_system'\nlease_name = 'Iron VIP'", []string{
			`c.toml:4: source[0].backends: "nodeports" is not a known value | did you mean "node-ports"? use endpoints, node-ports`,
			`c.toml:5: source[0].ip_mode: "Proxy" is not a known value | did you mean "proxy"?`,
			`c.toml:6: source[0].lease_namespace: "kube_system" is not a DNS label`, `c.toml:7: source[0].lease_name: "Iron VIP" is not a name for a Lease`}},
		{"a prefix", begin + "kubeconfig = '/x'\nnamespace_prefix = 'East/'", []string{`c.toml:4: source[0].namespace_prefix: "East/" begins no namespace`}},
		{"types", begin + "kubeconfig = 1\nin_cluster = 'yes'\nnamespaces = 'web'", []string{
			`c.toml:3: source[0].kubeconfig: wants a string, has the number 1`, `c.toml:4: source[0].in_cluster: wants true or false`,
			`c.toml:5: source[0].namespaces: wants a list, has the string "web"`}},
		{"unknown", begin + "kubeconfig = '/x'\nloadbalancer_class = 'x'", []string{`c.toml:4: source[0].loadbalancer_class: unknown key | did you mean "load_balancer_class"?`}},
		{"what adoption has no use for", begin + "kubeconfig = '/x'\nadopt_cluster_ips = true\nload_balancer_class = 'x'\nclassless = true\nbackends = 'node-ports'\nip_mode = 'vip'\nlease_namespace = 'a'\nlease_name = 'b'", []string{
			`c.toml:5: source[0].load_balancer_class: is for Services of type LoadBalancer, and adopt_cluster_ips is set at c.toml:4 | remove one`,
			`c.toml:6: source[0].classless: is for Services of type LoadBalancer`, `c.toml:7: source[0].backends: Services with a ClusterIP need not have node ports`,
			`c.toml:8: source[0].ip_mode: is for what is written into the cluster`, `c.toml:9: source[0].lease_namespace: is for what`, `c.toml:10: source[0].lease_name: is for what`}},
		{"one lease for two sources", begin + "kubeconfig = '/x'\n" + begin + "name = 'other'\nkubeconfig = '/x'\nload_balancer_class = 'b'\n" + begin + "name = 'third'\nkubeconfig = '/x'\ncontext = 'another'", []string{
			`c.toml:4: source[1].lease_name: "ironvip/ironvip" is the Lease of the source at c.toml:1, too | give each source`}},
		{"Gateways", begin + "kubeconfig = '/x'\ngateway_api = true\nselector = 'a=b'\nbackends = 'node-ports'\n" + begin + "name = 'b'\nkubeconfig = '/x'\nlease_name = 'b'\ngateway_api = true\n" +
			begin + "name = 'c'\nkubeconfig = '/y'\ngateway_api = true\nadopt_cluster_ips = true", []string{
			`c.toml:4: source[0].gateway_api: backends of Gateways may be any Services, and selector is set at c.toml:5 | remove one of the two`,
			`c.toml:4: source[0].gateway_api: backends of Gateways need not have node ports, and backends is set at c.toml:6 | remove one of the two`,
			`c.toml:12: source[1].gateway_api: the source at c.toml:1 serves the Gateways of this cluster | set it for one source of a cluster`,
			`c.toml:17: source[2].gateway_api: Gateways have VIPs that ironvip assigns, and adopt_cluster_ips is set at c.toml:18 | remove one of the two`}},
		{"keys of others", begin + "kubeconfig = '/x'\ntag = 'x'\npath = '/y'\n[[source]]\ntype = 'static'\npath = '/x'\nclassless = true\npool = 'x'", []string{
			`c.toml:4: source[0].tag: is for sources of type "consul", and this one is of type "kubernetes"`, `c.toml:5: source[0].path: is for sources of type "static"`,
			`c.toml:9: source[1].classless: is for sources of type "kubernetes", and this one`, `c.toml:10: source[1].pool: is for sources of type "consul" or "http" or "kubernetes", and this one is of type "static"`}},
	} {
		t.Run(test.what, func(t *testing.T) {
			_, problems := Parse("c.toml", []byte(test.doc))
			problemtest.Expect(t, problems, test.want...)
		})
	}
}

func TestReferenceStatesTheDefaultsOfKubernetes(t *testing.T) {
	mentions(t, "config.md", "| `"+kubernetes.DefaultLoadBalancerClass+"` |", "a namespace | `"+kubernetes.DefaultLeaseNamespace+"`",
		"a DNS name | `"+kubernetes.DefaultLeaseName+"`")
}
