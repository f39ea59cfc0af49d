package allocator_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/vip"
)

func alarms(s ipam.PoolStatus) string {
	var out []string
	for _, p := range s.Alarms {
		out = append(out, p.Code+": "+p.Message)
	}
	return strings.Join(out, "\n")
}

// If a pod range is reported later, held addresses are kept, nothing more is allocated there, and an
// alarm says so.
func TestPodRangeReportedLater(t *testing.T) {
	w := newWorld(t, pools(ipam.Pool{Name: "p", CIDRs: prefixes("10.244.0.0/26"), AutoAssign: true}, pool("q", "192.0.2.0/28")))
	same(t, "before", w.get("held"), "10.244.0.16")
	w.a.SetPodCIDRs("kubernetes", prefixes("10.244.0.0/27", "10.245.0.0/16"))
	same(t, "held", w.get("held"), "10.244.0.16")
	same(t, "automatic", w.get("auto"), "10.244.0.32")
	w.refused(vip.CodeOverlap, "10.244.0.3 is held out of pool \"p\": it is in range 10.244.0.0/27, which source kubernetes says is in use", "asks", requests("10.244.0.3"))
	s := w.status("p")
	same(t, "alarms", alarms(s), `overlap: pool "p" 10.244.0.0/26 overlaps range 10.244.0.0/27, which source kubernetes says is in use: nothing more is allocated there, held addresses are kept`)
	same(t, "size", s.Size, 64)
	same(t, "held out", s.HeldOut, 32)
	same(t, "ranges held out", heldOut(s), "10.244.0.0/27 overlap: in range 10.244.0.0/27, which source kubernetes says is in use")
	same(t, "free", s.Free, 31)
	same(t, "the other pool", alarms(w.status("q")), "")
	if !slices.Contains(w.kinds(), "pool_alarm") {
		t.Errorf("events %v", w.kinds())
	}
	w.restart() // the source is not there yet: the lease is
	same(t, "held after a restart", w.get("held"), "10.244.0.16")
	w.a.SetPodCIDRs("kubernetes", prefixes("10.244.0.0/24"))
	w.refused(vip.CodePoolFull, `pool "p" has no free IPv4 address`, "none")

	waiting := w.a.Freed()
	w.a.SetPodCIDRs("other", prefixes("172.16.0.0/12"))
	w.a.SetPodCIDRs("kubernetes", nil)
	expect.True(t, freed(waiting), "waiting services are not woken when the range is free")
	same(t, "alarms afterwards", alarms(w.status("p")), "")
	w.get("none")
	if !slices.Contains(w.kinds(), "pool_alarm_over") {
		t.Errorf("events %v", w.kinds())
	}
}

// An address is held out for one reason, and not for any if the configuration excludes it.
func TestOneReasonForEachAddressHeldOut(t *testing.T) {
	p := pool("p", "10.244.0.0/28", "2001:db8::/126")
	p.Exclude = prefixes("10.244.0.0/30")
	w := newWorld(t, pools(p))
	w.a.SetPodCIDRs("a", prefixes("10.244.0.4/30", "10.244.0.8/29", "2001:db8::/64"))
	w.a.SetPodCIDRs("b", prefixes("10.244.0.0/29", "172.16.0.0/12"))
	w.a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes("10.244.0.1/24")[0], Link: "eth0"}, {Prefix: prefixes("10.244.0.6/24")[0], Link: "eth0"}}})
	b := ": in range 10.244.0.0/29, which source b says is in use"
	same(t, "ranges held out", heldOut(w.status("p")), strings.Join([]string{
		"10.244.0.4/31 overlap" + b, "10.244.0.6/32 own_address: this host's own address on eth0", "10.244.0.7/32 overlap" + b,
		"10.244.0.8/29 overlap: in range 10.244.0.8/29, which source a says is in use",
		"2001:db8::/126 overlap: in range 2001:db8::/64, which source a says is in use",
	}, "\n"))
}

// heldOut returns what a pool holds out, one line each.
func heldOut(s ipam.PoolStatus) string {
	var lines []string
	for _, r := range s.HeldOutRanges {
		lines = append(lines, fmt.Sprintf("%s %s: %s", r.Prefix, r.Reason, r.Detail))
	}
	return strings.Join(lines, "\n")
}

