//go:build system

package kubernetes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/kubeclient"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// follower is a source that follows a real cluster.
type follower struct {
	*recorder
	t *testing.T

	rangesMu sync.Mutex
	ranges   string
}

// startFollower runs a source until the test ends. Its user has only the permissions of
// configs/kubernetes.
func startFollower(t *testing.T, c *kubetest.Cluster, change func(*Options)) *follower {
	t.Helper()
	client := must.Get(kubeclient.New(kubeclient.Config{Kubeconfig: c.Kubeconfig(t, "host-1", "ironvip")}))(t)
	f := &follower{t: t, recorder: &recorder{services: map[vip.ServiceKey]vip.Service{}}}
	o := Options{Client: client, Ranges: func(all []netip.Prefix) {
		f.rangesMu.Lock()
		defer f.rangesMu.Unlock()
		f.ranges = fmt.Sprint(all)
	}}
	if change != nil {
		change(&o)
	}
	source := New(o)
	scope.Go(t, func(ctx context.Context) error { return source.Run(ctx, f.recorder) })
	return f
}

// until waits for a condition.
func (f *follower) until(what string, is func() bool) {
	f.t.Helper()
	wait.Within(f.t, 3*time.Minute, what, func() error {
		if is() {
			return nil
		}
		stale, problems := f.is()
		return fmt.Errorf("in effect %q, stale %q, problems %v, ranges %s", f.inEffect(), stale, problems, f.known())
	})
}

func (f *follower) inEffect() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, s := range f.services {
		out = append(out, brief(s))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (f *follower) has(services string) {
	f.t.Helper()
	f.until(services, func() bool { return f.inEffect() == services })
}

// isStale waits until the source is stale for this reason; "": not stale.
func (f *follower) isStale(why string) {
	f.t.Helper()
	f.until("stale for "+why, func() bool {
		stale, _ := f.is()
		return (stale == "") == (why == "") && strings.Contains(stale, why)
	})
}

func (f *follower) known() string {
	f.rangesMu.Lock()
	defer f.rangesMu.Unlock()
	return f.ranges
}

// onlySays fails the test if other changes of services were published.
func (f *follower) onlySays(what, want string) {
	f.t.Helper()
	words := slices.DeleteFunc(strings.Split(f.take(), "; "), func(word string) bool { return word == "" || word == "stale" || word == "fresh" })
	expect.Equal(f.t, strings.Join(words, "; "), want, "%s: received", what)
}

// realCluster returns a cluster where the group ironvip has the documented permissions, and these.
func realCluster(t *testing.T, o kubetest.Options) (c *kubetest.Cluster, rights string) {
	t.Helper()
	c = kubetest.Start(t, o)
	data := must.Get(os.ReadFile("../../configs/kubernetes/clusterrole.yaml"))(t)
	c.Apply(t, string(data))
	return c, string(data)
}

func realService(name string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: default, name: %q}
spec: {type: LoadBalancer, loadBalancerClass: ironvip.io/vip, ports: [{port: 80}]}
`, name)
}

func realSlice(service string, ends ...int) string {
	var addrs []netip.Addr
	for _, end := range ends {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(end)}))
	}
	return kubetest.EndpointSlice("default", service, 8080, addrs...)
}

func realNode(name, cidr string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Node\nmetadata: {name: %q}\nspec: {podCIDR: %q, podCIDRs: [%q]}\n", name, cidr, cidr)
}

// Slow: etcd and kube-apiserver start, which takes four seconds.
func TestFollowRealServer(t *testing.T) {
	t.Parallel()
	c, _ := realCluster(t, kubetest.Options{})
	c.Apply(t, realService("web")+realSlice("web", 1, 2)+realService("api")+realSlice("api", 9)+realNode("n1", "10.1.0.0/24"))
	f := startFollower(t, c, nil)
	f.has("api=9 web=1,2")
	f.until("ranges known", func() bool { return f.known() == "[10.1.0.0/24 10.96.0.0/16]" })
	f.onlySays("first", "replace api=9 web=1,2")

	c.Apply(t, realSlice("web", 1, 2, 3))
	f.has("api=9 web=1,2,3")
	c.Apply(t, realNode("n2", "10.1.1.0/24"))
	f.until("more ranges known", func() bool { return f.known() == "[10.1.0.0/24 10.1.1.0/24 10.96.0.0/16]" })
	f.onlySays("changes", "put web=1,2,3")
}

// A user without one permission can follow the rest. The permission takes effect when it is
// granted.
// Slow: etcd and kube-apiserver start, which takes four seconds.
func TestFollowWithoutARight(t *testing.T) {
	t.Parallel()
	c, rights := realCluster(t, kubetest.Options{ServiceCIDRs: kubetest.DualStack()})
	c.Apply(t, realService("web")+realSlice("web", 1))
	rule := "- apiGroups: [networking.k8s.io]"
	must.True(t, strings.Contains(rights, rule), "the rights have changed")
	c.Apply(t, strings.Replace(rights, rule, "- apiGroups: [none.example.org]", 1))
	f := startFollower(t, c, nil)
	f.has("web=1")
	f.until("receives of servicecidrs", func() bool {
		stale, problems := f.is()
		return stale == "" && len(problems) == 1 && strings.Contains(problems[0].Message, "servicecidrs") && problems[0].Hint != ""
	})
	c.Apply(t, rights)
	f.until("ranges known", func() bool { return f.known() == "[10.96.0.0/16 fd96::/112]" })
	f.until("no problem", func() bool { _, problems := f.is(); return len(problems) == 0 })
}
