//go:build system

package program

import (
	"fmt"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
)

// Services with one name in two clusters have a VIP each. The writer of each cluster leaves the other cluster alone, and
// the end of one Service changes nothing of the other one.
//
// Slow: two API servers start.
func TestKubernetesClusters(t *testing.T) {
	parallel(t)
	east := withKubernetes(t, kubetest.Options{})
	west := *east
	west.cluster = kubetest.Start(t, kubetest.Options{In: east.lab.Director, Addr: east.lab.Director.Addr4})
	west.grant()
	east.source(fmt.Sprintf(`name = "east"
namespace_prefix = "east-"
[[source]]
type = "kubernetes"
name = "west"
kubeconfig = %q
namespace_prefix = "west-"
`, west.cluster.Kubeconfig(t, "lb1", "ironvip")))
	east.start()
	four, _ := east.pods(8080)
	vips := map[*kube]string{}
	for i, k := range []*kube{east, &west} {
		k.cluster.Apply(t, loadBalancer("web", ourClass, "")+endpoints("web", four[i]))
		vips[k] = k.ingress("web", 1)[0]
	}
	expect.True(t, vips[east] != vips[&west], "both have %s", vips[east])
	client := east.lab.Client
	east.reaches(client, "tcp", vips[east], 80, "backend1")
	east.reaches(client, "tcp", vips[&west], 80, "backend2")
	east.hasEvent("web", "Allocated", vips[east], 1)
	west.hasEvent("web", "Allocated", vips[&west], 1)

	before, err := west.object("web")
	expect.Succeed(t, err)
	east.cluster.Delete(t, services+"web")
	east.eventually("web is gone from east", func() error {
		if s, err := east.object("web"); err != nil || s != nil {
			return fmt.Errorf("%v %v", s, err)
		}
		return nil
	})
	east.silent(vips[east])
	east.reaches(client, "tcp", vips[&west], 80, "backend2")
	after, err := west.object("web")
	expect.Succeed(t, err)
	expect.Equal(t, after.ResourceVersion, before.ResourceVersion, "the Service of west is written")
	east.cluster.Apply(t, loadBalancer("next", ourClass, ""))
	expect.True(t, east.ingress("next", 1)[0] != vips[&west], "next has the VIP of west's web")
}
