//go:build system

package program

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// kube is a cluster and an agent that follows its Services with only the permissions of
// configs/kubernetes. All of it is on one host of a lab. The lab's backends are the pods or the
// nodes.
type kube struct {
	*host
	lab     *netlab.Lab
	cluster *kubetest.Cluster
	audit   string                    // the API server's log of requests
	mode    corev1.LoadBalancerIPMode // of the addresses in statuses
}

// ourClass is the class of the source in withKubernetes. nodeSource is another source, with another
// class, that sends traffic to node ports.
const (
	ourClass   = "ironvip.io/vip"
	nodeClass  = "ironvip.io/nodes"
	nodeSource = `[[source]]
type = "kubernetes"
name = "nodes"
kubeconfig = "KUBECONFIG"
load_balancer_class = "ironvip.io/nodes"
lease_name = "nodes"
backends = "node-ports"
`
)

func withKubernetes(t *testing.T, o kubetest.Options) *kube {
	t.Helper()
	h, l := newLab(t)
	h.pool = "198.51.100" // the lab's own pool, outside of the cluster's ranges
	holds(l.Director)
	k := &kube{host: h, lab: l, audit: filepath.Join(t.TempDir(), "audit.log"), mode: corev1.LoadBalancerIPModeProxy}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	err := os.WriteFile(policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, userGroups: [ironvip]}, {level: None}]
`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	o.In, o.Addr = l.Director, l.Director.Addr4
	o.Flags = append(o.Flags, "--audit-policy-file="+policy, "--audit-log-path="+k.audit)
	k.cluster = kubetest.Start(t, o)
	k.grant()
	k.source("")
	return k
}

// grant gives the permissions of configs/kubernetes to the group ironvip.
func (k *kube) grant() {
	k.t.Helper()
	rights := must.Get(os.ReadFile("../../configs/kubernetes/clusterrole.yaml"))(k.t)
	k.cluster.Apply(k.t, string(rights))
}

// holds makes the pool's addresses local to a node, because some kernels have no dummy devices for
// the proxy's addresses.
func holds(n *netlab.Node) {
	n.Sysctl("ipv6/ip_nonlocal_bind", "1") // IPv6 needs this besides a route
	for _, p := range []string{"198.51.100.0/24", "fd00:96::/64"} {
		n.Holds(netip.MustParsePrefix(p))
	}
}

// source writes the configuration with more appended. KUBECONFIG in more is replaced by the path of
// the agent's kubeconfig.
func (k *kube) source(more string) {
	k.t.Helper()
	path := k.cluster.Kubeconfig(k.t, "lb1", "ironvip")
	k.config(fmt.Sprintf("[[source]]\ntype = \"kubernetes\"\nkubeconfig = %q\n%s", path, strings.ReplaceAll(more, "KUBECONFIG", path)))
	k.edit("ironvip.toml", `.0/24"]`, `.0/24", "fd00:96::/64"]`)
}

// loadBalancer returns the manifest of a Service with port 80, which is 8080 on the pods. More is
// appended to its spec.
func loadBalancer(name, class, more string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %q}
spec:
  type: LoadBalancer
  loadBalancerClass: %q
  ports: [{port: 80, targetPort: 8080, protocol: TCP}]
%s
`, name, class, more)
}

// pods serves TCP at a port of the lab's backends, and returns their addresses.
func (k *kube) pods(port uint16) (four, six []netip.Addr) {
	k.t.Helper()
	for _, n := range k.lab.Backends {
		n.Serve("tcp", netip.AddrPortFrom(n.Addr4, port))
		n.Serve("tcp", netip.AddrPortFrom(n.Addr6, port))
		four, six = append(four, n.Addr4), append(six, n.Addr6)
	}
	return four, six
}

