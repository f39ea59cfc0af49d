//go:build linux

// Package netlab creates a small network for a test: a client, a director and backends. Each is in
// its own network namespace, with real addresses, routes, sockets and servers that answer with
// their name.
//
//	client eth0 ---- client  director  backend1 ---- eth0 backend1
//	                                   backend2 ---- eth0 backend2
//
// The director forwards, and is every node's default route in both families, so replies of a
// backend pass through it, as NAT requires. Its input is a testing.TB. Everything is removed at the
// end of that test. It needs root, and only veth and IPv6 from the kernel. It changes nothing
// outside its namespaces.
package netlab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// Lab is one network. New and AddBackend set up its nodes, which don't change later. Nodes may be
// used from several goroutines. AddBackend may not be called concurrently.
type Lab struct {
	Client   *Node
	Director *Node
	Backends []*Node
	t        testing.TB
	links    int // from the director, for the subnet numbers
}

// Node is one namespace. The director's addresses are those on the client's side.
type Node struct {
	Name    string
	Addr4   netip.Addr
	Addr6   netip.Addr
	Netlink *netlink.Handle // routing netlink inside the namespace
	t       testing.TB
	ns      netns.NsHandle
}

// New creates a client, a director and two backends, named client, director, backend1 and backend2.
// Link number n, where the client's is 0, has the subnets 10.77.n.0/24 and fd77:n::/64. The
// director is .1 and ::1 in each, and the other end is 2.
func New(t testing.TB) *Lab {
	t.Helper()
	need.Root(t)
	return newLab(t, newNode(t, "director"))
}

// NewHere is New with the process's namespace as the director, so that its goroutines need no Do.
// It is for a process that was started in its own namespace: what the links leave is deleted with
// that.
func NewHere(t testing.TB) *Lab {
	t.Helper()
	need.Root(t)
	n := &Node{Name: "director", t: t}
	var err error
	n.ns, err = netns.Get()
	must(t, "director: the current namespace", err)
	t.Cleanup(func() { n.ns.Close() })
	n.Netlink, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, "director: netlink", err)
	t.Cleanup(n.Netlink.Close)
	n.prepare()
	return newLab(t, n)
}

// Here returns a node without a namespace of its own. It is a name and addresses of this namespace,
// for example loopback addresses. Its Netlink is nil.
func Here(t testing.TB, name string, addr4, addr6 netip.Addr) *Node {
	return &Node{Name: name, Addr4: addr4, Addr6: addr6, t: t, ns: netns.None()}
}

// For returns the node with t for its failures and servers, where t is a subtest of the test that
// created it.
func (n *Node) For(t testing.TB) *Node {
	c := *n
	c.t = t
	return &c
}

func newLab(t testing.TB, director *Node) *Lab {
	t.Helper()
	l := &Lab{t: t, Director: director}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		l.Director.Sysctl(key, "1")
	}
	l.Client = l.join("client")
	l.Director.Addr4, l.Director.Addr6 = gateway(0)
	l.AddBackend()
	l.AddBackend()
	return l
}

// AddBackend adds a backend with the next number.
func (l *Lab) AddBackend() *Node {
	l.t.Helper()
	n := l.join(fmt.Sprintf("backend%d", len(l.Backends)+1))
	l.Backends = append(l.Backends, n)
	return n
}

// AddClient adds a client on its own link.
func (l *Lab) AddClient(name string) *Node {
	l.t.Helper()
	return l.join(name)
}

// join creates a node at the end of a new link from the director. The director's end has the node's
// name.
func (l *Lab) join(name string) *Node {
	l.t.Helper()
	n := newNode(l.t, name)
	number := l.links
	l.links++
	gw4, gw6 := gateway(number)
	n.Addr4, n.Addr6 = gw4.Next(), gw6.Next()

	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: netlink.NsFd(int(n.ns))}
	veth.Name = name
	must(l.t, "veth to "+name, l.Director.Netlink.LinkAdd(veth))
	// A reply of a backend that itself holds the VIP (direct routing, tunnels) arrives through the
	// director from an address that the director holds too. Without these two settings it is a
	// martian there.
	l.Director.Sysctl("ipv4/conf/"+name+"/accept_local", "1")
	l.Director.Sysctl("ipv4/conf/"+name+"/rp_filter", "0")
	for _, end := range []struct {
		node *Node
		dev  string
		a, b netip.Addr
	}{{l.Director, name, gw4, gw6}, {n, "eth0", n.Addr4, n.Addr6}} {
		end.node.up(end.dev)
		end.node.AddAddr(end.dev, netip.PrefixFrom(end.a, 24))
		end.node.AddAddr(end.dev, netip.PrefixFrom(end.b, 64))
	}
	l.Director.carries(name)
	n.carries("eth0")
	for _, gw := range []netip.Addr{gw4, gw6} {
		must(l.t, name+": default route", n.Netlink.RouteAdd(&netlink.Route{Gw: gw.AsSlice()}))
	}
	return n
}

// gateway returns the director's addresses on a link.
func gateway(number int) (netip.Addr, netip.Addr) {
	return netip.AddrFrom4([4]byte{10, 77, byte(number), 1}),
		netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 3: byte(number), 15: 1})
}

