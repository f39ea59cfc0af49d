//go:build linux

package gate_test

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

var (
	vip4   = netip.MustParseAddr("10.78.0.200")
	vip6   = netip.MustParseAddr("fd78::200")
	pools  = []string{"10.78.0.192/26", "fd78::200/120"}
	outlaw = netip.MustParseAddr("10.78.0.99") // in no pool
	both   = []netip.Addr{vip4, vip6}
)

// bench is a host with virtual addresses and a gate, and a client on the same LAN.
type bench struct {
	*testing.T
	host, client *netlab.Node
	gate         *gate.Gate
	index        int
	mac          frame.MAC
	arp, nd      *wire.Socket // the host's
	seen         chan frame.Claim
}

func newBench(t *testing.T) *bench {
	t.Helper()
	lan := netlab.NewLAN(t, "host", "client")
	b := &bench{T: t, host: lan.Nodes[0], client: lan.Nodes[1], seen: make(chan frame.Claim, 1000)}
	// The kernel has the addresses on another device, as with ironvip0.
	b.host.AddAddr("lo", netip.PrefixFrom(vip4, 32))
	b.host.AddAddr("lo", netip.PrefixFrom(vip6, 128))
	link, err := b.host.Netlink.LinkByName("eth0")
	b.must(err)
	b.index, b.mac = link.Attrs().Index, frame.MAC(link.Attrs().HardwareAddr)
	b.host.Do(func() {
		b.gate, err = gate.New(t.Context(), set(pools...), []gate.Interface{{Index: b.index, Name: "eth0"}})
		b.must(err)
		t.Cleanup(b.gate.Close)
		b.arp, b.nd = b.socket(frame.TypeARP), b.socket(frame.TypeIPv6)
	})
	need.KernelFeature(t, linux.Egress, b.gate.Egress)
	b.client.Do(func() {
		arp, nd := b.socket(frame.TypeARP), b.socket(frame.TypeIPv6)
		go arp.Receive(func(_ int, f []byte) {
			for _, c := range frame.ARPClaims(f) {
				b.note(c)
			}
		})
		go nd.Receive(func(_ int, f []byte) { b.note(frame.NDPClaim(f)) })
	})
	return b
}

func (b *bench) note(c frame.Claim) {
	if c.Kind == frame.Holds && c.From == b.mac {
		b.seen <- c
	}
}

func (b *bench) must(err error) {
	b.Helper()
	must.Succeed(b, err)
}

func (b *bench) socket(typ uint16) *wire.Socket {
	b.Helper()
	s, err := wire.Open(typ)
	b.must(err)
	b.Cleanup(func() { s.Close() })
	return s
}

func set(prefixes ...string) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		b.AddPrefix(netip.MustParsePrefix(p))
	}
	s, _ := b.IPSet()
	return s
}

// announce sends an announcement from the host. It returns false if the kernel drops it.
func (b *bench) announce(a netip.Addr) bool {
	b.Helper()
	s := b.nd
	if a.Is4() {
		s = b.arp
	}
	err := s.Send(b.index, frame.AppendAnnounce(nil, b.mac, a))
	if err != nil && !errors.Is(err, wire.ErrBusy) {
		b.Fatal(err)
	}
	return err == nil
}

// reaches checks whether announcements of addresses pass the gate. A frame on a veth pair arrives
// before the next one is sent.
func (b *bench) reaches(want bool, addrs ...netip.Addr) {
	b.Helper()
	for _, a := range addrs {
		if got := b.announce(a); got != want {
			b.Errorf("%v: the gate lets the announcement pass: %v, want %v", a, got, want)
		} else if want {
			b.expect(a)
		}
	}
	if !want {
		b.nothing()
	}
}

// expect waits for an announcement.
func (b *bench) expect(a netip.Addr) {
	b.Helper()
	for {
		select {
		case c := <-b.seen:
			if c.Addr == a {
				return
			}
		case <-time.After(wait.Timeout):
			b.Fatalf("%v: no announcement arrived", a)
		}
	}
}

// nothing checks that the client received nothing before an announcement of an address outside the
// pools.
func (b *bench) nothing() {
	b.Helper()
	b.announce(outlaw)
	for {
		select {
		case c := <-b.seen:
			if c.Addr == outlaw {
				return
			}
			b.Errorf("the client received a claim of %v", c.Addr)
		case <-time.After(wait.Timeout):
			b.Fatal("the last announcement didn't arrive")
		}
	}
}

