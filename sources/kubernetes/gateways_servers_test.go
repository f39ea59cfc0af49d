//go:build system

package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ironvip/ironvip/internal/kubeclient/gatewayapi"
	"github.com/ironvip/ironvip/sources/kubernetes/gateway"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func gatewayPath(resource, name string) string {
	return "/apis/gateway.networking.k8s.io/v1/namespaces/default/" + resource + "/" + name
}

// awaitConditions waits until the reasons of an object's conditions are these.
func awaitConditions[T any](t *testing.T, c *kubetest.Cluster, a *agent, path, want string, of func(*T) []metav1.Condition) *T {
	t.Helper()
	var out *T
	wait.Until(t, path+" has the conditions "+want, func() bool {
		out = new(T)
		c.Get(t, path, out)
		return reasons(of(out)) == want
	}, func() any { return fmt.Sprintf("%+v, problems %q", out, a.said()) })
	return out
}

func ofRoute(r *gatewayapi.Route) []metav1.Condition {
	for _, p := range r.Status.Parents {
		if p.ControllerName == gateway.Controller {
			return p.Conditions
		}
	}
	return nil
}

func ofGateway(g *gatewayapi.Gateway) []metav1.Condition { return g.Status.Conditions }

// The Gateway API is installed while an agent runs that has only the documented rights: routes in v1alpha2 alone.
// Slow: etcd and kube-apiserver start, which takes four seconds, and definitions are served some seconds later.
func TestGatewaysOnServer(t *testing.T) {
	c, _ := realCluster(t, kubetest.Options{})
	a := startAgentWith(t, c.Kubeconfig(t, "agents", "ironvip"), "a", Options{Config: Config{GatewayAPI: true}, timing: timing{watch: 2 * time.Second}})
	wait.Until(t, "elected", a.Leads, func() any { return a.said() })
	expect.Empty(t, a.said(), "problems without the Gateway API")

	c.Apply(t, kubetest.GatewayAPI("v1alpha2", "v1", "v1alpha2"))
	const class = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: %s}\nspec: {controllerName: %s}\n"
	wait.Until(t, "the kinds are served", func() bool { return c.TryApply(t, fmt.Sprintf(class, "ironvip", gateway.Controller)) == nil }, nil)
	c.Apply(t, fmt.Sprintf(class, "foreign", "example.com/other"))
	for _, name := range []string{"web", "canary"} {
		c.Apply(t, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {namespace: default, name: %s}, spec: {ports: [{port: 80}]}}", name))
	}
	c.Apply(t, realSlice("web", 1, 2)+realSlice("canary", 9))
	main := `---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: default, name: main}
spec: {gatewayClassName: ironvip, listeners: [{name: web, protocol: TCP, port: 80}, {name: dns, protocol: UDP, port: 80}, {name: http, protocol: HTTP, port: 8080}]}
`
	route := `---
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: {namespace: default, name: web}
spec: {parentRefs: [{name: main}], rules: [{backendRefs: [{name: web, port: 80, weight: 90}, {name: canary, port: 80, weight: 10}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {namespace: default, name: dns}
spec: {parentRefs: [{name: main}], rules: [{backendRefs: [{name: web, port: 53}]}]}
`
	wait.Until(t, "the kinds are served", func() bool { return c.TryApply(t, main+route) == nil }, nil)
	const (
		served   = "Accepted=ListenersNotValid Programmed=Programmed"
		attached = "Accepted=Accepted ResolvedRefs=ResolvedRefs"
	)
	routePath := strings.Replace(gatewayPath("tcproutes", "web"), "/v1/", "/v1alpha2/", 1)
	awaitConditions(t, c, a, routePath, attached, ofRoute)
	awaitConditions(t, c, a, gatewayPath("udproutes", "dns"), "Accepted=Accepted ResolvedRefs=BackendNotFound", ofRoute)
	gw := awaitConditions(t, c, a, gatewayPath("gateways", "main"), served, ofGateway)
	expect.Equal(t, fmt.Sprint(gw.Status.Addresses[0].Value, " ", gw.Status.Listeners[0].AttachedRoutes, " ", reasons(gw.Status.Listeners[0].Conditions)),
		"192.0.2.1 1 Accepted=Accepted Conflicted=NoConflicts ResolvedRefs=ResolvedRefs Programmed=Programmed", "the Gateway")
	expect.Equal(t, reasons(gw.Status.Listeners[2].Conditions), "Accepted=UnsupportedProtocol Conflicted=NoConflicts ResolvedRefs=ResolvedRefs Programmed=Invalid", "HTTP")
	var classes gatewayapi.GatewayClassList
	c.Get(t, "/apis/gateway.networking.k8s.io/v1/gatewayclasses", &classes)
	for _, of := range classes.Items {
		expect.Equal(t, reasons(of.Status.Conditions), map[string]string{"ironvip": "Accepted=Accepted", "foreign": ""}[of.Name], "class %s", of.Name)
	}
	key := vip.ServiceKey{Namespace: "default", Name: gateway.ServiceName("main", "web")}
	service, _, _ := a.services.Get(key)
	expect.Equal(t, fmt.Sprint(brief(service), service.Groups), key.Name+"=1,2,9[{web 90} {canary 10}]", "its service")

	// Statuses settle: nothing is written again.
	wait.Until(t, "a Service more is written", func() bool {
		c.Apply(t, manifest("later", "SingleStack", ""))
		return len(ingressOf(look(t, c, "later"))) > 0
	}, func() any { return a.said() })
	var again gatewayapi.Gateway
	c.Get(t, gatewayPath("gateways", "main"), &again)
	expect.Equal(t, again.ResourceVersion, gw.ResourceVersion, "version of the Gateway after its status was written")

	// An address that no pool has, and a backend that goes.
	c.Apply(t, strings.Replace(main, "spec: {", "spec: {addresses: [{type: IPAddress, value: 203.0.113.9}], ", 1))
	c.Delete(t, livePath("canary"))
	gw = awaitConditions(t, c, a, gatewayPath("gateways", "main"), "Accepted=ListenersNotValid Programmed=AddressNotUsable", ofGateway)
	expect.Len(t, gw.Status.Addresses, 0, "addresses")
	awaitConditions(t, c, a, routePath, "Accepted=Accepted ResolvedRefs=BackendNotFound", ofRoute)
	c.Apply(t, main)
	awaitConditions(t, c, a, gatewayPath("gateways", "main"), served, ofGateway)

	c.Delete(t, gatewayPath("gateways", "main"))
	wait.Until(t, "the VIP is released", func() bool { _, _, there := a.services.Get(key); return !there }, func() any { return a.said() })
	awaitConditions(t, c, a, routePath, "", ofRoute)
	expect.Empty(t, a.said(), "problems")
}