func TestHostsOwnAddressesAreHeldOut(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28", "2001:db8::/124")))
	w.get("held")
	w.a.SetHost(hostnet.Snapshot{
		Addrs: []hostnet.Addr{
			{Prefix: prefixes("192.0.2.1/24")[0], Link: "eth0"},
			{Prefix: prefixes("192.0.2.2/24")[0], Link: "eth0"},
			{Prefix: prefixes("2001:db8::2/64")[0], Link: "eth1"},
			{Prefix: prefixes("127.0.0.1/8")[0], Link: "lo"},
		},
		// The VIPs of a LAN: a pool inside a connected subnet is as it should be.
		Routes:   []hostnet.Route{{Prefix: prefixes("192.0.2.0/24")[0], Link: "eth0"}, {Prefix: prefixes("127.0.0.0/8")[0], Link: "lo"}},
		Gateways: []netip.Addr{addr("192.0.2.3"), addr("fe80::1%eth0")},
	})
	same(t, "automatic", w.get("auto"), "192.0.2.4 2001:db8::3")
	w.refused(vip.CodeAddressTaken, "192.0.2.2 is held out of pool \"p\": it is this host's own address on eth0", "a", requests("192.0.2.2"))
	w.refused(vip.CodeAddressTaken, "it is a gateway of this host", "a", requests("192.0.2.3"))
	same(t, "held stays", w.get("held"), "192.0.2.1 2001:db8::1")
	same(t, "alarms", alarms(w.status("p")), strings.Join([]string{
		`address_taken: 192.0.2.1 is leased to held, but it is also this host's own address on eth0`,
		`notice: 192.0.2.2 is held out of pool "p": it is this host's own address on eth0`,
		`notice: 192.0.2.3 is held out of pool "p": it is a gateway of this host`,
		`notice: 2001:db8::2 is held out of pool "p": it is this host's own address on eth1`,
	}, "\n"))
	same(t, "held out", w.status("p").HeldOut, 4)
	same(t, "ranges held out", heldOut(w.status("p")), strings.Join([]string{
		"192.0.2.1/32 own_address: this host's own address on eth0", "192.0.2.2/32 own_address: this host's own address on eth0",
		"192.0.2.3/32 gateway: a gateway of this host", "2001:db8::2/128 own_address: this host's own address on eth1",
	}, "\n"))
}

func TestPoolOverAForeignRoute(t *testing.T) {
	w := newWorld(t, pools(pool("wide", "10.0.0.0/16"), pool("lan", "192.0.2.128/25"), pool("demo", "127.96.0.0/24")))
	route := func(p, link string) hostnet.Route { return hostnet.Route{Prefix: prefixes(p)[0], Link: link} }
	w.a.SetHost(hostnet.Snapshot{Routes: []hostnet.Route{
		route("10.0.3.0/24", "docker0"), route("10.0.0.0/16", "tun0"), route("192.0.2.0/24", "eth0"),
		route("127.0.0.0/8", "lo"), route("127.96.0.0/24", "lo"), route("172.17.0.0/16", "docker0"),
	}})
	got := alarms(w.status("wide"))
	for _, want := range []string{"covers the whole route 10.0.3.0/24 of docker0", "covers the whole route 10.0.0.0/16 of tun0"} {
		expect.Contains(t, got, want, "alarms")
	}
	same(t, "a pool inside a subnet", alarms(w.status("lan")), "")
	same(t, "a loopback pool", alarms(w.status("demo")), "")
	same(t, "it is a warning only", w.get("a", from("wide")), "10.0.1.1")

	var many []hostnet.Route
	for i := range 100 {
		many = append(many, route(fmt.Sprintf("10.0.%d.0/24", i), "tun0"))
	}
	w.a.SetHost(hostnet.Snapshot{Routes: many})
	if s := w.status("wide"); len(s.Alarms) != 11 || !strings.Contains(s.Alarms[10].Message, "90 more") {
		t.Errorf("%d alarms, the last %v", len(s.Alarms), s.Alarms[len(s.Alarms)-1])
	}
}

