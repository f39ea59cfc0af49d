package hostnet

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

func nothingOurs(string, netip.Addr) bool { return false }

func TestReadFindsLoopbackWithoutRights(t *testing.T) {
	s := must.Get(Read(nothingOurs))(t)
	if !slices.ContainsFunc(s.Addrs, func(a Addr) bool { return a.Prefix.Addr() == netip.MustParseAddr("127.0.0.1") && a.Link == "lo" }) {
		t.Errorf("no 127.0.0.1 among %v", s.Addrs)
	}
	without := must.Get(Read(func(link string, _ netip.Addr) bool { return link == "lo" }))(t)
	if slices.ContainsFunc(without.Addrs, func(a Addr) bool { return a.Link == "lo" }) {
		t.Errorf("what is ours is not left out: %v", without.Addrs)
	}
}

// Added and removed addresses, gateways and routes appear in the table.
// Slow: twice, the watcher must have been quiet for longer than a change may wait.
// An address that comes before the subscription is in the first read, and is told as a change.
func TestFirstReadIsAChange(t *testing.T) {
	w := NewWatcher(table.New(&table.Clock{}, KeyOf, Same), nothingOurs, slog.New(slog.DiscardHandler))
	scope.Go(t, w.Run)
	wait.Until(t, "the change", func() bool {
		select {
		case <-w.Changed():
			return true
		default:
			return false
		}
	})
}

func TestWatchFollowsTheKernel(t *testing.T) {
	need.Root(t)
	runtime.LockOSThread() // the namespace is this thread's; the thread ends with the test
	ns := must.Get(netns.New())(t)
	defer ns.Close()
	do(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}))
	link, err := netlink.LinkByName("eth0")
	do(t, err)
	do(t, netlink.LinkSetUp(link))

	out := table.New(&table.Clock{}, KeyOf, Same)
	ours := netip.MustParseAddr("192.0.2.99")
	w := NewWatcher(out, func(_ string, addr netip.Addr) bool { return addr == ours }, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		// A new thread starts in the process's first namespace.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			ended <- err
			return
		}
		ended <- w.Run(ctx)
	}()
	defer func() {
		cancel()
		expect.Is(t, <-ended, context.Canceled, "Run ended with")
	}()
	<-out.Ready()

	a, err := netlink.ParseAddr("192.0.2.1/24")
	do(t, err)
	second, err := netlink.ParseAddr("192.0.2.2/24")
	do(t, err)
	do(t, netlink.AddrAdd(link, a))
	do(t, netlink.AddrAdd(link, second))
	_, all, err := net.ParseCIDR("198.51.100.0/24")
	do(t, err)
	do(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: net.ParseIP("192.0.2.254")}))
	await(t, out, "the new addresses and the gateway", func(s Snapshot) bool {
		return first(s) == netip.MustParsePrefix("192.0.2.1/24") && len(s.Addrs) >= 2 && slices.Equal(s.Gateways, addrs("192.0.2.254")) &&
			slices.Contains(s.Routes, Route{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0"}) &&
			!slices.ContainsFunc(s.Routes, func(r Route) bool { return r.Prefix == netip.MustParsePrefix("198.51.100.0/24") })
	})
	// Changed also reports what the table leaves out: an address of ours, and an address that no
	// device has but a route makes local.
	mine, err := netlink.ParseAddr("192.0.2.99/32")
	do(t, err)
	made, err := netlink.ParseIPNet("198.51.100.7/32")
	do(t, err)
	peer, err := netlink.LinkByName("peer")
	do(t, err)
	for what, change := range map[string]func() error{
		"an address of ours": func() error { return netlink.AddrAdd(peer, mine) },
		"a local route": func() error {
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: made, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST})
		},
	} {
		for quiet := false; !quiet; { // earlier changes are reported first
			select {
			case <-w.Changed():
			case <-time.After(longest + 2*settle):
				quiet = true
			}
		}
		do(t, change())
		select {
		case <-w.Changed():
		case <-time.After(time.Minute):
			t.Errorf("%s is not reported", what)
		}
	}
	await(t, out, "a table without them", func(s Snapshot) bool {
		return !slices.ContainsFunc(s.Addrs, func(a Addr) bool { return a.Prefix.Addr() == ours })
	})
	// The host has an address without a route of its own table, as one of a VRF.
	do(t, netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: second.IP, Mask: net.CIDRMask(32, 32)}, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}))
	s, _, _ := out.Get(struct{}{})
	for addr, want := range map[string]bool{"192.0.2.1": true, "192.0.2.2": true, "192.0.2.4": false, "198.51.100.7": true} {
		expect.Equal(t, s.HasAddr(netip.MustParseAddr(addr)), want, "the host has %s", addr)
	}
	// Changes without a pause don't postpone the next read.
	busy, err := netlink.ParseAddr("203.0.113.1/24")
	do(t, err)
	enough, calm := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(calm)
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			t.Error(err)
			return
		}
		for { // each pause is shorter than the interval that the watcher waits for
			select {
			case <-enough:
				return
			default:
			}
			_ = netlink.AddrAdd(link, busy)
			time.Sleep(20 * time.Millisecond)
			_ = netlink.AddrDel(link, busy)
			time.Sleep(20 * time.Millisecond)
		}
	}()
	third, err := netlink.ParseAddr("192.0.2.3/24")
	do(t, err)
	do(t, netlink.AddrAdd(link, third))
	await(t, out, "one among many changes", func(s Snapshot) bool {
		return slices.ContainsFunc(s.Addrs, func(a Addr) bool { return a.Prefix == netip.MustParsePrefix("192.0.2.3/24") })
	})
	close(enough)
	<-calm

	do(t, netlink.AddrDel(link, a))
	await(t, out, "the removal", func(s Snapshot) bool { return first(s) == netip.Prefix{} && len(s.Gateways) == 0 })
}