func newNode(t testing.TB, name string) *Node {
	t.Helper()
	n := &Node{Name: name, t: t, ns: netns.None()}
	// netns.New moves the calling thread. inside moves it back.
	inside(t, netns.None(), func() {
		ns, err := netns.New()
		must(t, name+": new namespace", err)
		n.ns = ns
	})
	t.Cleanup(func() { n.ns.Close() })
	h, err := netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE)
	must(t, name+": netlink", err)
	t.Cleanup(h.Close)
	n.Netlink = h
	n.prepare()
	return n
}

// prepare configures a new namespace for a lab.
func (n *Node) prepare() {
	n.t.Helper()
	n.up("lo")
	// Devices that come up later need not wait a second for duplicate address detection.
	n.Sysctl("ipv6/conf/default/accept_dad", "0")
	n.Sysctl("ipv4/conf/all/rp_filter", "0") // some distributions set it; the stricter of all and the device's counts
	// A closed connection whose other end is unreachable would otherwise repeat its end for more than a
	// minute, and keep the namespace and the modules in use for so long.
	n.Sysctl("ipv4/tcp_orphan_retries", "1")
	// Refused datagrams are reported by ICMP errors. By default the kernel limits their rate for
	// each receiver.
	n.Sysctl("ipv4/icmp_ratelimit", "0")
	n.Sysctl("ipv6/icmp/ratelimit", "0")
}

// Do runs f inside the node's namespace, in the caller's goroutine, so f may call t.Fatal. Sockets
// and netlink handles opened in f stay in the namespace. Programs started in f run in it, but
// goroutines started in f don't. Do may nest.
func (n *Node) Do(f func()) {
	n.t.Helper()
	if !n.ns.IsOpen() { // the caller's namespace; entering it would need root
		f()
		return
	}
	inside(n.t, n.ns, f)
}

// inside runs f with its thread in ns, or anywhere if ns is none. It restores the thread's
// namespace, also if f panics or ends its goroutine.
func inside(t testing.TB, ns netns.NsHandle, f func()) {
	t.Helper()
	runtime.LockOSThread()
	old, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		must(t, "the current namespace", err)
	}
	defer func() {
		err := netns.Set(old)
		old.Close()
		if err != nil {
			// The thread remains locked. It ends with this goroutine, and nothing else runs in a
			// wrong namespace.
			t.Errorf("netlab: back to the old namespace: %v", err)
			return
		}
		runtime.UnlockOSThread()
	}()
	if ns.IsOpen() {
		must(t, "enter the namespace", netns.Set(ns))
	}
	f()
}

// AddAddr adds an address to a device of the node: "eth0", "lo", or, on the director, a device
// named after the other end. An IPv6 address is usable at once.
func (n *Node) AddAddr(dev string, p netip.Prefix) {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	must(n.t, fmt.Sprintf("%s: address %v on %s", n.Name, p, dev), n.Netlink.AddrAdd(link, addr))
	if p.Addr().Is6() && link.Attrs().Flags&net.FlagUp != 0 && link.Attrs().MasterIndex == 0 { // work in the background makes it local; a VRF has a table of its own
		wait.Until(n.t, fmt.Sprintf("%s: %v is local", n.Name, p.Addr()), func() bool {
			routes, err := n.Netlink.RouteGet(p.Addr().AsSlice())
			return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
		})
	}
}

// Holds makes every address of a range local to the node, for sockets that bind to it.
func (n *Node) Holds(p netip.Prefix) {
	n.t.Helper()
	lo, err := n.Netlink.LinkByName("lo")
	must(n.t, n.Name+": device lo", err)
	must(n.t, fmt.Sprintf("%s: hold %v", n.Name, p), n.Netlink.RouteAdd(&netlink.Route{
		Dst: ipNet(p), LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	}))
}

// Deliver and Bounce add and remove the route by which the kernel takes packets for an address of a
// device. Without it, the node doesn't serve the address, although the device has it.
func (n *Node) Deliver(dev string, p netip.Prefix) { n.local(dev, p, (*netlink.Handle).RouteAdd) }
func (n *Node) Bounce(dev string, p netip.Prefix)  { n.local(dev, p, (*netlink.Handle).RouteDel) }

func (n *Node) local(dev string, p netip.Prefix, change func(*netlink.Handle, *netlink.Route) error) {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	route := &netlink.Route{Dst: ipNet(p), LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL}
	if p.Addr().Is4() {
		route.Scope = netlink.SCOPE_HOST
	}
	must(n.t, fmt.Sprintf("%s: local route to %v", n.Name, p), change(n.Netlink, route))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// DelAddr removes an address from a device.
func (n *Node) DelAddr(dev string, p netip.Prefix) {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	must(n.t, fmt.Sprintf("%s: take %v off %s", n.Name, p, dev), n.Netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(p)}))
}

// Sysctl sets a key below /proc/sys/net, for example "ipv4/vs/conntrack", in the node's namespace.
func (n *Node) Sysctl(key, value string) {
	n.t.Helper()
	n.Do(func() {
		must(n.t, n.Name+": sysctl", os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644))
	})
}

func (n *Node) up(dev string) {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	must(n.t, n.Name+": "+dev+" up", n.Netlink.LinkSetUp(link))
}

// carries waits until a device that is up carries frames. The kernel gets there soon after both ends of
// the link are up, by work in the background, and drops frames until then.
func (n *Node) carries(dev string) {
	n.t.Helper()
	wait.Until(n.t, n.Name+": "+dev+" carries frames", func() bool {
		link, err := n.Netlink.LinkByName(dev)
		must(n.t, n.Name+": device "+dev, err)
		return link.Attrs().OperState == netlink.OperUp
	})
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("netlab: %s: %v", what, err)
	}
}
