package kubernetes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

// onNodes returns a run that has published this many Services for the endpoints of all nodes, and
// as many for local ones. Service i has an endpoint on node i.
func onNodes(t *testing.T, nodes, services int) *run {
	t.Helper()
	o := Options{Config: Config{Backends: BackendsNodePorts}}.withDefaults()
	r := newRun(New(o), nil)
	for i := range nodes {
		n := aNode(fmt.Sprintf("ready internal=10.0.0.%d", i+1))
		n.Name = fmt.Sprintf("n%d", i)
		r.putNode(n)
	}
	for i := range services {
		for _, policy := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
			name := fmt.Sprintf("%s%d", policy, i)
			s := balancer(name)
			s.Spec.ExternalTrafficPolicy = policy
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			r.entry(keyOf(types.NamespacedName{Namespace: "shop", Name: name})).service = s
			of := slice(name+"-1", name, 1)
			of.Endpoints[0].NodeName = new(fmt.Sprintf("n%d", i%nodes))
			r.putSlice(of)
		}
	}
	r.replaced = true
	return r
}

// A relevant change of a Node builds the services again that use it as a backend. Writes by its
// kubelet alone build none.
func TestWhatANodeRebuilds(t *testing.T) {
	const nodes, services = 10, 100
	const every, local = services, services / nodes
	named := func(i int, text string) *corev1.Node {
		n := aNode(text)
		n.Name = fmt.Sprintf("n%d", i)
		return n
	}
	for _, tc := range []struct {
		name   string
		change func(*run)
		want   int
	}{
		{"a heartbeat", func(r *run) { r.putNode(named(3, "ready internal=10.0.0.4")) }, 0},
		{"a cordon", func(r *run) { r.putNode(named(3, "ready cordoned internal=10.0.0.4")) }, 0},
		{"not ready", func(r *run) { r.putNode(named(3, "!ready internal=10.0.0.4")) }, every + local},
		{"another address", func(r *run) { r.putNode(named(3, "ready internal=10.0.0.99")) }, every + local},
		{"gone", func(r *run) { r.dropNode(types.NamespacedName{Name: "n3"}) }, every + local},
		{"a new one", func(r *run) { r.putNode(named(10, "ready internal=10.0.0.11")) }, every},
		{"a weight", func(r *run) {
			n := named(3, "ready internal=10.0.0.4")
			n.Annotations = map[string]string{annotationPrefix + "weight": "5"}
			r.putNode(n)
		}, every + local},
		{"gone, and nobody knew it", func(r *run) { r.dropNode(types.NamespacedName{Name: "n11"}) }, 0},
		{"the first of a family", func(r *run) { r.putNode(named(10, "ready internal=fd00::1")) }, 2 * services},
		{"the last that is ready", func(r *run) {
			for i := 1; i < nodes; i++ {
				r.putNode(named(i, fmt.Sprintf("!ready internal=10.0.0.%d", i+1)))
			}
			clear(r.dirty)
			r.putNode(named(0, "!ready internal=10.0.0.1"))
		}, 2 * services},
	} {
		r := onNodes(t, nodes, services)
		clear(r.dirty)
		tc.change(r)
		expect.Equal(t, len(r.dirty), tc.want, "%s: services", tc.name)
	}
}

// Services that are not built again would be unchanged by a build.
func TestWhatANodeDoesNotRebuildIsAsItWas(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := onNodes(t, 4, 8)
	made := map[vip.ServiceKey]built{}
	fresh := func(key vip.ServiceKey) built {
		e := r.entries[key]
		in := input{service: e.service, nodes: r.nodes}
		for _, s := range e.slices {
			in.slices = append(in.slices, s)
		}
		return r.o.build(in)
	}
	for key := range r.entries {
		made[key] = fresh(key)
	}
	spared := 0
	for step := range 500 {
		name := fmt.Sprintf("n%d", random.IntN(6))
		before := maps.Clone(r.nodes)
		clear(r.dirty)
		if random.IntN(4) == 0 {
			r.dropNode(types.NamespacedName{Name: name})
		} else {
			text := []string{"ready", "!ready"}[random.IntN(2)]
			for _, word := range []string{" internal=10.0.0." + name[1:], " internal=fd00::" + name[1:], " zone=a"} {
				if random.IntN(3) > 0 {
					text += word
				}
			}
			n := aNode(text)
			n.Name = name
			r.putNode(n)
		}
		for key := range r.entries {
			now := fresh(key)
			if _, dirty := r.dirty[key]; dirty {
				made[key] = now
				continue
			}
			if spared++; !reflect.DeepEqual(now, made[key]) {
				t.Fatalf("step %d, %s: %v is not made reread with %v, before %v", step, name, key, r.nodes, before)
			}
		}
	}
	expect.True(t, spared != 0, "all were made reread, always")
}
