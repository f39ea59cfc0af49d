//go:build linux

package scenario

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/connect"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipvs/probepath"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// place is the origin of a request, or the server that answers. The client has several addresses:
// see other.
type place string

// answer is a server's answer.
type answer = netlab.Answer

const (
	client   place = "client" // outside
	pod      place = "pod"    // inside the pod ranges
	director place = "director"
	b1       place = "backend1"
	b2       place = "backend2"
	b3       place = "backend3"
)

// other returns the client with its n-th other address.
func other(n int) place { return place(fmt.Sprintf("%s/%d", client, n)) }

// The ports of the lab's servers. They are unlikely numbers, because on loopback the host's own
// processes also listen.
const (
	backendPort = 7081 // on each backend's address, and the director's
	hostPort    = 7022 // on all addresses of the director, if the lab is isolated
)

// lab is the environment of a dataplane: nodes with servers, and their addresses.
type lab struct {
	dataplane *dataplane
	nodes     map[place]*netlab.Node
	addrs     []netip.Addr                                // the director's: the addresses that backends see if a client's address is replaced
	pool      func(n int, family vip.Family) netip.Prefix // of the n-th scenario
	others    func(n int, family vip.Family) netip.Addr   // the client's other addresses
	host      *table.Table[struct{}, hostnet.Snapshot]    // the director's addresses
	nodePorts []netip.Prefix
	// isolated states that each node is a separate host, with IPv6 and with sockets on all of its
	// addresses. Otherwise nodes are loopback addresses, and clients must bind to theirs.
	isolated bool
	// onlyIsolated leaves out the scenarios that need no separate hosts.
	onlyIsolated bool
	// lacks are the kernel modules that this kernel need not have: it leaves out their scenarios.
	lacks []string
	// skLookup makes clients reach the userspace dataplane by sk_lookup.
	skLookup bool
	// cgroup is where programs are balanced at connect(), beside the dataplane; "": nowhere.
	cgroup string
	runs   int
}

// families returns the families of the lab.
func (l *lab) families() []vip.Family {
	if l.isolated {
		return []vip.Family{vip.IPv4, vip.IPv6}
	}
	return []vip.Family{vip.IPv4}
}

// addr returns the address of a place.
func (l *lab) addr(p place, family vip.Family) netip.Addr {
	if _, n, is := strings.Cut(string(p), "/"); is {
		var i int
		fmt.Sscan(n, &i)
		return l.others(i, family)
	}
	n := l.nodes[p]
	if n == nil {
		panic("no place " + p)
	}
	if family == vip.IPv6 {
		return n.Addr6
	}
	return n.Addr4
}

// is reports whether a is an address of p, as servers see it.
func (l *lab) is(a netip.Addr, p place) bool {
	if p == director && slices.Contains(l.addrs, a) {
		return true
	}
	return a == l.addr(p, vip.FamilyOf(a))
}

// subnet returns the range around a place.
func (l *lab) subnet(p place, family vip.Family) netip.Prefix {
	a := l.addr(p, family)
	bits := a.BitLen()
	switch {
	case !l.isolated:
	case family == vip.IPv6:
		bits = 64
	default:
		bits = 24
	}
	return netip.PrefixFrom(a, bits).Masked()
}

// dial connects from a place, with t for failures.
func (l *lab) dial(t testing.TB, from place, network string, to netip.AddrPort) (*netlab.Conn, error) {
	name, _, bound := strings.Cut(string(from), "/")
	var source netip.Addr
	if bound || !l.isolated {
		source = l.addr(from, vip.FamilyOf(to.Addr()))
	}
	return l.nodes[place(name)].For(t).DialFrom(network, source, to)
}

// serve starts the servers that every scenario uses.
func (l *lab) serve() {
	for _, p := range []place{b1, b2, b3, director} {
		for _, family := range l.families() {
			for _, network := range []string{"tcp", "udp"} {
				l.nodes[p].Serve(network, netip.AddrPortFrom(l.addr(p, family), backendPort))
			}
		}
	}
	if l.isolated {
		for _, network := range []string{"tcp", "udp"} {
			l.nodes[director].Serve(network, netip.AddrPortFrom(netip.IPv6Unspecified(), hostPort))
		}
	}
}

// newLoopback creates a lab in 127.0.0.0/8: it needs no privileges and has only IPv4. Two processes
// have different addresses.
func newLoopback(t *testing.T, d *dataplane) *lab {
	nodes, pools := byte(64+2*(os.Getpid()%90)), byte(65+2*(os.Getpid()%90))
	l := &lab{
		dataplane: d,
		nodes:     map[place]*netlab.Node{},
		addrs:     []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.AddrFrom4([4]byte{127, nodes, 0, 1})},
		pool: func(n int, _ vip.Family) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{127, pools, byte(n), 0}), 24)
		},
		others: func(n int, _ vip.Family) netip.Addr { return netip.AddrFrom4([4]byte{127, nodes, 200, byte(n + 1)}) },
	}
	for i, p := range []place{director, client, pod, b1, b2, b3} {
		l.nodes[p] = netlab.Here(t, string(p), netip.AddrFrom4([4]byte{127, nodes, byte(i), 1}), netip.Addr{})
	}
	own := netip.PrefixFrom(l.nodes[director].Addr4, 32)
	l.nodePorts = []netip.Prefix{own}
	l.host = table.New(table.NewClock(time.Now()), hostnet.KeyOf, hostnet.Same)
	l.host.Set(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: own, Link: "lo"}}})
	l.serve()
	return l
}

