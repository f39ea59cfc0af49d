//go:build vm && system

package program

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
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
	k := &kube{host: h, lab: l, cluster: kubetest.Borrow(t, os.Getenv("IRONVIP_KUBETEST"), host, l.Director)}
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

// connections returns the kernel's count of IPVS connections to each backend of an address. The
// kernel counts them some seconds late.
func (k *kube) connections(at netip.AddrPort) map[string]int {
	k.t.Helper()
	counts := map[string]int{}
	// Prot LocalAddress:Port Conns ...; -> RemoteAddress:Port Conns ...
	for line := range strings.Lines(sees(k.t, k.lab.Director, "ipvsadm -Ln --stats --exact -t "+at.String())) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "->" {
			continue
		}
		for _, n := range k.lab.Backends {
			if words[1] == netip.AddrPortFrom(n.Addr4, 8080).String() || words[1] == netip.AddrPortFrom(n.Addr6, 8080).String() {
				var many int
				if _, err := fmt.Sscan(words[2], &many); err != nil {
					k.t.Fatalf("%v: %s", err, line)
				}
				counts[n.Name] = many
			}
		}
	}
	return counts
}

// carries makes connections to addresses without earlier connections until these backends have
// answered, and compares the answers with the counts of IPVS.
func (k *kube) carries(vips []string, names ...string) {
	k.t.Helper()
	for _, vip := range vips {
		answers, tries := map[string]int{}, 0
		k.eventually(fmt.Sprintf("%v answer at %s", names, vip), func() error {
			tries++
			name, err := k.asks(vip)
			if err != nil {
				return err
			}
			answers[name]++
			for _, name := range names {
				if answers[name] == 0 {
					return fmt.Errorf("%v", answers)
				}
			}
			return nil
		})
		k.eventually("IPVS has counted the connections to "+vip, func() error {
			counts, sum := k.connections(netip.AddrPortFrom(netip.MustParseAddr(vip), 80)), 0
			for name, many := range counts {
				if sum += many; many < answers[name] {
					return fmt.Errorf("%v, answered %v", counts, answers)
				}
			}
			if sum < len(names) || sum > tries {
				return fmt.Errorf("%v for %d connections", counts, tries)
			}
			return nil
		})
	}
}

