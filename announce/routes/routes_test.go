package routes

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
)

var vip4, vip6 = netip.MustParsePrefix("10.96.0.1/32"), netip.MustParsePrefix("fd96::1/128")

// start runs a Speaker of a table in the node. The returned function ends it and waits.
func start(t *testing.T, n *netlab.Node, desired *table.Table[netip.Prefix, netip.Prefix]) (*Speaker, func()) {
	t.Helper()
	s := New(desired, slog.New(slog.DiscardHandler))
	n.Do(func() { must.Succeed(t, s.kernel.conn.Open()) }) // the socket stays in the namespace
	stop := scope.Go(t, s.Run)
	return s, stop
}

// routesOf lists the routes of a table with another library, as "prefix protocol".
func routesOf(t *testing.T, n *netlab.Node, tableID int) (all []string) {
	t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list := must.Get(n.Netlink.RouteListFiltered(family, &rtnl.Route{Table: tableID}, rtnl.RT_FILTER_TABLE))(t)
		for _, r := range list {
			if r.Dst.IP.IsLinkLocalUnicast() {
				continue // the kernel adds it when a device is up
			}
			all = append(all, r.Dst.String()+" "+r.Protocol.String())
		}
	}
	slices.Sort(all)
	return all
}

func awaitRoutes(t *testing.T, n *netlab.Node, want ...string) {
	t.Helper()
	wait.Until(t, "routes "+strings.Join(want, ", "), func() bool { return slices.Equal(routesOf(t, n, DefaultTable), want) },
		func() any { return routesOf(t, n, DefaultTable) })
}

// Routes are added, adopted after a restart, repaired and removed. Routes of others stay.
func TestRoutes(t *testing.T) {
	n := netlab.New(t).Director
	foreign := []string{"10.96.0.9/32 static", "fd96::9/128 static"}
	for _, dst := range []string{"10.96.0.9/32", "fd96::9/128"} {
		_, to, _ := net.ParseCIDR(dst)
		must.Succeed(t, n.Netlink.RouteAdd(&rtnl.Route{Dst: to, Table: DefaultTable, LinkIndex: loopback, Protocol: unix.RTPROT_STATIC}))
	}
	main := routesOf(t, n, unix.RT_TABLE_MAIN)

	vips := announce.NewPrefixes()
	vips.SetAll([]netip.Prefix{vip4, vip6})
	s, stop := start(t, n, vips)
	awaitRoutes(t, n, "10.96.0.1/32 179", foreign[0], "fd96::1/128 179", foreign[1])
	writes := s.kernel.stats.Writes.Load()
	vips.Set(netip.MustParsePrefix("10.96.0.2/32"))
	awaitRoutes(t, n, "10.96.0.1/32 179", "10.96.0.2/32 179", foreign[0], "fd96::1/128 179", foreign[1])
	expect.Equal(t, s.kernel.stats.Writes.Load()-writes, 1, "messages for one route")
	vips.Delete(vip6)
	awaitRoutes(t, n, "10.96.0.1/32 179", "10.96.0.2/32 179", foreign[0], foreign[1])
	stop()
	awaitRoutes(t, n, "10.96.0.1/32 179", "10.96.0.2/32 179", foreign[0], foreign[1])

	vips = announce.NewPrefixes()
	ready := vips.Initializer()
	vips.Set(vip4)
	s, stop = start(t, n, vips)
	wait.Until(t, "the route is adopted", func() bool { return s.Stats().Adopted == 1 }, func() any { return s.Stats() })
	awaitRoutes(t, n, "10.96.0.1/32 179", "10.96.0.2/32 179", foreign[0], foreign[1]) // not ready
	ready()
	awaitRoutes(t, n, "10.96.0.1/32 179", foreign[0], foreign[1])
	expect.Equal(t, s.kernel.stats.Writes.Load(), 1, "messages")

	// Others' routes to a prefix are a problem of that prefix, and stay.
	_, to, _ := net.ParseCIDR(vip4.String())
	ours := &rtnl.Route{Dst: to, Table: DefaultTable, LinkIndex: loopback, Scope: rtnl.SCOPE_LINK, Protocol: DefaultProtocol}
	must.Succeed(t, n.Netlink.RouteDel(ours))
	ours.Protocol = unix.RTPROT_STATIC
	must.Succeed(t, n.Netlink.RouteAdd(ours))
	must.Get(s.loop.Repair(t.Context()))(t)
	wait.Until(t, "the problem", func() bool {
		a, _, ok := s.applied.Get(vip4)
		return ok && a.Problem != nil && strings.Contains(a.Problem.Message, "another program has a route")
	}, func() any { a, _, _ := s.applied.Get(vip4); return a.Problem })
	awaitRoutes(t, n, "10.96.0.1/32 static", foreign[0], foreign[1])
	must.Succeed(t, n.Netlink.RouteDel(ours))
	awaitRoutes(t, n, "10.96.0.1/32 179", foreign[0], foreign[1]) // by a retry

	// A new route that another program has is one at once, and one of ours is adopted.
	third := netip.MustParsePrefix("10.96.0.9/32")
	vips.Set(third)
	wait.Until(t, "the problem of a new route", func() bool {
		a, _, ok := s.Results().Get(third)
		return ok && a.Problem != nil && strings.Contains(a.Problem.Message, "another program has a route")
	})
	vips.Delete(third)
	twice := []reconcile.Update[netip.Prefix, netip.Prefix]{{Key: vip4, New: &vip4}, {Key: third, New: &third}}
	own := newKernel(DefaultTable, DefaultProtocol) // the loop uses the other one
	n.Do(func() { must.Succeed(t, own.conn.Open()) })
	defer own.Close()
	must.Succeed(t, own.Apply(t.Context(), twice))
	if twice[0].Err != nil || !errors.Is(twice[1].Err, errForeign) {
		t.Errorf("ours: %v, foreign: %v", twice[0].Err, twice[1].Err)
	}

	// The routes of a stopped announcer are found and removed.
	vips.Set(vip6)
	awaitRoutes(t, n, "10.96.0.1/32 179", foreign[0], "fd96::1/128 179", foreign[1])
	stop()
	n.Do(func() {
		for _, want := range [][]netip.Prefix{{vip4, vip6}, nil} {
			found, err := Find(t.Context())
			if err != nil || !slices.Equal(found, want) {
				t.Errorf("found %v, %v, want %v", found, err, want)
			}
			expect.Succeed(t, Remove(t.Context()))
		}
	})
	awaitRoutes(t, n, foreign...)
	expect.SameList(t, main, routesOf(t, n, unix.RT_TABLE_MAIN), "the main table was changed from\n%v to\n", main)
}