// endpoints returns the manifest of a Service's slice, of the family of its addresses.
func endpoints(name string, addrs ...netip.Addr) string {
	slice := kubetest.EndpointSlice("default", name, 8080, addrs...)
	if addrs[0].Is6() {
		slice = strings.Replace(slice, fmt.Sprintf("name: %q,", name), fmt.Sprintf("name: %q,", name+"-six"), 1)
	}
	return slice
}

const (
	services      = "/api/v1/namespaces/default/services/"
	leaseOfWriter = "/apis/coordination.k8s.io/v1/namespaces/ironvip/leases/ironvip"
)

// object reads a Service; it returns nil for a deleted one.
func (k *kube) object(name string) (*corev1.Service, error) {
	var s corev1.Service
	ctx, cancel := context.WithTimeout(k.t.Context(), 20*time.Second)
	defer cancel()
	err := k.cluster.Do(ctx, http.MethodGet, services+name, "", nil, &s)
	if kubetest.Code(err) == http.StatusNotFound {
		return nil, nil
	}
	return &s, err
}

// ingress waits until a Service's status has the given number of addresses, and returns them.
func (k *kube) ingress(name string, many int) (out []string) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("the status of %s has %d addresses", name, many), func() error {
		s, err := k.object(name)
		if err != nil || s == nil {
			return fmt.Errorf("%v", err)
		}
		out = nil
		for _, i := range s.Status.LoadBalancer.Ingress {
			if i.IPMode == nil || *i.IPMode != k.mode {
				return fmt.Errorf("%s has the mode %v", i.IP, i.IPMode)
			}
			out = append(out, i.IP)
		}
		if finalized := slices.Contains(s.Finalizers, "service.kubernetes.io/load-balancer-cleanup"); len(out) != many || finalized != (many > 0) {
			return fmt.Errorf("%v, finalizers %v", out, s.Finalizers)
		}
		return nil
	})
	return out
}

// hasEvent waits for an event of a Service with the given count.
func (k *kube) hasEvent(name, reason, says string, times int) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("%s has an event %s: %s", name, reason, says), func() error {
		var list corev1.EventList
		k.cluster.Get(k.t, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name="+name, &list)
		var all []string
		for _, e := range list.Items {
			if e.Reason == reason && strings.Contains(e.Message, says) && int(e.Count) == times {
				return nil
			}
			all = append(all, fmt.Sprintf("%s: %s (%d)", e.Reason, e.Message, e.Count))
		}
		return fmt.Errorf("%q", all)
	})
}