// newNamespaces creates a lab of network namespaces with this process's own as the director. All of
// it ends with the test.
func newNamespaces(t *testing.T, d *dataplane) *lab {
	n := netlab.NewHere(t)
	n.AddBackend()
	l := &lab{
		dataplane: d,
		isolated:  true,
		nodes: map[place]*netlab.Node{
			director: n.Director, client: n.Client, pod: n.AddClient(string(pod)),
			b1: n.Backends[0], b2: n.Backends[1], b3: n.Backends[2],
		},
		pool: func(n int, family vip.Family) netip.Prefix {
			if family == vip.IPv6 {
				return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x96, 5: byte(n)}), 64)
			}
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, byte(n), 0}), 24)
		},
		others: func(n int, family vip.Family) netip.Addr {
			if family == vip.IPv6 {
				return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x78, 15: byte(n + 1)})
			}
			return netip.AddrFrom4([4]byte{10, 78, 0, byte(n + 1)})
		},
	}
	for range_, via := range map[string]netip.Addr{"10.78.0.0/24": n.Client.Addr4, "fd78::/64": n.Client.Addr6} {
		n.Client.Holds(netip.MustParsePrefix(range_))
		n.Director.Via(netip.MustParsePrefix(range_), via)
	}
	if d == userspace {
		// Some kernels have no dummy devices, so the director gets all of the proxy's addresses as
		// local ones. For IPv6 this needs this setting besides a route.
		n.Director.Sysctl("ipv6/ip_nonlocal_bind", "1")
		for _, p := range []string{"10.96.0.0/16", "fd96::/32"} {
			n.Director.Holds(netip.MustParsePrefix(p))
		}
	}
	l.host = table.New(table.NewClock(time.Now()), hostnet.KeyOf, hostnet.Same)
	watcher := hostnet.NewWatcher(l.host, func(link string, _ netip.Addr) bool { return link == device }, slog.New(slog.DiscardHandler))
	watch := start(watcher.Run)
	t.Cleanup(func() { watch.stop(t, "the watcher of addresses") })
	<-l.host.Ready()
	snapshot, _, _ := l.host.Get(struct{}{})
	for _, a := range snapshot.Addrs {
		l.addrs = append(l.addrs, a.Prefix.Addr())
	}
	l.serve()
	l.resolve(t)
	return l
}

// resolve waits until the director reaches the backends. The first packet on a new link can be lost,
// and a lost one takes a second: too long for a health check.
func (l *lab) resolve(t *testing.T) {
	for _, p := range []place{b1, b2, b3} {
		for _, family := range l.families() {
			at := netip.AddrPortFrom(l.addr(p, family), backendPort)
			wait.For(t, fmt.Sprintf("the director reaches %s", at), func() error {
				_, err := l.nodes[director].Ask("tcp", at)
				return err
			})
		}
	}
}

// device is the dataplanes' device for virtual addresses, probes the table of paths of probes.
const (
	device = "ironvip0"
	probes = "ironvip_probes"
)

// owns reports whether an address is in the pool of any scenario.
func (l *lab) owns(a netip.Addr) bool {
	family := vip.FamilyOf(a)
	for n := range l.runs + 1 {
		if l.pool(n, family).Contains(a) {
			return true
		}
	}
	return false
}

// own reports whether an address is the director's, as in the agent.
func (l *lab) own(a netip.Addr) bool {
	return slices.Contains(l.addrs, a) || a.IsLoopback() && l.isolated
}

// startDirector starts the director's agent.
func (l *lab) startDirector(t testing.TB, h *hub, pods, nodePorts []netip.Prefix) (*host, error) {
	p, err := l.dataplane.open(l, pods)
	if err != nil {
		return nil, err
	}
	if l.cgroup != "" {
		p = connecting{p, must.Get(connect.Open(connect.Options{Cgroup: l.cgroup, Host: "here"}))(t)}
	}
	var paths *probepath.Target
	if l.dataplane == kernel { // the others refuse what needs paths
		if paths, err = probepath.New(probepath.Options{Table: probes}); err != nil {
			return nil, err
		}
	}
	return h.startHost(t, p, paths, compile.Node{Name: "here", Zone: "za"}, l.host, nodePorts), nil
}

// sweep removes what a scenario left, in the same way as a new agent without services, and checks
// that nothing is left.
func (l *lab) sweep(t testing.TB, pods []netip.Prefix) {
	t.Helper()
	h := newHub([]netip.Prefix{l.pool(l.runs, vip.IPv4)}, nil)
	m := must.Get(l.startDirector(t, h, pods, l.nodePorts))(t)
	select {
	case <-m.Loop.Synced():
	case <-time.After(maxWait):
		t.Error("the sweep takes too long")
	}
	if m.paths != nil {
		select {
		case <-m.paths.Synced():
		case <-time.After(maxWait):
			t.Error("the sweep of paths takes too long")
		}
	}
	m.stages.stop(t, "the host's pipeline")
	defer m.plane.Close()
	if m.paths != nil {
		if left, n, err := probepath.Find(context.Background(), probepath.Options{Table: probes}); err != nil || left != nil {
			t.Errorf("left behind: %d paths, %v", n, err)
		}
	}
	for o, err := range m.plane.Actual(context.Background()) {
		t.Errorf("left behind: %s %v", o.Value.Key, err)
	}
}
