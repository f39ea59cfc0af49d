package vips

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/proxytest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestForeignAddressWithoutRights(t *testing.T) {
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		p := newPlane(t, Options{Kernel: newFakeKernel().refusing(unix.EPERM).device()})
		key := vip.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Port: proxytest.FreeKey(t, "127.0.0.1", protocol).Port, Protocol: protocol}
		f := proxytest.OnVIP(key)
		var problem vip.Problem
		if err := p.apply(f); !errors.As(err, &problem) ||
			problem.Message != "203.0.113.10 is not an address of this host" ||
			problem.Hint != "run the agent with CAP_NET_ADMIN, or use a pool inside 127.0.0.0/8" {
			t.Errorf("%v, hint %q", err, problem.Hint)
		}
		// A node port is on the host's own addresses: no device and no hint about one.
		node := *f
		node.Kind = vip.OnHost
		if err := p.apply(&node); !errors.As(err, &problem) || problem.Hint != "" {
			t.Errorf("%v, hint %q", err, problem.Hint)
		}
	}
}

// A frontend with an address that isn't the host's is served as soon as the address is added to any
// device, although its next retry is half a minute later. A frontend that fails for another reason
// isn't retried more often.
func TestAddressThatComesIsServedAtOnce(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	lo := must.Get(netlink.LinkByName("lo"))(t)
	log := slog.New(slog.DiscardHandler)
	watcher := hostnet.NewWatcher(table.New(&table.Clock{}, hostnet.KeyOf, hostnet.Same), func(link string, _ netip.Addr) bool { return link == "lo" }, log)
	p := newPlane(t, Options{Kernel: newFakeKernel().refusing(unix.EPERM).device(), Moved: watcher.Changed()})
	desired := table.New(&table.Clock{}, vip.KeyOfFrontend, nil)
	applied := table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
	r := reconcile.New(reconcile.Options[vip.FrontendKey, vip.Frontend]{Desired: desired, Target: p.Plane, Applied: applied,
		MinBackoff: time.Hour, MaxBackoff: time.Hour, Resync: -1})
	endWatch, end := scope.Go(t, watcher.Run), scope.Go(t, r.Run)
	stop := func() { end(); endWatch() }

	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	busy := vip.FrontendKey{Addr: netip.MustParseAddr("127.0.0.1"), Port: netip.MustParseAddrPort(taken.Addr().String()).Port(), Protocol: vip.TCP}
	state := func(key vip.FrontendKey, ok bool) func() bool {
		return func() bool { row, _, tried := applied.Get(key); return tried && (row.Problem == nil) == ok }
	}
	await := func(what string, is func() bool) {
		t.Helper()
		wait.Until(t, what, is)
	}
	desired.Set(*proxytest.OnVIP(busy))
	for _, text := range []string{"203.0.113.10", "2001:db8::10"} {
		key := vip.FrontendKey{Addr: netip.MustParseAddr(text), Port: 8080, Protocol: vip.TCP}
		desired.Set(*proxytest.OnVIP(key))
		await(text+" waits", state(key, false))
		must.Succeed(t, netlink.AddrAdd(lo, hostAddr(key.Addr)))
		await(text+" came", state(key, true))
	}
	stop()
	if row, _, tried := applied.Get(busy); !tried || row.Problem == nil || slices.Contains(p.arrived(), busy) {
		t.Errorf("a port that another process holds: %+v", row)
	}
}

// The text of a refusal names its cause and what helps.
func TestRefusalsOfAddresses(t *testing.T) {
	for _, c := range []struct {
		err  error
		says string
	}{{unix.EPERM, "CAP_NET_ADMIN"}, {unix.EOPNOTSUPP, "and this kernel can make neither a dummy device nor a bridge ironvip0 for it"}, {unix.ENOBUFS, "putting it on ironvip0 failed"}} {
		p := newFaked(t, newFakeKernel().refusing(c.err), Options{Sockets: true})
		var problem vip.Problem
		if err := p.apply("+192.0.2.1:80")[0]; !errors.As(err, &problem) || !strings.Contains(problem.Message+problem.Hint, c.says) {
			t.Errorf("%v, hint %q; want %q", err, problem.Hint, c.says)
		}
	}
}