func (b *bench) open(addrs ...netip.Addr) { b.Helper(); b.must(b.gate.Change(b.Context(), addrs, nil)) }
func (b *bench) shut(addrs ...netip.Addr) { b.Helper(); b.must(b.gate.Change(b.Context(), nil, addrs)) }
func (b *bench) refresh(d time.Duration) {
	b.Helper()
	b.must(b.gate.Refresh(b.Context(), time.Now().Add(d), b.index))
}

func (b *bench) nft(args ...string) string {
	b.Helper()
	need.Program(b.T, "nft")
	var out []byte
	var err error
	b.host.Do(func() { out, err = exec.Command("nft", args...).CombinedOutput() })
	must.Succeed(b, err, "nft %v: %s", args, out)
	return string(out)
}

const long = time.Hour // a dead-man time that doesn't end during a test

func TestGateOpensForOwnAddressesOfALiveAnnouncer(t *testing.T) {
	b := newBench(t)
	b.reaches(false, both...)
	b.open(both...)
	b.reaches(false, both...) // not alive yet
	b.refresh(long)
	b.reaches(true, both...)
	b.shut(vip4)
	b.reaches(false, vip4)
	b.reaches(true, vip6)
	b.shut(vip6, vip4)
	b.reaches(false, both...)
	b.open(both...)
	b.reaches(true, both...)
	b.must(b.gate.Shut(t.Context()))
	b.reaches(false, both...)
	b.refresh(long)
	b.reaches(false, both...) // Shut forgot the addresses
	b.open(both...)
	b.reaches(true, both...)
	b.must(b.gate.Refresh(t.Context(), time.Now().Add(long))) // no interface is usable
	b.reaches(false, both...)
}

// The elements expire, and each refresh renews them: also on kernels before 6.12, where adding an
// element again doesn't.
func TestDeadManSwitch(t *testing.T) {
	b := newBench(t)
	b.open(both...)
	const dead = 400 * time.Millisecond
	start := time.Now()
	for time.Since(start) < 3*dead { // longer than one time-out
		began := time.Now() // the element lives for dead from here on
		b.refresh(dead)
		time.Sleep(dead / 20)
		passed := b.announce(vip4) && b.announce(vip6)
		if !passed && time.Since(began) < dead/2 {
			t.Fatalf("the gate is closed %v after a refresh for %v", time.Since(began), dead)
		}
	}
	last := time.Now() // after the last refresh
	var passed time.Time
	wait.Until(t, "the gate closes", func() bool {
		at := time.Now()
		four, six := b.announce(vip4), b.announce(vip6)
		if four || six {
			passed = at
		}
		return !four && !six
	})
	// The clock of the kernel's time-outs stands still while the host of a VM runs others.
	expect.AtMost(t, passed.Sub(last), 2*dead, "an announcement passed after the last refresh for %v", dead)
	b.refresh(long) // the element has expired
	if !b.announce(vip4) || !b.announce(vip6) {
		t.Error("the gate is closed after a refresh of expired elements")
	}
}

// The kernel has the address on another device. It answers ARP for it, unless the gate is there, and
// answers for its own address in any case.
func TestKernelIsSilent(t *testing.T) {
	b := newBench(t)
	b.open(both...)
	b.refresh(long) // the gate is for this process, not for the kernel
	ask := func(a netip.Addr) (answers int) {
		t.Helper()
		var failed error
		b.client.Do(func() {
			s := b.socket(frame.TypeARP)
			link, err := b.client.Netlink.LinkByName("eth0")
			b.must(err)
			for _, a := range []netip.Addr{a, b.host.Addr4} {
				failed = errors.Join(failed, s.Send(link.Attrs().Index, frame.AppendProbe(nil, frame.MAC(link.Attrs().HardwareAddr), a)))
			}
		})
		b.must(failed)
		for {
			select {
			case c := <-b.seen:
				switch c.Addr {
				case b.host.Addr4: // asked last
					return answers
				case a:
					answers++
				}
			case <-time.After(wait.Timeout):
				t.Fatal("the host doesn't answer for its own address")
			}
		}
	}
	expect.Equal(t, ask(vip4), 0, "answers of the kernel for a virtual address")
	b.host.Do(func() { b.must(gate.Remove(t.Context())) })
	expect.Equal(t, ask(vip4), 1, "answers of the kernel without the gate")
	b.rebuild(pools...)
	expect.Equal(t, ask(vip4), 0, "answers of the kernel for a virtual address after a rebuild")
	// A connection from the virtual address makes the kernel ask with it as the sender, if
	// arp_announce allows it.
	b.host.Sysctl("ipv4/conf/eth0/arp_announce", "0")
	connect := func(to string) {
		t.Helper()
		b.host.Do(func() {
			d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip4, 0))}
			c, err := d.Dial("udp", to)
			b.must(err)
			defer c.Close()
			_, err = c.Write([]byte("?"))
			b.must(err)
		})
	}
	connect("10.78.0.71:9")
	b.nothing()
	b.host.Do(func() { b.must(gate.Remove(t.Context())) })
	connect("10.78.0.72:9")
	b.expect(vip4)
}

