//go:build system

package kubernetes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/sources/kubernetes/statuswriter"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// agent is one host: a source, an allocator that assigns the same two VIPs to each service, and a
// Writer.
type agent struct {
	*statuswriter.Writer
	t           *testing.T
	services    *table.Table[vip.ServiceKey, vip.Service]
	allocations *table.Table[vip.ServiceKey, vip.Allocation]
	end         context.CancelFunc
	over        sync.WaitGroup

	mu       sync.Mutex
	problems []vip.Problem
	serving  chan struct{} // closed when it is withdrawn; nil: withdrawn at once
}

// startAgent runs a host with the kubeconfig of a user until the test ends.
func startAgent(t *testing.T, kubeconfig, identity string) *agent {
	t.Helper()
	return startAgentWith(t, kubeconfig, identity, Options{Config: Config{Selector: "!hidden"}})
}

// startAgentWith is startAgent with options of the source.
func startAgentWith(t *testing.T, kubeconfig, identity string, o Options) *agent {
	t.Helper()
	clock := &table.Clock{}
	a := &agent{t: t, services: table.New(clock, vip.KeyOfService, nil), allocations: table.New(clock, vip.KeyOfAllocation, nil)}
	client, err := kubeclient.New(kubeclient.Config{Kubeconfig: kubeconfig})
	must.Succeed(t, err)
	o.Name, o.Client = "cluster", client
	source := New(o)
	a.Writer, err = source.Writer(statuswriter.Options{Client: client, Identity: identity, LeaseNamespace: DefaultLeaseNamespace, LeaseName: DefaultLeaseName,
		IPMode: corev1.LoadBalancerIPModeProxy, Services: a.services, Allocations: a.allocations, Log: slog.New(slog.DiscardHandler),
		Withdrawn: func(ctx context.Context, _ vip.ServiceKey) error {
			a.mu.Lock()
			serving := a.serving
			a.mu.Unlock()
			if serving != nil {
				select {
				case <-serving:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}})
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	a.end = cancel
	a.over.Go(func() { _ = source.Run(ctx, a) })
	a.over.Go(func() { _ = a.Run(ctx) })
	t.Cleanup(a.stop)
	return a
}

// stop ends the host like a service manager.
func (a *agent) stop() {
	a.end()
	a.over.Wait()
}

func (a *agent) Put(services ...vip.Service) []uint64 {
	for _, s := range services {
		asked := a.services.Put(s)
		answer := vip.Allocation{Asked: &asked.Value, ServiceRev: asked.Rev, Pool: "public"}
		families := s.Families.List()
		switch {
		case len(s.VIPs) > 0:
			families = nil
			answer.Problems = []vip.Problem{{Code: vip.CodeOutsidePool, Message: s.VIPs[0].String() + " is in no pool"}}
		case len(families) == 0:
			families = []vip.Family{vip.IPv4}
		}
		for _, family := range families {
			answer.VIPs = append(answer.VIPs, netip.MustParseAddr(map[vip.Family]string{vip.IPv4: "192.0.2.1", vip.IPv6: "2001:db8::1"}[family]))
		}
		slices.SortFunc(answer.VIPs, netip.Addr.Compare) // IPv4 first, like the allocator
		a.allocations.Set(answer)
	}
	return make([]uint64, len(services))
}

func (a *agent) Delete(keys ...vip.ServiceKey) {
	for _, key := range keys {
		a.services.Delete(key)
		a.allocations.Delete(key)
	}
}

func (a *agent) Replace(services []vip.Service, problems []vip.Problem) {
	a.Problems(problems)
	for key := range a.services.All() {
		if !slices.ContainsFunc(services, func(s vip.Service) bool { return s.Key == key }) {
			a.Delete(key)
		}
	}
	a.Put(services...)
}

func (a *agent) Problems(problems []vip.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.problems = problems
}

func (a *agent) Stale(error) {}
func (a *agent) Fresh()      {}

func (a *agent) said() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.problems {
		out = append(out, p.Message)
	}
	return out
}

// serve makes the dataplane serve until the returned function is called.
func (a *agent) serve() (withdraw func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	serving := make(chan struct{})
	a.serving = serving
	return func() { close(serving) }
}

func hasFinalizer(s *corev1.Service) bool {
	return slices.Contains(s.Finalizers, statuswriter.Finalizer)
}

// ingressOf returns a Service's ingress as "ip/mode".
func ingressOf(s *corev1.Service) (out []string) {
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		out = append(out, fmt.Sprintf("%s/%s", ingress.IP, value(ingress.IPMode)))
	}
	return out
}