// programmed returns a Service's state in the kernel: its address, and its IPVS services.
func (k *kube) programmed(vip string) string {
	k.t.Helper()
	var out strings.Builder
	for _, line := range []string{"ipvsadm -Sn", "ip -o addr show"} {
		for l := range strings.Lines(sees(k.t, k.lab.Director, line)) {
			if strings.Contains(l, vip+"/") || strings.Contains(l, vip+":80 ") || strings.Contains(l, "["+vip+"]:80 ") {
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

// ours returns everything of the agent in the kernel.
func (k *kube) ours() map[string]string {
	k.t.Helper()
	all := map[string]string{}
	for _, line := range []string{"ipvsadm -Sn", "nft list ruleset", "ip -o addr show ironvip0"} {
		all[line] = planetest.Lasting(sees(k.t, k.lab.Director, line))
	}
	return all
}

const dualStack = "  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv6, IPv4]\n"

// A Service of a real cluster gets its VIPs in its status. The kernel's IPVS carries its traffic,
// in both families, to the processes of its endpoints. It follows them as they are added, terminate
// and are removed, and the Service's policies, until the Service is deleted.
func TestKubernetesOnIPVS(t *testing.T) {
	k := onIPVS(t)
	k.source(nodeSource)
	k.start()
	k.cluster.Apply(t, loadBalancer("web", ourClass, dualStack))
	k.slices("web", "1", "2")
	vips := k.ingress("web", 2)
	if !netip.MustParseAddr(vips[0]).Is6() || !netip.MustParseAddr(vips[1]).Is4() {
		t.Errorf("the status has %v, not in the order of ipFamilies", vips)
	}
	var lease struct {
		Spec struct{ HolderIdentity string }
	}
	k.cluster.Get(t, "/apis/coordination.k8s.io/v1/namespaces/ironvip/leases/ironvip", &lease)
	if lease.Spec.HolderIdentity != "lb1" {
		t.Errorf("the Lease is held by %q", lease.Spec.HolderIdentity)
	}
	k.carries(vips, "backend1", "backend2")
	k.hasEvent("web", "Allocated", vips[0], 1)

	// Endpoints are added and removed.
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

	k.local(vips)
	k.nodePorts()

	k.hurries("web")
	k.cluster.Delete(t, services+"far")
	k.cluster.Delete(t, services+"web")
	k.gone("web", vips)
	k.eventually("nothing is left in IPVS", func() error {
		if out := sees(t, k.lab.Director, "ipvsadm -Sn"); out != "" {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// local: with the policy Local, a host that is a node of the cluster uses only its own endpoints,
// which see the clients' addresses. A host that is not a node uses all endpoints.
func (k *kube) local(vips []string) {
	k.t.Helper()
	k.cluster.Patch(k.t, services+"web", `{"spec": {"externalTrafficPolicy": "Local"}}`)
	k.edit("ironvip.toml", `name = "lb1"`, `name = "node1"`)
	k.stop()
	k.start()
	k.both(vips, "backend1", "backend2", "backend3")
	const node = "/api/v1/nodes/node1"
	k.cluster.Apply(k.t, kubetest.Node("node1", "", k.lab.Backends[0].Addr4))
	k.both(vips, "backend1")
	client := k.lab.Client
	for _, vip := range vips {
		// The masquerade ends after the other endpoints have left.
		k.eventually("the endpoint sees the client's address", func() error {
			a, err := client.Ask("tcp", netip.AddrPortFrom(netip.MustParseAddr(vip), 80))
			if seen := a.Client.Addr(); err != nil || !slices.Contains([]netip.Addr{client.Addr4, client.Addr6}, seen) {
				return fmt.Errorf("it sees %v: %v", seen, err)
			}
			return nil
		})
	}
	k.cluster.Delete(k.t, node)
	k.both(vips, "backend1", "backend2", "backend3")
}

// During every failure of the API server, of the network to it, or of the agent, the kernel's state
// remains. Changes during the failure are applied afterwards.
func TestKubernetesOnIPVSAway(t *testing.T) {
	k := onIPVS(t)
	k.start()
	k.cluster.Apply(t, loadBalancer("web", ourClass, dualStack))
	k.slices("web", "1", "2")
	vips := k.ingress("web", 2)
	k.both(vips, "backend1", "backend2")
	open := k.open(vips[0], "backend2")
	written, err := k.object("web")
	if err != nil {
		t.Fatal(err)
	}
	kernel, row := k.ours(), k.revision("web")
	steady := func(when string) {
		t.Helper()
		k.goesOn(when, open, "backend2", vips)
		same(t, when, k.ours(), kernel)
		if now := k.revision("web"); now != row {
			t.Errorf("%s: web was %s, is %s", when, row, now)
		}
	}

	k.cluster.API.Stall(t)
	k.stale("is noticed to be silent", true)
	steady("while the server is silent")
	k.cluster.API.Resume(t)
	k.stale("is in touch again", false)
	steady("when it is in touch again")

	k.wire(false)
	k.stale("is noticed to be out of reach", true)
	steady("while the way to the server is broken")
	k.wire(true)
	k.stale("is in reach again", false)
	steady("when it is in reach again")

	k.cluster.API.Kill(t)
	k.stale("is noticed to be away", true)
	k.stop()
	k.goesOn("without server and agent", open, "backend2", vips)
	k.start() // from its cache
	k.stale("can't be read from the start", true)
	steadyWrites := func(when string) {
		t.Helper()
		k.goesOn(when, open, "backend2", vips)
		same(t, when, k.ours(), kernel)
		if n := k.writes(); n != 0 {
			t.Errorf("%s: %v kernel writes", when, n)
		}
	}
	steadyWrites("after a start without the server")
	k.cluster.API.Start(t)
	k.cluster.API.WaitReady(t)
	k.stale("is there at last", false)
	k.status("OK", "sources", "kubernetes 1 service")
	steadyWrites("when the server is back")
	k.kill()
	k.start()
	steadyWrites("after kill -9")
	if now, err := k.object("web"); err != nil || now.ResourceVersion != written.ResourceVersion {
		t.Errorf("the Service was written to, with nothing to write: %v %+v", err, now)
	}

	k.slices("web", "3")
	k.both(vips, "backend3")
	if a, err := open.Ask(); err != nil || a.Name != "backend2" {
		t.Errorf("an open connection to an endpoint that left: %v %v", a, err)
	}

	// Deletions while no agent runs wait for the agent.
	k.hurries("web")
	k.stop()
	k.cluster.Delete(t, services+"web")
	if s, err := k.object("web"); err != nil || s == nil {
		t.Fatalf("deleted without the agent: %v %v", s, err)
	}
	k.both(vips, "backend3")
	k.start()
	k.gone("web", vips)
}

// Cluster IPs and node ports of a real cluster are those of IPVS.
func TestKubernetesOnIPVSAdopts(t *testing.T) {
	k := onIPVS(t)
	first, second := k.lab.Backends[0], k.lab.Backends[1]
	k.adopts([]netip.Addr{first.Addr4, second.Addr4}, []netip.Addr{first.Addr6, second.Addr6}, func(all ...netip.AddrPort) {
		for _, at := range all {
			k.eventually(fmt.Sprintf("IPVS has counted the connections to %s", at), func() error {
				if counts := k.connections(at); counts["backend1"] == 0 || counts["backend2"] == 0 {
					return fmt.Errorf("%v", counts)
				}
				return nil
			})
		}
	})
}

// wire connects the director and the VM's host, or cuts them apart.
func (k *kube) wire(up bool) {
	k.t.Helper()
	link, err := k.lab.Director.Netlink.LinkByName("eth0")
	if err != nil {
		k.t.Fatal(err)
	}
	set := k.lab.Director.Netlink.LinkSetDown
	if up {
		set = k.lab.Director.Netlink.LinkSetUp
	}
	if err := set(link); err != nil {
		k.t.Fatal(err)
	}
}