// first returns the host's first IPv4 address that isn't secondary.
func first(s Snapshot) netip.Prefix {
	for _, a := range s.Addrs {
		if a.Prefix.Addr().Is4() && !a.Secondary {
			return a.Prefix
		}
	}
	return netip.Prefix{}
}

func await(t *testing.T, out *table.Table[struct{}, Snapshot], what string, check func(Snapshot) bool) {
	t.Helper()
	wait.For(t, what, func() error {
		if s, _, _ := out.Get(struct{}{}); !check(s) {
			return fmt.Errorf("the last snapshot is %+v", s)
		}
		return nil
	})
}

func do(t *testing.T, err error) {
	t.Helper()
	must.Succeed(t, err)
}

func addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for i, s := range texts {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}

func TestIsOwn(t *testing.T) {
	host := table.New(table.NewClock(time.Now()), KeyOf, Same)
	own := IsOwn(host)
	addr := netip.MustParseAddr("10.9.0.1")
	if own(addr) || !own(netip.MustParseAddr("127.0.0.9")) || !own(netip.IPv6Loopback()) {
		t.Error("without knowing the host's addresses")
	}
	host.Set(Snapshot{Addrs: []Addr{{Prefix: netip.MustParsePrefix("10.9.0.1/24")}}})
	if !own(addr) || own(netip.MustParseAddr("10.9.0.2")) {
		t.Error("with them")
	}
}

func network(t *testing.T, s string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(s)
	must.Succeed(t, err)
	return n
}