// One refresh is one send of three messages, whatever the number of addresses and interfaces. A change
// of one address is one message.
func TestMessagesOfAChange(t *testing.T) {
	b := newBench(t)
	cost := func(what string, sends, messages uint64, f func()) {
		t.Helper()
		before := b.gate.Stats
		f()
		if s, m := b.gate.Stats.Sends-before.Sends, b.gate.Stats.Messages-before.Messages; s != sends || m != messages {
			t.Errorf("%s: %d sends with %d messages, want %d with %d", what, s, m, sends, messages)
		}
	}
	for _, n := range []int{0, 5000} {
		var many []netip.Addr
		for i, a := 0, netip.MustParseAddr("10.99.0.0"); i < n; i, a = i+1, a.Next() {
			many = append(many, a)
		}
		cost("own many", uint64(min(1, n)), uint64(n/1000), func() { b.open(many...) })
		cost("own one", 1, 1, func() { b.open(vip4) })
		cost("own it again", 0, 0, func() { b.open(vip4) })
		cost("refresh", 1, 3, func() { b.refresh(long) })
		cost("refresh again", 1, 3, func() { b.refresh(long) })
		cost("release one", 1, 1, func() { b.shut(vip4) })
		cost("release it again", 0, 0, func() { b.shut(vip4) })
		cost("close", 1, 3, func() { b.must(b.gate.Shut(t.Context())) })
	}
}

// The leftovers of an earlier run are closed first, and foreign tables are untouched.
func TestEarlierRunAndForeignTables(t *testing.T) {
	b := newBench(t)
	b.nft("add", "table", "arp", "other")
	b.nft("add", "chain", "arp", "other", "input", "{ type filter hook input priority 0; }")
	b.nft("add", "table", "netdev", "other")
	b.nft("add", "set", "netdev", "other", "mine", "{ type ipv4_addr; elements = { 10.0.0.1 }; }")
	foreign := b.nft("list", "table", "arp", "other") + b.nft("list", "table", "netdev", "other")
	b.open(both...)
	b.refresh(long)
	b.reaches(true, both...)
	b.gate.Close() // a crash leaves an open gate
	var second *gate.Gate
	var err error
	b.host.Do(func() {
		second, err = gate.New(t.Context(), set(pools...), []gate.Interface{{Index: b.index, Name: "eth0"}})
	})
	b.must(err)
	defer second.Close()
	b.reaches(false, both...)
	b.gate = second
	b.refresh(long)
	b.reaches(false, both...)
	b.open(both...)
	b.reaches(true, both...)
	got := b.nft("list", "table", "arp", "other") + b.nft("list", "table", "netdev", "other")
	expect.Equal(t, got, foreign, "foreign tables changed from\n%s\nto\n", foreign)
	found := func(want ...string) {
		t.Helper()
		b.host.Do(func() {
			expect.SameList(t, must.Get(gate.Find(t.Context()))(t), want, "found")
		})
	}
	found("arp "+gate.TableName, "netdev "+gate.TableName)
	b.host.Do(func() { b.must(gate.Remove(t.Context())) })
	found()
	if list := b.nft("list", "ruleset"); strings.Contains(list, gate.TableName) || !strings.Contains(list, "table arp other") {
		t.Errorf("after the removal:\n%s", list)
	}
	b.host.Do(func() { b.must(gate.Remove(t.Context())) }) // again
}

// rebuild writes the tables again, for these pools.
func (b *bench) rebuild(pools ...string) {
	b.Helper()
	b.must(b.gate.Rebuild(b.Context(), set(pools...), []gate.Interface{{Index: b.index, Name: "eth0"}}))
}

