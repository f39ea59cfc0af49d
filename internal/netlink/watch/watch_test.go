//go:build linux

package watch_test

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

const device, table = "ironvip0", "ironvip"

var (
	addr4 = netip.MustParseAddr("10.96.0.1")
	addr6 = netip.MustParseAddr("fd96::1")
)

func every(netip.Addr) bool { return true }

// put adds the routes, and drop4 and drop6 remove one each.
const (
	of    = " table local dev ironvip0 proto 178 metric 178"
	put4  = "ip route replace local 10.96.0.1 scope host" + of
	put6  = "ip -6 route replace local fd96::1" + of
	put   = put4 + "; " + put6
	drop4 = "ip route del local 10.96.0.1" + of
	drop6 = "ip -6 route del local fd96::1" + of
)

// host is a network namespace with a device, and a Watcher of it.
type host struct {
	*testing.T
	*netlab.Node
	w *watch.Watcher
}

func newHost(t *testing.T) *host {
	need.Program(t, "nft")
	need.Program(t, "ip")
	h := &host{t, netlab.NewLAN(t, "host").Nodes[0], nil}
	h.run("ip link add ironvip0 type bridge") // not every kernel has dummy devices
	h.run("ip link set ironvip0 arp off up")
	h.run(put)
	h.run("nft add table inet ironvip")
	h.Do(func() {
		w := must.Get(watch.Open(watch.Options{Device: device, Anchor: netip.MustParseAddr("10.96.9.1"), Protocol: 178, Forwarding: true, Table: table}))(t)
		h.w = w
	})
	t.Cleanup(h.w.Close)
	return h
}

func (h *host) run(command string) {
	h.Helper()
	h.Do(func() {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		must.Succeed(h, err, "%s: %s", command, out)
	})
}

// take returns what has been seen by now, without the programs.
func (h *host) take() string {
	s := h.w.Take(every)
	var parts []string
	if s.Lost {
		parts = append(parts, "lost")
	}
	if s.Device {
		parts = append(parts, "device")
	}
	for _, a := range []netip.Addr{addr4, addr6} {
		if _, gone := s.Gone[a]; gone {
			parts = append(parts, a.String())
			delete(s.Gone, a)
		}
	}
	for a := range s.Gone {
		h.Errorf("%s is gone, too", a)
	}
	if s.Table != nil {
		parts = append(parts, "table")
	}
	if s.Unforwarded {
		parts = append(parts, "forwarding")
	}
	return strings.Join(parts, " ")
}