// A route contributes its gateways or, without any, its range.
func TestRoutes(t *testing.T) {
	name := func(index int) string { return map[int]string{1: "lo", 2: "eth0", 3: "ironvip0"}[index] }
	ours := func(link string, _ netip.Addr) bool { return link == "ironvip0" }
	for _, c := range []struct {
		name     string
		route    netlink.Route
		gateways []string
		ranges   []string
	}{
		{"a connected subnet", netlink.Route{LinkIndex: 2, Dst: network(t, "192.0.2.0/24"), Type: unix.RTN_UNICAST}, nil, []string{"192.0.2.0/24"}},
		{"IPv6", netlink.Route{LinkIndex: 2, Dst: network(t, "2001:db8::/64"), Type: unix.RTN_UNICAST}, nil, []string{"2001:db8::/64"}},
		{"the default route", netlink.Route{LinkIndex: 2, Dst: network(t, "0.0.0.0/0"), Gw: net.ParseIP("192.0.2.1"), Type: unix.RTN_UNICAST}, []string{"192.0.2.1"}, nil},
		{"a default route without a range", netlink.Route{LinkIndex: 2, Gw: net.ParseIP("fe80::1"), Type: unix.RTN_UNICAST}, []string{"fe80::1"}, nil},
		{"a default route without a gateway", netlink.Route{LinkIndex: 2, Dst: network(t, "::/0"), Type: unix.RTN_UNICAST}, nil, nil},
		{"several gateways", netlink.Route{Dst: network(t, "10.0.0.0/8"), Type: unix.RTN_UNICAST, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: 2, Gw: net.ParseIP("192.0.2.1")}, {LinkIndex: 2, Gw: net.ParseIP("192.0.2.2")}}}, []string{"192.0.2.1", "192.0.2.2"}, nil},
		{"a blackhole", netlink.Route{Dst: network(t, "10.0.0.0/8"), Type: unix.RTN_BLACKHOLE}, nil, nil},
		{"on our device", netlink.Route{LinkIndex: 3, Dst: network(t, "192.0.2.7/32"), Type: unix.RTN_UNICAST}, nil, nil},
		{"a zero gateway", netlink.Route{LinkIndex: 2, Dst: network(t, "10.0.0.0/8"), Gw: net.IPv4zero, Type: unix.RTN_UNICAST}, nil, []string{"10.0.0.0/8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := Snapshot{Gateways: addrs(c.gateways...)}
			for _, r := range c.ranges {
				want.Routes = append(want.Routes, Route{Prefix: netip.MustParsePrefix(r), Link: "eth0"})
			}
			var got Snapshot
			got.addRoute(&c.route, name, ours)
			diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
			expect.NoDiff(t, diff)
		})
	}
}

func TestPrefixes(t *testing.T) {
	for _, c := range []struct {
		in   *net.IPNet
		want string // "": none
	}{
		{nil, ""},
		{&net.IPNet{IP: net.ParseIP("192.0.2.7"), Mask: net.CIDRMask(24, 32)}, "192.0.2.7/24"}, // in 16 bytes
		{&net.IPNet{IP: net.ParseIP("192.0.2.7").To4(), Mask: net.CIDRMask(32, 32)}, "192.0.2.7/32"},
		{&net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}, "2001:db8::1/64"},
		{&net.IPNet{IP: net.IP{1, 2}, Mask: net.CIDRMask(8, 32)}, ""},
		{&net.IPNet{IP: net.ParseIP("192.0.2.7"), Mask: net.IPMask{255, 0, 255, 0}}, ""},
		{&net.IPNet{IP: net.ParseIP("192.0.2.7").To4()}, ""},
	} {
		got, ok := prefixOf(c.in)
		if want := c.want != ""; ok != want || ok && got.String() != c.want {
			t.Errorf("%v: %s, %v, want %q", c.in, got, ok, c.want)
		}
	}
}

// The host has the addresses of its interfaces and the ranges that the kernel takes for local, and no
// others. The routes don't know an address of a VRF.
func TestHasAddr(t *testing.T) {
	s := Snapshot{Addrs: []Addr{{Prefix: netip.MustParsePrefix("192.0.2.7/24"), Link: "vrf0"}, {Prefix: netip.MustParsePrefix("2001:db8::7/64"), Link: "vrf0"}}}
	for addr, want := range map[string]bool{"127.0.0.1": true, "127.1.2.3": true, "::1": true, "192.0.2.1": false, "2001:db8::1": false, "fe80::1%lo": true,
		"192.0.2.7": true, "2001:db8::7": true} {
		expect.Equal(t, s.HasAddr(netip.MustParseAddr(addr)), want, addr)
	}
}