// asks returns the server that answers one connection of the lab's client.
func (k *kube) asks(addr string) (string, error) {
	a, err := k.lab.Client.Ask("tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 80))
	return a.Name, err
}

// silent waits until no server answers at an address.
func (k *kube) silent(addr string) {
	k.t.Helper()
	k.eventually("nobody answers at "+addr, func() error {
		ctx, cancel := context.WithTimeout(k.t.Context(), time.Second)
		defer cancel()
		c, err := k.lab.Client.DialContext(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String())
		if err == nil {
			c.Close()
			return fmt.Errorf("somebody does")
		}
		return nil
	})
}

// revision returns the revision of a Service's row, without waiting.
func (k *kube) revision(name string) string {
	k.t.Helper()
	code, tree := k.rest("GET", "/v1/services/default/"+name, "")
	must.Equal(k.t, code, http.StatusOK, "GET %s: %d %v", name, code, tree)
	return fmt.Sprint(tree["revision"], tree["status"].(map[string]any)["vips"])
}

// observes waits until the connections of clients have shown the health of n addresses.
func (k *kube) observes(n int) {
	k.t.Helper()
	k.eventually(fmt.Sprintf("the table passive has %d rows", n), func() error {
		if code, tree := k.rest("GET", "/v1/debug/tables/passive", ""); code != http.StatusOK || len(tree["rows"].([]any)) != n {
			return fmt.Errorf("%d %v", code, tree)
		}
		return nil
	})
}

// A Service gets its VIPs in its status, connections to them reach its endpoints, and all changes
// by a user are followed. The permissions of configs/kubernetes suffice, and all of them are used.
//
// Slow: an API server starts, and the agent renews its Lease after seconds.
func TestKubernetes(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
	k.source("gateway_api = true\n" + nodeSource)
	k.beforeIronvip()
	k.installGateways()
	k.start()
	k.keepsAddresses()
	four, six := k.pods(8080)
	k.gateways(four)
	k.cluster.Apply(k.t, loadBalancer("web", ourClass, "  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv6, IPv4]")+
		endpoints("web", four...)+endpoints("web", six...))
	vips := k.ingress("web", 2)
	if !netip.MustParseAddr(vips[0]).Is6() || !netip.MustParseAddr(vips[1]).Is4() {
		t.Errorf("the status has %v, not in the order of ipFamilies", vips)
	}
	client := k.lab.Client
	for _, vip := range vips {
		k.reaches(client, "tcp", vip, 80, "backend1", "backend2")
	}
	k.hasEvent("web", "Allocated", vips[0], 1)

	k.cluster.Apply(t, endpoints("web", four[1:]...)+endpoints("web", six[1:]...))
	for _, vip := range vips {
		k.reaches(k.lab.Client, "tcp", vip, 80, "backend2")
	}
	k.annotations(vips[1], four)
	k.nodePorts()
	k.ends(vips)
	k.rights()
}

// installGateways installs the Gateway API and makes a GatewayClass.
func (k *kube) installGateways() {
	k.t.Helper()
	k.cluster.Apply(k.t, kubetest.GatewayAPI("v1", "v1"))
	k.eventually("Gateways and routes can be made", func() error {
		return k.cluster.TryApply(k.t, `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: ironvip}
spec: {controllerName: ironvip.io/vip}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: front}
spec: {parentRefs: [{name: front}], rules: [{backendRefs: [{name: behind, port: 80, weight: 90}, {name: canary, port: 80, weight: 10}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: front}
spec: {parentRefs: [{name: front}], rules: [{backendRefs: [{name: behind, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec: {gatewayClassName: ironvip, listeners: [{name: tcp, protocol: TCP, port: 80}, {name: udp, protocol: UDP, port: 80}]}
`)
	})
}

// gateways: the listeners of a Gateway share its VIPs, which lead to the route's backends by weight until the Gateway is deleted.
func (k *kube) gateways(four []netip.Addr) {
	k.t.Helper()
	for name, pod := range map[string]netip.Addr{"behind": four[0], "canary": four[1]} {
		k.cluster.Apply(k.t, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {ports: [{port: 80}]}}\n", name)+endpoints(name, pod))
	}
	const path = "/apis/gateway.networking.k8s.io/v1/namespaces/default/gateways/front"
	var gw struct {
		Status struct {
			Addresses  []struct{ Value string }
			Conditions []struct{ Type, Status, Message string }
		}
	}
	k.eventually("the Gateway is programmed", func() error {
		k.cluster.Get(k.t, path, &gw)
		for _, c := range gw.Status.Conditions {
			if c.Type == "Programmed" && c.Status == "True" && len(gw.Status.Addresses) == 2 {
				return nil
			}
		}
		return fmt.Errorf("%+v", gw)
	})
	vip := gw.Status.Addresses[0].Value
	to := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
	k.eventually("90 percent and 10 percent", func() error {
		got := map[string]int{}
		for range 20 {
			answer, err := k.lab.Client.Ask("tcp", to)
			if err != nil {
				return err
			}
			got[answer.Name]++
		}
		if got["backend1"] != 18 || got["backend2"] != 2 {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	k.cluster.Delete(k.t, path)
	k.silent(vip)
}

// beforeIronvip: another load balancer has given addresses to Services, to the first ones by name last.
func (k *kube) beforeIronvip() {
	k.t.Helper()
	for _, name := range []string{"former-a", "former-b", "former-c"} {
		k.cluster.Apply(k.t, loadBalancer(name, ourClass, ""))
	}
	for name, ip := range map[string]string{"former-b": "198.51.100.17", "former-c": "198.51.100.16"} {
		k.cluster.Patch(k.t, services+name+"/status", fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q}]}}}`, ip))
	}
	k.cluster.Patch(k.t, services+"former-a", `{"metadata": {"annotations": {"metallb.io/loadBalancerIPs": "198.51.100.18"}}}`)
}

// keepsAddresses: the Services have the addresses that they had, and new ones get others.
func (k *kube) keepsAddresses() {
	k.t.Helper()
	for name, ip := range map[string]string{"former-a": "198.51.100.18", "former-b": "198.51.100.17", "former-c": "198.51.100.16"} {
		expect.Equal(k.t, k.ingress(name, 1)[0], ip, name)
		k.cluster.Delete(k.t, services+name)
	}
}

// annotations: invalid ones are reported on the Service, and have no other effect.
func (k *kube) annotations(vip string, four []netip.Addr) {
	k.t.Helper()
	for range 2 {
		k.cluster.Patch(k.t, services+"web", `{"metadata": {"annotations": {"ironvip.io/schedular": "rr"}}}`)
		k.hasEvent("web", "BadAnnotation", `"ironvip.io/scheduler"`, 1)
		k.status("WARN", "sources", "kubernetes")
		k.reaches(k.lab.Client, "tcp", vip, 80, "backend2")
		k.cluster.Patch(k.t, services+"web", `{"metadata": {"annotations": {"ironvip.io/schedular": null, "ironvip.io/scheduler": "wlc"}}}`)
		k.status("OK", "sources", "kubernetes 1 service")
	}
	k.cluster.Apply(k.t, loadBalancer("asking", ourClass, "  loadBalancerIP: 198.51.100.77")+endpoints("asking", four...))
	got := k.ingress("asking", 1)
	expect.Equal(k.t, got[0], "198.51.100.77", "asked for 198.51.100.77, got %v", got)
	k.hasEvent("asking", "DeprecatedField", "ironvip.io/vips", 1)
}

// nodePorts: hosts without a route to the pods send traffic to the nodes.
func (k *kube) nodePorts() {
	k.t.Helper()
	k.pods(30080)
	var nodes string
	var names []string
	for _, n := range k.lab.Backends {
		nodes += kubetest.Node(n.Name, "", n.Addr4)
		names = append(names, n.Name)
	}
	// Pods that are reachable only through the nodes.
	k.cluster.Apply(k.t, nodes+strings.Replace(loadBalancer("far", nodeClass, ""), "port: 80,", "port: 80, nodePort: 30080,", 1)+
		endpoints("far", netip.MustParseAddr("10.244.1.7")))
	vip := k.ingress("far", 1)[0]
	k.reaches(k.lab.Client, "tcp", vip, 80, names...)
	k.cluster.Patch(k.t, "/api/v1/nodes/backend1", `{"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}}`)
	k.reaches(k.lab.Client, "tcp", vip, 80, names[1:]...)
}

// ends: a Service that no longer has our class, or is deleted, leaves nothing behind. Finalizers of
// others remain.
func (k *kube) ends(vips []string) {
	k.t.Helper()
	k.cluster.Patch(k.t, services+"web", `{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}`)
	k.ingress("web", 0)
	for _, vip := range vips {
		k.silent(vip)
	}
	k.cluster.Patch(k.t, services+"asking", `{"metadata": {"finalizers": ["example.com/other"]}}`)
	k.ingress("asking", 1) // our finalizer is added again beside the other
	k.cluster.Delete(k.t, services+"asking")
	k.silent("198.51.100.77")
	k.ingress("asking", 0) // the other finalizer still holds it
	k.cluster.Patch(k.t, services+"asking", `{"metadata": {"finalizers": null}}`)
	k.cluster.Delete(k.t, services+"far")
	for _, name := range []string{"asking", "far"} {
		k.eventually(name+" is gone", func() error {
			if s, err := k.object(name); err != nil || s != nil {
				return fmt.Errorf("%v %v", s, err)
			}
			return nil
		})
	}
}

// rights compares the agent's requests with its permissions.
func (k *kube) rights() {
	k.t.Helper()
	given := map[string]bool{}
	for resource, verbs := range map[string]string{"services": "list watch patch", "services/status": "patch", "endpointslices": "list watch",
		"nodes": "list watch", "servicecidrs": "list watch", "events": "create", "leases": "get create update", "namespaces": "list watch", "gatewayclasses": "list watch", "gateways": "list watch",
		"tcproutes": "list watch", "udproutes": "list watch", "referencegrants": "list watch", "gatewayclasses/status": "patch", "gateways/status": "patch", "tcproutes/status": "patch", "udproutes/status": "patch"} {
		for verb := range strings.FieldsSeq(verbs) {
			given[resource+" "+verb] = true
		}
	}
	k.eventually("every right is used", func() error { // the Lease is renewed after some seconds
		used := k.asked()
		for what := range used {
			if !given[what] {
				k.t.Fatalf("%s is asked for, and not among the rights", what)
			}
		}
		for what := range given {
			if !used[what] {
				return fmt.Errorf("nobody used %s", what)
			}
		}
		return nil
	})
}

// asked returns the agent's requests to the API server, for example "services list". None of them
// may have been denied.
func (k *kube) asked() map[string]bool {
	k.t.Helper()
	text := must.Get(os.ReadFile(k.audit))(k.t)
	used := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // the line is incomplete
		}
		var e struct {
			Verb           string
			ObjectRef      struct{ Resource, Subresource string }
			ResponseStatus struct{ Code int }
		}
		err := json.Unmarshal([]byte(line), &e)
		must.Succeed(k.t, err, "%v: %s", err, line)
		what := strings.Trim(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/") + " " + e.Verb
		must.True(k.t, e.ResponseStatus.Code != http.StatusForbidden, "the rights lack %s", what)
		used[what] = true
	}
	return used
}

// A source that adopts has every cluster IP with its ports and node ports as in the cluster. It
// needs only read permission, and changes nothing in the cluster.
//
// Slow: an API server starts.
func TestKubernetesAdopts(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
	for _, p := range kubetest.DualStack() {
		k.lab.Director.Holds(p)
	}
	four, six := k.pods(8080)
	k.cluster.Apply(t, `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: mirrors}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: ironvip-follow}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: mirrors}]
`)
	k.config(fmt.Sprintf(`[[pool]]
name = "cluster"
cidrs = ["10.96.0.0/16", "fd96::/112"]
auto_assign = false
[[source]]
type = "kubernetes"
kubeconfig = %q
adopt_cluster_ips = true
pool = "cluster"
`, k.cluster.Kubeconfig(t, "lb1", "mirrors")))
	k.start()
	k.cluster.Apply(t, `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080, nodePort: 30081, protocol: TCP}]}
`+endpoints("web", four...)+endpoints("web", six...))
	written := must.Get(k.object("web"))(t)
	for _, ip := range written.Spec.ClusterIPs {
		k.reaches(k.lab.Client, "tcp", ip, 80, "backend1", "backend2")
	}
	k.reaches(k.lab.Client, "tcp", k.lab.Director.Addr4.String(), 30081, "backend1", "backend2")
	k.status("OK", "sources", "kubernetes 2 services") // includes default/kubernetes
	if now, err := k.object("web"); err != nil || now.ResourceVersion != written.ResourceVersion {
		t.Errorf("written to: %v %+v", err, now)
	}
	k.cluster.Delete(t, services+"web")
	k.silent(written.Spec.ClusterIP)
}

// While the API server is unavailable, traffic continues, and nothing is withdrawn or moved, also after a
// restart. When it is back, the agent follows it again.
//
// Slow: an API server starts twice.
func TestKubernetesAway(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{})
	k.start()
	four, _ := k.pods(8080)
	k.cluster.Apply(k.t, loadBalancer("web", ourClass, "")+endpoints("web", four...))
	vip := k.ingress("web", 1)[0]
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	written := must.Get(k.object("web"))(t)
	k.cluster.Apply(k.t, endpoints("web", four[1:]...))
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend2")
	k.keeps("cache kubernetes", "default/web", func(kept string) bool {
		return strings.Contains(kept, four[1].String()) && !strings.Contains(kept, `"`+four[0].String())
	})
	k.observes(1) // the answers are part of the revision
	before := k.revision("web")
	k.cluster.API.Kill(t)
	k.stale("is noticed to be away", true)
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend2")
	expect.Equal(t, k.revision("web"), before, "while the server is away: web")
	k.kill()
	k.start()
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend2")
	k.stale("can't be read from the start", true)
	k.cluster.API.Start(t)
	k.cluster.API.WaitReady(t)
	k.stale("is there at last", false)
	k.cluster.Apply(k.t, endpoints("web", four...))
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	now := must.Get(k.object("web"))(t)
	if now.ResourceVersion != written.ResourceVersion {
		t.Errorf("the Service was written to, with nothing to write: %+v", now.ManagedFields)
	}
}

