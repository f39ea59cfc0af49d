//go:build vm && system

package program

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
)

// onIPVS returns a cluster on the VM's host (test/kubevm runs these tests), and an agent on the
// lab's director. The agent reaches the cluster through the VM's device, and clients and endpoints
// through this kernel.
func onIPVS(t *testing.T) *kube {
	t.Helper()
	host, err := netip.ParseAddr(os.Getenv("IRONVIP_VM_HOST"))
	if err != nil {
		t.Fatalf("nothing of the VM's host can be reached: run test/kubevm: %v", err)
	}
	h, l := newLab(t)
	h.pool = "198.51.100" // outside of the cluster's ranges
	l.Director.Take("eth0")
	k := &kube{host: h, lab: l, cluster: kubetest.Borrow(t, os.Getenv("IRONVIP_KUBETEST"), host, l.Director), mode: corev1.LoadBalancerIPModeProxy}
	k.grant()
	k.source("")
	l.AddBackend()
	for _, n := range l.Backends {
		k.endpoint(n)
	}
	return k
}

// endpoint runs a process on a node that serves TCP at port 8080, as a pod does.
func (k *kube) endpoint(n *netlab.Node) {
	k.t.Helper()
	p := process.New(os.Args[0], filepath.Join(k.t.TempDir(), "log"), n,
		"-test.run=^TestEndpoint$", n.Name, n.Addr4.String(), n.Addr6.String())
	if err := p.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		if !p.Running() {
			k.t.Errorf("the endpoint %s ended by itself: %s\n%s", n.Name, p.Ending(), p.LogEnd(4<<10))
		}
		p.Kill()
	})
}

// TestEndpoint is the process of an endpoint. Its input is a name and the addresses to serve. It
// runs until it is killed.
func TestEndpoint(t *testing.T) {
	if flag.NArg() == 0 {
		return
	}
	n := netlab.Here(t, flag.Arg(0), netip.Addr{}, netip.Addr{})
	for _, addr := range flag.Args()[1:] {
		n.Serve("tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 8080))
	}
	select {}
}

// slices applies the EndpointSlices of a Service, one of each family, with these
// backends. A number is a backend's; "1 terminating" still serves.
func (k *kube) slices(service string, backends ...string) {
	k.t.Helper()
	four, six := kubetest.EndpointSlice("default", service, 8080), kubetest.EndpointSlice("default", service, 8080)
	six = strings.Replace(strings.Replace(six, "addressType: IPv4", "addressType: IPv6", 1),
		fmt.Sprintf("name: %q,", service), fmt.Sprintf("name: %q,", service+"-six"), 1)
	var fours, sixes []string
	for _, b := range backends {
		n := k.lab.Backends[b[0]-'1']
		conditions := "ready: true, serving: true, terminating: false"
		if strings.HasSuffix(b, " terminating") {
			conditions = "ready: false, serving: true, terminating: true"
		}
		one := "{addresses: [%q], nodeName: %q, conditions: {" + conditions + "}}"
		fours = append(fours, fmt.Sprintf(one, n.Addr4, "node"+b[:1]))
		sixes = append(sixes, fmt.Sprintf(one, n.Addr6, "node"+b[:1]))
	}
	const none = "endpoints: []"
	k.cluster.Apply(k.t, strings.Replace(four, none, "endpoints: ["+strings.Join(fours, ", ")+"]", 1)+
		strings.Replace(six, none, "endpoints: ["+strings.Join(sixes, ", ")+"]", 1))
}

// both waits until exactly these backends answer the client at both addresses.
func (k *kube) both(vips []string, names ...string) {
	k.t.Helper()
	for _, vip := range vips {
		k.reaches(k.lab.Client, "tcp", vip, 80, names...)
	}
}

// open connects to an address until that backend has the connection.
func (k *kube) open(vip, name string) *netlab.Conn {
	k.t.Helper()
	var open *netlab.Conn
	k.eventually("a connection to "+name, func() error {
		c, err := k.lab.Client.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), 80))
		if err != nil {
			return err
		}
		a, err := c.Ask()
		if err != nil || a.Name != name {
			c.Close()
			return fmt.Errorf("%s %v", a.Name, err)
		}
		open = c
		return nil
	})
	return open
}