// A change of the device or the table by another program is seen as soon as its system call has returned. A change
// elsewhere, or a change back, is nothing.
func TestSeesWhatOthersChange(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct{ command, want string }{
		{"cd /proc/sys/net/ipv4; echo 1 > ip_forward; echo 0 > ip_forward", "forwarding"},
		{"cd /proc/sys/net/ipv4; echo 1 > ip_forward; echo 0 > conf/default/forwarding; echo 0 > conf/eth0/forwarding", ""},
		{"cd /proc/sys/net/ipv6/conf/all; echo 1 > forwarding; echo 0 > forwarding", "forwarding"},
		{drop4, "10.96.0.1"},
		{put4, ""},
		{drop6, "fd96::1"},
		{put6 + "; " + drop6 + "; " + put6, ""},
		{drop4 + "; " + drop6, "10.96.0.1 fd96::1"},
		{put, ""},
		{"ip route add local 10.96.0.1 table local dev ironvip0; ip route del local 10.96.0.1 table local dev ironvip0", ""}, // isn't ours
		{"ip route add 10.96.0.1 dev ironvip0; ip route del 10.96.0.1 dev ironvip0", ""},
		{"ip route add 10.96.0.1 dev ironvip0 proto 178; ip route del 10.96.0.1 dev ironvip0 proto 178", ""}, // of another table
		{"ip addr add 10.96.9.1/24 dev ironvip0", ""},
		{"ip addr add fd96:9::1/64 dev ironvip0 nodad; ip addr del fd96:9::1/64 dev ironvip0", ""},
		{"ip addr add 10.96.9.2/24 dev ironvip0; ip addr del 10.96.9.2/24 dev ironvip0", ""},
		{"ip addr del 10.96.9.1/24 dev ironvip0", "device"}, // the kernel removes the routes of IPv4
		{put4, ""},
		{"ip addr add 10.96.0.1/32 dev lo; ip addr del 10.96.0.1/32 dev lo", ""},
		{"ip link set ironvip0 arp on", "device"},
		{"ip link set ironvip0 arp off", ""},
		{"ip link set ironvip0 arp on; ip link set ironvip0 arp off", "device"},
		{"ip link set ironvip0 down", "device fd96::1"},
		{"ip link set ironvip0 up; " + put, ""},
		{"ip link set ironvip0 down; ip link set ironvip0 up; " + put6, "device"},
		{put, ""},
		{"ip link set ironvip0 mtu 1400", ""},
		{"ip link set ironvip0 down; ip link set ironvip0 name other", "device fd96::1"},
		{"ip addr flush dev other", ""},
		{"ip link set other name ironvip0; ip link set ironvip0 up", ""},
		{put, ""},
		// A change of a device under another name is not seen.
		{"ip link set ironvip0 down; ip link set ironvip0 name other; ip addr flush dev other; ip link set other name ironvip0; ip link set ironvip0 up", "lost device fd96::1"},
		{put, ""},
		{"ip link del ironvip0", "device fd96::1"},
		{"ip link add ironvip0 type bridge; ip link set ironvip0 arp off up; " + put, ""},
		{drop4, "10.96.0.1"},
		{"nft add set inet ironvip vips '{ type ipv4_addr; }'", "table"},
		{"nft add element inet ironvip vips '{ 10.96.0.1 }'", "table"},
		{"nft add table inet other; nft add table ip ironvip; nft delete table ip ironvip", ""},
		{"nft flush ruleset", "table"},
		{"nft add table inet other; nft flush ruleset", ""},
	} {
		h.run(c.command)
		expect.Equal(t, h.take(), c.want, "%s: seen", c.command)
	}
}

// An address that the dataplane doesn't want, because it has removed it itself, is not seen.
func TestRemovedAddressIsNotSeen(t *testing.T) {
	h := newHost(t)
	h.run(drop4 + "; " + drop6)
	s := h.w.Take(func(a netip.Addr) bool { return a == addr4 })
	expect.Equal(t, len(s.Gone), 1, "seen %+v", s)
}

// Without a device, the forwarding of packets is watched alone.
func TestSeesForwardingAlone(t *testing.T) {
	h := newHost(t)
	h.Do(func() {
		h.w.Close()
		h.w = must.Get(watch.Open(watch.Options{Forwarding: true}))(t)
	})
	h.run("cd /proc/sys/net/ipv4; echo 1 > ip_forward; echo 0 > ip_forward; " + drop4 + "; ip link set ironvip0 down")
	expect.Equal(t, h.take(), "forwarding", "seen")
	h.run("ip link set ironvip0 up; ip link del ironvip0")
	expect.Equal(t, h.take(), "", "seen of a device")
}

// A change is signaled, and nothing is signaled after it was taken.
func TestSignalsOnce(t *testing.T) {
	h := newHost(t)
	h.run(drop4)
	<-h.w.Changed()
	expect.Equal(t, h.take(), "10.96.0.1", "seen")
	expect.Equal(t, h.take(), "", "seen a second time")
}

// The program that changed the table is named.
func TestNamesTheProgram(t *testing.T) {
	h := newHost(t)
	h.run("nft add set inet ironvip vips '{ type ipv4_addr; }'")
	if s := h.w.Take(every); s.Table == nil || s.Table.Name != "nft" || s.Table.PID == 0 || s.Table.String() != fmt.Sprintf("nft (pid %d)", s.Table.PID) {
		t.Errorf("table changed by %+v", s.Table)
	}
	expect.Equal(t, (watch.Author{}).String(), "", "an unknown program")
}