// Addresses on a real device, in the test's own network namespace.
func TestAddressesOnARealDevice(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	makeDevice(t, "ironvip0")
	witness := func() (out []string) {
		link := must.Get(netlink.LinkByName("ironvip0"))(t)
		list := must.Get(netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, LinkIndex: link.Attrs().Index},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_OIF))(t)
		for _, r := range list {
			if !r.Dst.IP.IsLinkLocalUnicast() {
				out = append(out, r.Dst.String())
			}
		}
		slices.Sort(out)
		return out
	}
	want := func(addrs ...string) {
		t.Helper()
		must.SameList(t, witness(), addrs, "ironvip0")
	}
	p := newPlane(t, Options{})
	backend := proxytest.Echo(t)
	http := proxytest.OnVIP(vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: vip.TCP}, backend)
	dns := proxytest.OnVIP(vip.FrontendKey{Addr: http.Key.Addr, Port: 53, Protocol: vip.UDP}, proxytest.Echo(t))
	six := proxytest.OnVIP(vip.FrontendKey{Addr: netip.MustParseAddr("2001:db8::1"), Port: 80, Protocol: vip.TCP}, backend)
	for _, f := range []*vip.Frontend{http, dns, six} {
		p.must(f)
	}
	want("192.0.2.1/32", "2001:db8::1/128")
	proxytest.Served(t, http.Key)
	proxytest.Served(t, six.Key)

	// Another program removes the address: damage, which a repair fixes.
	link := must.Get(netlink.LinkByName("ironvip0"))(t)
	must.Succeed(t, netlink.RouteDel(localRoute(link, http.Key.Addr)))
	damaged := 0
	for _, o := range p.actual() {
		if slices.Contains(o.Damage, "address 192.0.2.1 missing from ironvip0") {
			damaged++
		}
	}
	expect.Equal(t, damaged, 2, "of 2 frontends damaged")
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: http.Key, Old: http, New: http, Repair: true}}
	must.Succeed(t, errors.Join(p.Apply(context.Background(), batch), batch[0].Err))
	proxytest.Served(t, http.Key)
	for _, o := range p.actual() {
		expect.Empty(t, o.Damage)
	}

	// The address is removed with its last frontend; the route of another program remains.
	foreign := localRoute(link, netip.MustParseAddr("198.51.100.1"))
	foreign.Protocol = unix.RTPROT_STATIC
	must.Succeed(t, netlink.RouteAdd(foreign))
	p.remove(http.Key)
	want("192.0.2.1/32", "198.51.100.1/32", "2001:db8::1/128")
	p.remove(dns.Key)
	want("198.51.100.1/32", "2001:db8::1/128")

	// The next process finds the remaining address as an orphan and adopts it, or removes it on
	// request.
	must.Succeed(t, p.Close())
	want("198.51.100.1/32", "2001:db8::1/128")
	q := newPlane(t, Options{})
	orphans := q.actual()
	if len(orphans) != 1 || orphans[0].Value.Key != (vip.FrontendKey{Addr: six.Key.Addr}) {
		t.Fatalf("%v", orphans)
	}
	q.must(six)
	q.remove(orphans[0].Value.Key) // in use again: remains
	want("198.51.100.1/32", "2001:db8::1/128")
	proxytest.Served(t, six.Key)
	q.remove(six.Key)
	want("198.51.100.1/32")
}

// Without the device, the proxy creates it: a dummy or, on kernels without these, a bridge, up, without ARP.
func TestDeviceIsMade(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	p := newPlane(t, Options{})
	f := proxytest.OnVIP(vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: vip.TCP}, proxytest.Echo(t))
	must.Succeed(t, p.apply(f))
	proxytest.Served(t, f.Key)
	kind := "dummy"
	if !hasDummy() {
		kind = "bridge"
	}
	link, err := netlink.LinkByName("ironvip0")
	if err != nil || link.Type() != kind || link.Attrs().Flags&net.FlagUp == 0 || link.Attrs().RawFlags&unix.IFF_NOARP == 0 {
		t.Errorf("%+v, %v", link, err)
	}
}

// A host without IPv6 says which setting that is, and what to do.
func TestWithoutIPv6(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	must.Succeed(t, os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0))
	must.Succeed(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0))
	p := newPlane(t, Options{})
	f := proxytest.OnVIP(vip.FrontendKey{Addr: netip.MustParseAddr("2001:db8::1"), Port: 80, Protocol: vip.TCP})
	var problem vip.Problem
	if err := p.apply(f); !errors.As(err, &problem) || !strings.Contains(problem.Message, "net.ipv6.conf.ironvip0.disable_ipv6 is 1") || !strings.Contains(problem.Hint, "sysctl -w net.ipv6.conf.all.disable_ipv6=0") {
		t.Errorf("%v, hint %q", err, problem.Hint)
	}
}