// goesOn sends requests on an open connection and on new ones.
func (k *kube) goesOn(when string, open *netlab.Conn, name string, vips []string) {
	k.t.Helper()
	if a, err := open.Ask(); err != nil || a.Name != name {
		k.t.Errorf("%s: an open connection to %s: %v %v", when, name, a, err)
	}
	for _, vip := range vips {
		for range 3 {
			if _, err := k.asks(vip); err != nil {
				k.t.Errorf("%s: %s: %v", when, vip, err)
			}
		}
	}
}

// programmed returns a Service's state in the kernel: the route to its address, and its IPVS services.
func (k *kube) programmed(vip string) string {
	k.t.Helper()
	var out strings.Builder
	for _, line := range []string{"ipvsadm -Sn", "ip -4 route show table local proto 178", "ip -6 route show table local proto 178"} {
		for l := range strings.Lines(sees(k.t, k.lab.Director, line)) {
			if strings.Contains(l, "local "+vip+" ") || strings.Contains(l, vip+":80 ") || strings.Contains(l, "["+vip+"]:80 ") {
				out.WriteString(l)
			}
		}
	}
	return out.String()
}

// gone waits until a Service is deleted: in the cluster, then in the kernel.
func (k *kube) gone(name string, vips []string) {
	k.t.Helper()
	k.eventually(name+" is gone", func() error {
		if s, err := k.object(name); err != nil || s != nil {
			return fmt.Errorf("%v %v", s, err)
		}
		return nil
	})
	for _, vip := range vips {
		// The finalizer is removed when no backend takes new connections. Open connections may
		// still drain.
		for l := range strings.Lines(k.programmed(vip)) {
			if strings.HasPrefix(l, "-a ") && !strings.Contains(l, " -w 0") {
				k.t.Errorf("%s is deleted, and in the kernel is\n%s", name, l)
			}
		}
		k.silent(vip)
		k.eventually(vip+" is withdrawn", func() error {
			if left := k.programmed(vip); left != "" {
				return fmt.Errorf("%s", left)
			}
			return nil
		})
	}
}

// hurries makes a Service's drains short from now on.
func (k *kube) hurries(name string) {
	k.t.Helper()
	k.cluster.Patch(k.t, services+name, `{"metadata": {"annotations": {"ironvip.io/drain-timeout": "1s"}}}`)
	k.eventually("drains are short", func() error {
		_, tree := k.rest("GET", "/v1/services/default/"+name, "")
		if spec, _ := tree["spec"].(map[string]any); spec["drain_timeout"] != "1s" {
			return fmt.Errorf("%v", tree)
		}
		return nil
	})
}

const dualStack = "  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv6, IPv4]\n"

// A Service of a real cluster gets its VIPs in its status. The kernel's IPVS carries its traffic,
// in both families, to the processes of its endpoints. It follows them as they are added, terminate
// and are removed, until the Service is deleted.
func TestKubernetesOnIPVS(t *testing.T) {
	k := onIPVS(t)
	k.start()
	k.cluster.Apply(t, loadBalancer("web", ourClass, dualStack))
	k.slices("web", "1", "2")
	vips := k.ingress("web", 2)
	if !netip.MustParseAddr(vips[0]).Is6() || !netip.MustParseAddr(vips[1]).Is4() {
		t.Errorf("the status has %v, not in the order of ipFamilies", vips)
	}
	k.both(vips, "backend1", "backend2")
	for i, service := range []string{"-A -t [" + vips[0] + "]:80 ", "-A -t " + vips[1] + ":80 "} {
		mentions(t, "IPVS", k.programmed(vips[i]), service)
	}
	k.slices("web", "1", "2", "3")
	k.both(vips, "backend1", "backend2", "backend3")
	open := k.open(vips[1], "backend1")
	k.slices("web", "1 terminating", "2", "3")
	k.both(vips, "backend2", "backend3")
	k.goesOn("while its endpoint terminates", open, "backend1", vips)
	k.slices("web", "1 terminating")
	k.both(vips, "backend1") // there is no other backend
	k.slices("web", "2", "3")
	k.both(vips, "backend2", "backend3")
	k.goesOn("when its endpoint has left", open, "backend1", vips)
	k.slices("web")
	for _, vip := range vips {
		k.silent(vip)
	}
	k.slices("web", "1", "2", "3")
	k.both(vips, "backend1", "backend2", "backend3")

	k.hurries("web")
	k.cluster.Delete(t, services+"web")
	k.gone("web", vips)
	k.eventually("nothing is left in IPVS", func() error {
		if out := sees(t, k.lab.Director, "ipvsadm -Sn"); out != "" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}