// stale waits until the source is connected to the server, or not.
func (k *kube) stale(what string, want bool) {
	k.t.Helper()
	k.within(2*time.Minute, "the server "+what, func() error {
		code, tree := k.rest("GET", "/v1/sources", "")
		items, _ := tree["items"].([]any)
		for _, item := range items {
			row, _ := item.(map[string]any)
			why, _ := row["stale"].(string)
			if row["name"] == "kubernetes" && (why != "") == want && row["synced"] == true {
				return nil
			}
		}
		return fmt.Errorf("%d %v", code, tree)
	})
}

// In a pod the agent uses the server in its environment and the account in the pod's files. It writes
// addresses with the mode of ip_mode.
//
// Slow: an API server starts, and an agent twice.
func TestKubernetesInCluster(t *testing.T) {
	parallel(t)
	k := withKubernetes(t, kubetest.Options{})
	account := t.TempDir()
	ca := must.Get(os.ReadFile(k.cluster.CA))(t)
	for name, text := range map[string]string{"token": k.cluster.Token(t, "ironvip", "ironvip"), "ca.crt": string(ca), "namespace": "ironvip"} {
		must.Succeed(t, os.WriteFile(filepath.Join(account, name), []byte(text), 0o644))
	}
	k.config("[[source]]\ntype = \"kubernetes\"\nin_cluster = true\nip_mode = \"vip\"\n")
	k.mode = corev1.LoadBalancerIPModeVIP
	// The files are at the same paths as in a pod, for this process only.
	k.adjust = func(cmd *exec.Cmd) {
		const place = `set -e
run=$(readlink -f /var/run)
mount -t tmpfs none "$run"
mkdir -p "$run/secrets/kubernetes.io"
ln -s "$1" "$run/secrets/kubernetes.io/serviceaccount"
shift
exec "$@"`
		cmd.Args = append([]string{"sh", "-c", place, "sh", account, cmd.Path}, cmd.Args[1:]...)
		cmd.Path = "/bin/sh"
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+k.cluster.Addr.Addr().String(), fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", k.cluster.Addr.Port()))
	}
	k.start()
	four, _ := k.pods(8080)
	k.cluster.Apply(t, loadBalancer("web", ourClass, "")+endpoints("web", four...))
	vip := k.ingress("web", 1)[0]
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	k.status("OK", "sources", "kubernetes 1 service")

	k.stop()
	k.adjust = nil // no pod
	k.start()
	k.reaches(k.lab.Client, "tcp", vip, 80, "backend1", "backend2")
	k.status("WARN", "sources", "this is not in a pod")
}