func TestOutcome(t *testing.T) {
	k := newKernel(DefaultTable, DefaultProtocol)
	for _, c := range []struct {
		u    reconcile.Update[netip.Prefix, netip.Prefix]
		err  error
		want error
	}{
		{reconcile.Update[netip.Prefix, netip.Prefix]{New: &vip4}, nil, nil},
		{reconcile.Update[netip.Prefix, netip.Prefix]{New: &vip4}, unix.EEXIST, errForeign},
		{reconcile.Update[netip.Prefix, netip.Prefix]{New: &vip4}, unix.ESRCH, unix.ESRCH},
		{reconcile.Update[netip.Prefix, netip.Prefix]{Old: &vip4}, unix.ESRCH, nil},
		{reconcile.Update[netip.Prefix, netip.Prefix]{Old: &vip4}, unix.EPERM, unix.EPERM},
		{reconcile.Update[netip.Prefix, netip.Prefix]{New: &vip4}, netlink.ErrUnknown, netlink.ErrUnknown},
	} {
		if got := k.outcome(&c.u, c.err); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%+v, %v: %v, want %v", c.u, c.err, got, c.want)
		}
	}
}

func TestMessages(t *testing.T) {
	k := newKernel(1000, 200)
	for _, p := range []netip.Prefix{vip4, vip6, netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::/0")} {
		m := k.appendRoute(nil, unix.RTM_NEWROUTE, 0, p)
		if got, ok := k.decode(m[16:]); !ok || got != p {
			t.Errorf("%s becomes %s, %t", p, got, ok)
		}
		for _, other := range []*kernel{newKernel(1001, 200), newKernel(1000, 201)} {
			if _, ok := other.decode(m[16:]); ok {
				t.Errorf("table %d, protocol %d accepts a route of another one", other.table, other.protocol)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	k := newKernel(1000, 200)
	f.Add(k.appendRoute(nil, unix.RTM_NEWROUTE, 0, vip4)[16:])
	f.Add(k.appendRoute(nil, unix.RTM_NEWROUTE, 0, vip6)[16:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := k.decode(b); ok && !p.IsValid() {
			t.Errorf("invalid prefix %v", p)
		}
	})
}