// A process that really lacks the privileges.
func TestWithoutRights(t *testing.T) {
	if !asNobody(t) {
		return
	}
	p := newPlane(t, Options{})
	var problem vip.Problem
	f := proxytest.OnVIP(vip.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Port: 8080, Protocol: vip.TCP})
	if err := p.apply(f); !errors.As(err, &problem) || !strings.Contains(problem.Hint, "CAP_NET_ADMIN") {
		t.Errorf("%v, hint %q", err, problem.Hint)
	}
	start := must.Get(strconv.Atoi(strings.TrimSpace(string(must.Get(os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"))(t)))))(t)
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		f := proxytest.OnVIP(vip.FrontendKey{Addr: netip.MustParseAddr("127.96.0.1"), Port: 80, Protocol: protocol})
		err := p.apply(f)
		if start <= 80 {
			expect.Succeed(t, err)
			continue
		}
		if !errors.As(err, &problem) || !strings.Contains(problem.Message, fmt.Sprintf("ports below %d need a privilege", start)) ||
			!strings.Contains(problem.Hint, "CAP_NET_BIND_SERVICE") || !strings.Contains(problem.Hint, "net.ipv4.ip_unprivileged_port_start=80") {
			t.Errorf("%v, hint %q", err, problem.Hint)
		}
	}
	// A port that needs no privileges works.
	key := proxytest.FreeKey(t, "127.96.0.1", vip.TCP)
	p.must(proxytest.OnVIP(key, proxytest.Echo(t)))
	proxytest.Served(t, key)
}

const childEnv = "IRONVIP_VIPS_TEST_CHILD"

// inNamespace runs the calling test again in a child process with its own network namespace. It
// uses a user namespace if the test isn't root. It returns true in the child, with lo up.
func inNamespace(t *testing.T) bool {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if !child(t, attr) {
		return false
	}
	lo := must.Get(netlink.LinkByName("lo"))(t)
	must.Succeed(t, netlink.LinkSetUp(lo))
	return true
}

// asNobody runs the calling test again without any privileges, and returns true there.
func asNobody(t *testing.T) bool {
	if os.Geteuid() != 0 {
		return true
	}
	return child(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}})
}

func child(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(childEnv) == t.Name() {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	cmd.SysProcAttr = attr
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		need.Lack(t, need.ReasonRoot, "without it, user namespaces, which this host denies: "+err.Error())
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in the child: %v\n%s", err, out)
	}
	return false
}

// makeDevice creates a device of that name: a dummy, or a bridge if the kernel has no dummies.
func makeDevice(t *testing.T, name string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}
	must.Succeed(t, err)
	link := must.Get(netlink.LinkByName(name))(t)
	must.Succeed(t, errors.Join(netlink.LinkSetARPOff(link), netlink.LinkSetUp(link)))
}

// hostAddr returns addr as a single address that is usable at once.
func hostAddr(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.PrefixFrom(addr, addr.BitLen()))}
	if addr.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// localRoute returns a route as the plane makes it.
func localRoute(link netlink.Link, addr netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netipx.PrefixIPNet(netip.PrefixFrom(addr, addr.BitLen())), Table: unix.RT_TABLE_LOCAL,
		Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Protocol: host.RouteProtocol, Priority: 178}
}

func hasDummy() bool {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe0"
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	return !errors.Is(err, unix.EOPNOTSUPP)
}

// A host's own address that is gone is damage, unless sockets can be bound to it nevertheless.
func TestAnAddressOfTheHostGoes(t *testing.T) {
	p := newFaked(t, newFakeKernel(), Options{Sockets: true}, "127.9.0.1:80", "198.51.100.1:80")
	p.binds = host.CanBind
	expect.Equal(t, p.reads(), "127.9.0.1:80[] 198.51.100.1:80[address 198.51.100.1 is no longer an address of this host]", "read")
	p.binds = func(a netip.Addr) bool {
		expect.Equal(t, a, netip.MustParseAddr("198.51.100.1"), "a socket to find out")
		return true
	}
	expect.Equal(t, p.reads(), "127.9.0.1:80[] 198.51.100.1:80[]", "an address that sockets can be bound to")
}