// A rebuild keeps what is open, and for how long.
func TestRebuildKeepsTheState(t *testing.T) {
	b := newBench(t)
	b.open(both...)
	b.refresh(long)
	b.nft("flush", "ruleset")
	b.rebuild(pools...)
	b.reaches(true, both...)
	b.shut(vip6)
	b.rebuild("10.78.0.192/26")
	b.reaches(true, vip6) // no longer guarded
	b.refresh(time.Millisecond)
	wait.Until(t, "the gate closes", func() bool { return !b.announce(vip4) })
	b.rebuild("10.78.0.192/26")
	expect.False(t, b.announce(vip4), "a rebuild opened a gate whose time was over")
	b.refresh(0) // closes what is closed already
	expect.False(t, b.announce(vip4), "no time opened the gate")
}

// Events tell own changes of the tables from those of others.
func TestEvents(t *testing.T) {
	b := newBench(t)
	seen := make(chan bool, 1000) // whether an event is of another program
	b.host.Do(func() {
		events := must.Get(gate.Watch())(t)
		t.Cleanup(func() { events.Close() })
		go func() {
			for {
				e, err := events.Next()
				if err != nil {
					return
				}
				if gate.Touches(e) {
					seen <- e.Port != b.gate.Port()
				}
			}
		}()
	})
	next := func() bool {
		t.Helper()
		select {
		case f := <-seen:
			return f
		case <-time.After(wait.Timeout):
			t.Fatal("no event")
			return false
		}
	}
	b.open(vip4)
	expect.False(t, next(), "an own change is reported as foreign")
	b.nft("add", "table", "netdev", "other") // of no interest
	for _, change := range [][]string{
		{"delete", "element", "netdev", gate.TableName, "mine4", "{ " + vip4.String() + " }"},
		{"flush", "chain", "arp", gate.TableName, "kernel"},
		{"delete", "table", "netdev", gate.TableName},
		{"flush", "ruleset"},
	} {
		b.nft(change...)
		if !next() {
			t.Errorf("nft %s: reported as an own change", strings.Join(change, " "))
		}
		for len(seen) > 0 {
			<-seen
		}
	}
}

func TestListing(t *testing.T) {
	b := newBench(t)
	b.open(both...)
	b.refresh(long)
	list := b.nft("list", "table", "arp", gate.TableName) + b.nft("list", "table", "netdev", gate.TableName)
	for _, want := range []string{"arp saddr ip @guarded4 drop", "10.78.0.192/26", vip4.String(), vip6.String(), "oif @alive accept", `hook egress device "eth0"`, "goto claims6", "timeout"} {
		expect.Contains(t, list, want)
	}
}

// BenchmarkEgress has the cost of the egress hook for packets that are not the gate's business: UDP over
// a veth, in ns per packet with and without the gate, which take turns. The receiver's part is included,
// so a ratio to the sender alone would be greater.
func BenchmarkEgress(b *testing.B) {
	const packets, rounds = 20_000, 21
	for _, v6 := range []bool{false, true} {
		b.Run(map[bool]string{false: "ipv4", true: "ipv6"}[v6], func(b *testing.B) {
			lan := netlab.NewLAN(b, "host", "client")
			host, client := lan.Nodes[0], lan.Nodes[1]
			link := must.Get(host.Netlink.LinkByName("eth0"))(b)
			to := netip.AddrPortFrom(map[bool]netip.Addr{false: client.Addr4, true: client.Addr6}[v6], 9000)
			client.ListenPacket(to) // nobody reads: what doesn't fit is dropped
			conn := must.Get(host.DialContext(b.Context(), "udp", to.String()))(b)
			defer conn.Close()
			payload := make([]byte, 100)
			round := func() float64 {
				began := time.Now()
				for range packets {
					must.Get(conn.Write(payload))(b)
				}
				return float64(time.Since(began).Nanoseconds()) / packets
			}
			round()
			var without, with []float64
			for b.Loop() {
				host.Do(func() {
					for range rounds {
						without = append(without, round())
						g := must.Get(gate.New(b.Context(), set(pools...), []gate.Interface{{Index: link.Attrs().Index, Name: "eth0"}}))(b)
						with = append(with, round())
						g.Close()
						must.Succeed(b, gate.Remove(b.Context()))
					}
				})
			}
			slices.Sort(without)
			slices.Sort(with)
			before, after := without[len(without)/2], with[len(with)/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(before, "ns/packet-without")
			b.ReportMetric(after, "ns/packet-with")
			b.ReportMetric(after/before, "ratio")
		})
	}
}