func manifest(name, policy, more string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {namespace: default, name: %q%s}, spec: {type: LoadBalancer, loadBalancerClass: ironvip.io/vip,
ipFamilyPolicy: %s, ports: [{port: 80}]}}`, name, more, policy)
}

func livePath(name string) string { return "/api/v1/namespaces/default/services/" + name }

// look reads a Service; nil: it does not exist.
func look(t *testing.T, c *kubetest.Cluster, name string) *corev1.Service {
	t.Helper()
	var s corev1.Service
	switch err := c.Do(t.Context(), "GET", livePath(name), "", nil, &s); {
	case kubetest.Code(err) == 404:
		return nil
	case err != nil:
		t.Fatal(err)
	}
	return &s
}

func waitIngress(t *testing.T, c *kubetest.Cluster, name string, want ...string) *corev1.Service {
	t.Helper()
	var s *corev1.Service
	wait.Until(t, fmt.Sprintf("%s with ingress %q", name, want), func() bool {
		s = look(t, c, name)
		return s != nil && slices.Equal(ingressOf(s), want)
	}, func() any { return fmt.Sprintf("%+v", s) })
	return s
}

func waitGone(t *testing.T, c *kubetest.Cluster, name string) {
	t.Helper()
	wait.Until(t, name+" gone", func() bool { return look(t, c, name) == nil }, func() any { return look(t, c, name) })
}

// Slow: etcd and kube-apiserver start, which takes four seconds, and two hosts elect a writer three times.
func TestWriterOnServer(t *testing.T) {
	c, _ := realCluster(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
	kubeconfig := c.Kubeconfig(t, "agents", "ironvip")
	a := startAgent(t, kubeconfig, "a")
	wait.Until(t, "elected", a.Leads, func() any { return a.said() })
	b := startAgent(t, kubeconfig, "b")

	c.Apply(t, manifest("web", "RequireDualStack", `, finalizers: ["example.com/other"]`))
	s := waitIngress(t, c, "web", "192.0.2.1/Proxy", "2001:db8::1/Proxy")
	expect.SameList(t, s.Finalizers, []string{"example.com/other", statuswriter.Finalizer}, "finalizers")
	c.Apply(t, manifest("four", "SingleStack", ""))
	waitIngress(t, c, "four", "192.0.2.1/Proxy")

	// Other programs create events for a Service too. The API server does while its own allocator
	// is behind.
	c.Apply(t, `{apiVersion: v1, kind: Event, metadata: {namespace: default, name: of-another}, type: Warning, reason: ClusterIPNotAllocated,
involvedObject: {apiVersion: v1, kind: Service, namespace: default, name: web}, source: {component: ipallocator-repair-controller}}`)
	var events corev1.EventList
	wait.Until(t, "events", func() bool {
		c.Get(t, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=web,source="+statuswriter.Component, &events)
		return len(events.Items) > 0
	}, func() any { return a.said() })
	expect.Equal(t, events.Items[0].Reason, statuswriter.ReasonAllocated, "reason")
	expect.Equal(t, len(events.Items), 1, "events")

	t.Run("the next writer", func(t *testing.T) {
		a.stop()
		c.Apply(t, manifest("later", "SingleStack", ""))
		waitIngress(t, c, "later", "192.0.2.1/Proxy")
		expect.True(t, b.Leads(), "b is not elected")
		expect.Equal(t, look(t, c, "web").ResourceVersion, s.ResourceVersion, "what was written stays as it was")
	})

	t.Run("type", func(t *testing.T) {
		withdraw := b.serve()
		c.Patch(t, livePath("four"), `{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}`)
		time.Sleep(300 * time.Millisecond) // enough time to make the error
		expect.True(t, hasFinalizer(look(t, c, "four")), "given up while it is served")
		withdraw()
		wait.Until(t, "without the finalizer", func() bool { return !hasFinalizer(look(t, c, "four")) }, func() any { return b.said() })
		expect.SameList(t, ingressOf(look(t, c, "four")), []string(nil), "ingress")
	})

	t.Run("selector", func(t *testing.T) {
		c.Patch(t, livePath("later"), `{"metadata": {"labels": {"hidden": "yes"}}}`)
		waitIngress(t, c, "later")
		wait.Until(t, "without the finalizer", func() bool { return !hasFinalizer(look(t, c, "later")) }, func() any { return b.said() })
	})

	t.Run("deletion", func(t *testing.T) {
		withdraw := b.serve()
		c.Delete(t, livePath("web"))
		time.Sleep(300 * time.Millisecond)
		expect.Equal(t, len(ingressOf(look(t, c, "web"))), 2, "ingress while it is served")
		withdraw()
		waitIngress(t, c, "web")
		wait.Until(t, "with the other's finalizer alone", func() bool { return slices.Equal(look(t, c, "web").Finalizers, []string{"example.com/other"}) },
			func() any { return look(t, c, "web").Finalizers })
		c.Patch(t, livePath("web"), `{"metadata": {"finalizers": null}}`)
		waitGone(t, c, "web")
	})

	t.Run("changed while no writer ran", func(t *testing.T) {
		c.Apply(t, manifest("left", "SingleStack", ""))
		waitIngress(t, c, "left", "192.0.2.1/Proxy")
		c.Apply(t, manifest("kept", "SingleStack", ""))
		kept := waitIngress(t, c, "kept", "192.0.2.1/Proxy")
		// This Service belongs to another controller, which uses the same finalizer.
		c.Apply(t, strings.Replace(manifest("cloud", "SingleStack", `, finalizers: ["`+statuswriter.Finalizer+`"]`), "ironvip.io/vip", "example.com/cloud", 1))
		c.Apply(t, manifest("strayed", "SingleStack", ""))
		waitIngress(t, c, "strayed", "192.0.2.1/Proxy")
		c.Apply(t, strings.Replace(manifest("foreign", "SingleStack", `, labels: {hidden: "yes"}, finalizers: ["`+statuswriter.Finalizer+`"]`), "ironvip.io/vip", "example.com/cloud", 1))
		b.stop()
		c.Patch(t, livePath("left"), `{"spec": {"type": "ClusterIP", "loadBalancerClass": null}}`)
		c.Patch(t, livePath("strayed"), `{"metadata": {"labels": {"hidden": "yes"}}}`)
		d := startAgent(t, kubeconfig, "d")
		wait.Until(t, "without the finalizer", func() bool { return !hasFinalizer(look(t, c, "left")) }, func() any { return d.said() })
		wait.Until(t, "let go", func() bool { s := look(t, c, "strayed"); return !hasFinalizer(s) && len(ingressOf(s)) == 0 }, func() any { return d.said() })
		for _, name := range []string{"cloud", "foreign"} {
			expect.True(t, hasFinalizer(look(t, c, name)), "another's finalizer is gone from %s", name)
		}
		expect.Equal(t, look(t, c, "kept").ResourceVersion, kept.ResourceVersion, "what was written stays as it was")
		wait.Until(t, "without problems", func() bool { return len(d.said()) == 0 }, func() any { return d.said() })
	})
}

// Slow: etcd and kube-apiserver start, which takes four seconds.
func TestWriterWithoutRightsOnServer(t *testing.T) {
	c, _ := realCluster(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
	c.Apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: half-follow}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: ironvip-follow}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: half}]
`)
	a := startAgent(t, c.Kubeconfig(t, "half"), "a")
	c.Apply(t, manifest("web", "SingleStack", ""))
	problem := func(want string) {
		t.Helper()
		wait.Until(t, "receives "+want, func() bool { return slices.Contains(a.said(), want) }, func() any { return a.said() })
	}
	problem("no right to get leases in namespace ironvip")
	expect.Empty(t, look(t, c, "web").Finalizers, "written without the Lease")
	a.stop()

	c.Apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: half-elect, namespace: ironvip}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: ironvip-elect}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: half}]
`)
	a = startAgent(t, c.Kubeconfig(t, "half"), "a")
	const want = "no right to patch services in namespace default"
	wait.Until(t, "receives "+want+" and nothing else", func() bool { return slices.Equal(a.said(), []string{want}) }, func() any { return a.said() })
	wait.Until(t, "elected", a.Leads, func() any { return a.said() })
}