// A change of the host's network wakes waiting services only if it changes what may be allocated.
func TestHostChangesThatDontMatter(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	waiting := w.a.Freed()
	w.a.SetHost(hostnet.Snapshot{Routes: []hostnet.Route{{Prefix: prefixes("10.0.0.0/8")[0], Link: "tun0"}}})
	expect.False(t, freed(waiting), "woken by a route")
	w.a.SetHost(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: prefixes("192.0.2.2/24")[0], Link: "eth0"}}})
	expect.True(t, freed(waiting), "not woken by an address")
}

func TestConfigureWakesWaitingServices(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28")))
	everyone := w.a.Reconfigured()
	w.get("a")
	w.release("a")
	w.a.SetPodCIDRs("kubernetes", prefixes("192.0.2.0/30"))
	expect.False(t, freed(everyone), "everyone is woken by what isn't the configuration")
	waiting := w.a.Freed()
	w.configure(pools(pool("p", "192.0.2.0/28", "2001:db8::/64")))
	if !freed(everyone) || !freed(waiting) {
		t.Errorf("everyone woken: %v, waiting services: %v", freed(everyone), freed(waiting))
	}
	expect.False(t, freed(w.a.Reconfigured()), "the channel is not replaced")
}

func TestConfigureWithProblemsChangesNothing(t *testing.T) {
	good := pools(pool("p", "192.0.2.0/28"))
	w := newWorld(t, good)
	everyone := w.a.Reconfigured()
	for name, bad := range map[string]ipam.Config{
		"overlap":    pools(pool("p", "10.0.0.0/24"), pool("q", "10.0.0.128/25")),
		"pods":       {Pools: good.Pools, PodCIDRs: prefixes("192.0.0.0/16")},
		"node ports": {Pools: good.Pools, NodePorts: ipam.PortRange{First: 9, Last: 8}},
	} {
		expect.Len(t, w.a.Configure(bad), 1, name)
		_, err := allocator.New(t.Context(), w.store, bad, allocator.Options{Clock: nil})
		expect.True(t, err != nil, "%s: an allocator starts with it", name)
	}
	expect.False(t, freed(everyone), "everyone is woken by a refused configuration")
	same(t, "still", w.get("a"), "192.0.2.1")
	useless := good.Pools[0]
	useless.Exclude = prefixes("10.0.0.0/8")
	w.configure(pools(useless))
	same(t, "a warning shows", alarms(w.status("p")), `notice: pool "p" excludes 10.0.0.0/8, which is outside of its ranges`)
}

// A pool says that it has lost the range of what it has leased, and that nothing is left to give.
func TestShrunkPool(t *testing.T) {
	w := newWorld(t, pools(pool("p", "192.0.2.0/28"), pool("q", "198.51.100.0/30")))
	w.get("a", requests("192.0.2.12"))
	w.get("b", requests("192.0.2.3"))
	same(t, "before", alarms(w.status("p")), "")
	smaller := pool("p", "192.0.2.0/29")
	w.configure(pools(smaller, pool("q", "198.51.100.0/30")))
	const shrunk = `notice: pool "p" has shrunk: addresses outside of its ranges, which their services keep: 1`
	same(t, "shrunk", alarms(w.status("p")), shrunk)
	same(t, "the other pool", alarms(w.status("q")), "")
	w.restart()
	same(t, "after a restart", alarms(w.status("p")), shrunk)
	smaller.Exclude = prefixes("192.0.2.0/24")
	w.configure(pools(smaller))
	same(t, "empty", alarms(w.status("p")), `notice: pool "p" has nothing to give: all of its ipv4 addresses are excluded or held out
notice: pool "p" has shrunk: addresses outside of its ranges, which their services keep: 2`)
	w.configure(pools(pool("p", "192.0.2.0/28")))
	same(t, "grown again", alarms(w.status("p")), "")
	w.configure(pools(pool("p", "192.0.2.0/29")))
	w.release("a")
	same(t, "released, in its cooldown", alarms(w.status("p")), "")
}