// The dataplane's own sockets are ignored in the kernel: their changes don't wake anybody and fill no buffer.
func TestIgnoresOwnSockets(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	var route *netlink.Conn
	nft := nftwire.NewConn()
	var index int
	h.Do(func() {
		var err error
		if route, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Counters{}); err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, nft.Open(ctx))
		link := must.Get(rtnl.LinkByName(device))(t)
		index = link.Attrs().Index
	})
	t.Cleanup(route.Close)
	t.Cleanup(nft.Close)
	must.Succeed(t, h.w.IgnoreRoutes(route.Port()))
	must.Succeed(t, h.w.IgnoreTable(nft.Port()))
	var x nftwire.Transaction
	for range 1000 {
		for _, typ := range []uint16{unix.RTM_DELROUTE, unix.RTM_NEWROUTE} {
			err := route.Write(ctx, 2, func(b []byte, i int) []byte {
				a, family := addr4, byte(unix.AF_INET)
				if i == 1 {
					a, family = addr6, unix.AF_INET6
				}
				b = netlink.BeginMessage(b, typ, unix.NLM_F_CREATE)
				b = append(b, family, byte(a.BitLen()), 0, 0, unix.RT_TABLE_LOCAL, 178, unix.RT_SCOPE_HOST, unix.RTN_LOCAL, 0, 0, 0, 0)
				b = netlink.AppendAttr32(netlink.AppendAddr(b, unix.RTA_DST, a), unix.RTA_OIF, uint32(index))
				return netlink.AppendAttr32(b, unix.RTA_PRIORITY, 178)
			}, func(_ int, err error) {
				must.Succeed(t, err)
			})
			must.Succeed(t, err)
		}
		x.Begin()
		x.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
		x.DeleteTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
		x.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
		must.Succeed(t, nft.Send(ctx, &x))
	}
	expect.Equal(t, h.take(), "", "seen")            // the kernel may have made the device's link-local address usable meanwhile
	h.run(drop4 + "; nft delete table inet ironvip") // others are seen as before
	expect.Equal(t, h.take(), "10.96.0.1 table", "seen")
}

// Lost events are reported, and later ones are seen.
func TestReportsLostEvents(t *testing.T) {
	h := newHost(t)
	h.w.Overrun(func() {
		for range 100 {
			h.run(drop4 + "; " + put4)
		}
	})
	<-h.w.Changed()
	s := h.w.Take(every)
	expect.True(t, s.Lost, "seen %+v", s)
	h.w.Take(every)
	h.run(drop4)
	expect.Equal(t, h.take(), "10.96.0.1", "seen")
}

// A host that can't be watched has a nil Watcher.
func TestNilWatcher(t *testing.T) {
	var w *watch.Watcher
	if s := w.Take(every); s.Any() || w.Changed() != nil {
		t.Errorf("%+v", s)
	}
	w.Close()
}

// A transaction that is committed aside isn't seen, whether it succeeds or not. One of another program at the same time is,
// by an unknown program, and signaled. Later ones are seen as always.
func TestTransactionAside(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	nft := nftwire.NewConn()
	h.Do(func() {
		must.Succeed(t, nft.Open(ctx))
	})
	t.Cleanup(nft.Close)
	generation := func() (uint32, error) { return nft.Generation(ctx) }
	commit := func(name string) error {
		var x nftwire.Transaction
		x.Begin()
		x.DeleteTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		x.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
		return nft.Send(ctx, &x)
	}
	for _, c := range []struct {
		what, name, other, want string
	}{
		{"alone", table, "", ""},
		{"that fails", "missing", "", ""},
		{"beside another program", table, "nft add set inet ironvip vips '{ type ipv4_addr; }'", "table"},
		{"beside one with another table", table, "nft add table inet other", "table"},
		{"that fails beside another program", "missing", "nft add set inet ironvip vips '{ type ipv4_addr; }'", "table"},
	} {
		err := h.w.Muted(generation, func() error {
			if c.other != "" {
				h.run(c.other)
			}
			return commit(c.name)
		})
		expect.Equal(t, err != nil, c.name != table, "%s: %v", c.what, err)
		if c.want != "" {
			<-h.w.Changed()
		}
		expect.Equal(t, h.take(), c.want, "%s: seen", c.what)
	}
	h.run("nft add set inet ironvip names '{ type ifname; }'")
	if s := h.w.Take(every); s.Table == nil || s.Table.Name != "nft" {
		t.Errorf("a later one: %+v", s)
	}
	expect.Succeed(t, h.w.Muted(func() (uint32, error) { return 0, unix.ENOBUFS }, func() error { return commit(table) }))
	expect.Equal(t, h.take(), "table", "without the number: seen")
}
