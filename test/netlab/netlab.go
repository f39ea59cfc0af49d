//go:build linux

// Package netlab gives a test a small network of its own: a client, a director and backends, each in its own network
// namespace, with real addresses, routes, sockets and servers that say who they are.
//
//	client eth0 ---- client  director  backend1 ---- eth0 backend1
//	                                   backend2 ---- eth0 backend2
//
// The director forwards, and is everyone's default route by both families, so answers of a backend pass through it,
// as NAT needs. In goes a testing.TB; all is gone at the end of that test. It needs root, and of the kernel only veth
// and IPv6; it touches nothing outside of its namespaces.
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
)

// Lab is one network. Its nodes are set up by New and AddBackend and not changed later; they may be used from several
// goroutines, AddBackend may not.
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

// New makes a client, a director and two backends, named client, director, backend1 and backend2. Link number n, the
// client's is 0, has the subnets 10.77.n.0/24 and fd77:n::/64; the director is .1 and ::1 in each, the other end 2.
func New(t testing.TB) *Lab {
	t.Helper()
	need.Root(t)
	return newLab(t, newNode(t, "director"))
}

// NewHere is New with the namespace that the process is in as the director, so that its goroutines need no Do. It is
// for a process that was started in a namespace of its own: what the lab's links leave behind goes with that.
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

// Here returns a node that is no namespace of its own but a name and addresses of this one, such as loopback's. Its
// Netlink is nil.
func Here(t testing.TB, name string, addr4, addr6 netip.Addr) *Node {
	return &Node{Name: name, Addr4: addr4, Addr6: addr6, t: t, ns: netns.None()}
}

// For returns the node as one whose failures and servers are those of t, a subtest of the test that made it.
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

// AddBackend adds one more backend, with the next number.
func (l *Lab) AddBackend() *Node {
	l.t.Helper()
	n := l.join(fmt.Sprintf("backend%d", len(l.Backends)+1))
	l.Backends = append(l.Backends, n)
	return n
}

// AddClient adds one more client, on a link of its own.
func (l *Lab) AddClient(name string) *Node {
	l.t.Helper()
	return l.join(name)
}

// join makes a node at the end of a new link from the director; the director's end has the node's name.
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
	// A reply of a backend that holds the VIP itself (direct routing, tunnels) comes by way of the director, from an
	// address the director holds too: without these two it is a martian there.
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
	for _, gw := range []netip.Addr{gw4, gw6} {
		must(l.t, name+": default route", n.Netlink.RouteAdd(&netlink.Route{Gw: gw.AsSlice()}))
	}
	return n
}

// gateway is the director's addresses on a link.
func gateway(number int) (netip.Addr, netip.Addr) {
	return netip.AddrFrom4([4]byte{10, 77, byte(number), 1}),
		netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 3: byte(number), 15: 1})
}

func newNode(t testing.TB, name string) *Node {
	t.Helper()
	n := &Node{Name: name, t: t, ns: netns.None()}
	// netns.New moves the calling thread; what inside does is move it back.
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

// prepare makes a new namespace fit for a lab.
func (n *Node) prepare() {
	n.t.Helper()
	n.up("lo")
	// What comes up later in this namespace needs no second of waiting for a duplicate that can't be.
	n.Sysctl("ipv6/conf/default/accept_dad", "0")
	n.Sysctl("ipv4/conf/all/rp_filter", "0") // some distributions set it; the stricter of all and the device's counts
	// Refused datagrams are told by ICMP errors, of which a kernel sends each receiver few.
	n.Sysctl("ipv4/icmp_ratelimit", "0")
	n.Sysctl("ipv6/icmp/ratelimit", "0")
}

// Do runs f inside the node's namespace, in the caller's goroutine: t.Fatal works, sockets and netlink handles opened
// in it stay in the namespace, programs started in it run there. Goroutines started in it do not. Do may nest.
func (n *Node) Do(f func()) {
	n.t.Helper()
	if !n.ns.IsOpen() { // it is where the caller is, and going there would take rights
		f()
		return
	}
	inside(n.t, n.ns, f)
}

// inside runs f with its thread in ns, or anywhere when that is none, and puts the thread back, also when f panics
// or ends its goroutine.
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
			// The thread stays locked, so it ends with this goroutine and nothing else ever runs in a wrong namespace.
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

// AddAddr adds an address to a device of the node ("eth0", "lo"; the director's are named for the other end). An IPv6
// address is usable at once.
func (n *Node) AddAddr(dev string, p netip.Prefix) {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	addr := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	must(n.t, fmt.Sprintf("%s: address %v on %s", n.Name, p, dev), n.Netlink.AddrAdd(link, addr))
}

// Holds makes every address of a range the node's own, for sockets that bind to it.
func (n *Node) Holds(p netip.Prefix) {
	n.t.Helper()
	lo, err := n.Netlink.LinkByName("lo")
	must(n.t, n.Name+": device lo", err)
	must(n.t, fmt.Sprintf("%s: hold %v", n.Name, p), n.Netlink.RouteAdd(&netlink.Route{
		Dst: ipNet(p), LinkIndex: lo.Attrs().Index, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
	}))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// DelAddr takes an address off a device again.
func (n *Node) DelAddr(dev string, p netip.Prefix) {
	n.t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(n.t, n.Name+": device "+dev, err)
	must(n.t, fmt.Sprintf("%s: take %v off %s", n.Name, p, dev), n.Netlink.AddrDel(link, &netlink.Addr{IPNet: ipNet(p)}))
}

// Sysctl sets a key below /proc/sys/net, such as "ipv4/vs/conntrack", in the node's namespace.
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

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("netlab: %s: %v", what, err)
	}
}
