//go:build linux

package l2_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

var (
	vip4 = netip.MustParseAddr("10.78.0.200")
	vip6 = netip.MustParseAddr("fd78::200")
	vips = []netip.Addr{vip4, vip6}
)

// deadMan is long enough for a machine that stands still for a while: after its end, a speaker owns nothing. Tests that wait for it use a shorter one.
const deadMan = time.Minute

func defaults() settings {
	return settings{
		Interfaces: []string{"eth0"}, Device: "lo", DeadMan: deadMan,
		Pools: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/24"), netip.MustParsePrefix("fd78::/64"), netip.MustParsePrefix("10.99.0.0/16"), netip.MustParsePrefix("fd99::/64")},
	}
}

// lab is a LAN with two hosts that have the virtual addresses on lo, and a client. The pools contain
// the hosts' own addresses.
type lab struct {
	*netlab.LAN
	a, b, client *netlab.Node
	watch        *observer
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{LAN: netlab.NewLAN(t, "a", "b", "client")}
	l.a, l.b, l.client = l.Nodes[0], l.Nodes[1], l.Nodes[2]
	for _, n := range []*netlab.Node{l.a, l.b} {
		hold(n)
	}
	l.watch = observe(t, l.client, vips...)
	return l
}

// pair returns a lab with a speaker on both hosts, and the first one.
func pair(t *testing.T) (*lab, *speaker) {
	l := newLab(t)
	a := start(t, l.a, defaults())
	start(t, l.b, defaults())
	return l, a
}

// hold gives a node the virtual addresses.
func hold(n *netlab.Node) {
	n.AddAddr("lo", netip.PrefixFrom(vip4, 32))
	n.AddAddr("lo", netip.PrefixFrom(vip6, 128))
}

// sample is one claim that the client received.
type sample struct {
	at   time.Time // when it arrived
	addr netip.Addr
	mac  string
}

// observer asks every 10 ms for each address, and records who claims to have which address, in
// answers and announcements.
type observer struct {
	t     *testing.T
	addrs []netip.Addr

	mu      sync.Mutex
	samples []sample
}

const askEvery = 10 * time.Millisecond

func observe(t *testing.T, n *netlab.Node, addrs ...netip.Addr) *observer {
	t.Helper()
	return observeOn(t, n, "eth0", addrs...)
}

// observeOn asks on a device of a node.
func observeOn(t *testing.T, n *netlab.Node, dev string, addrs ...netip.Addr) *observer {
	t.Helper()
	o := &observer{t: t, addrs: addrs}
	var arp, nd *wire.Socket
	var err, err2 error
	n.Do(func() {
		arp, err = wire.Open(frame.TypeARP)
		nd, err2 = wire.Open(frame.TypeIPv6)
	})
	must.Succeed(t, errors.Join(err, err2))
	link := device(t, n, dev)
	mac := frame.MAC(link.Attrs().HardwareAddr)
	n.Frames(t, dev, frame.TypeARP, func(at time.Time, b []byte) {
		for _, c := range frame.ARPClaims(b) {
			o.note(at, c)
		}
	})
	n.Frames(t, dev, frame.TypeIPv6, func(at time.Time, b []byte) { o.note(at, frame.NDPClaim(b)) })
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for tick := time.NewTicker(askEvery); ; {
			for _, a := range addrs {
				if a.Is4() {
					q := frame.AppendProbe(nil, mac, a)
					copy(q[14+14:], n.Addr4.AsSlice()) // an ordinary question
					_ = arp.Send(link.Attrs().Index, q)
				} else {
					_ = nd.Send(link.Attrs().Index, frame.AppendVerify(nil, mac, n.Addr6, a))
				}
			}
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		arp.Close()
		nd.Close()
		running.Wait()
	})
	return o
}

func (o *observer) note(at time.Time, c frame.Claim) {
	if c.Kind != frame.Holds || !slices.Contains(o.addrs, c.Addr) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.samples = append(o.samples, sample{at, c.Addr, c.From.String()})
}

// after returns the claims of an address since a time.
func (o *observer) after(t time.Time, a netip.Addr) (all []sample) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.samples {
		if s.addr == a && s.at.After(t) {
			all = append(all, s)
		}
	}
	return all
}

// answered waits until exactly the named stations have answered for each address, for a while.
func (o *observer) answered(what string, addrs []netip.Addr, macs ...string) {
	o.t.Helper()
	for _, a := range addrs {
		wait.Until(o.t, fmt.Sprintf("%s: answers for %v come from %v", what, a, macs), func() bool {
			return o.hears(a, macs...)
		}, func() any { return o.after(time.Now().Add(-100*time.Millisecond), a) })
	}
}

// hears reports whether answers for an address come from exactly these stations now.
func (o *observer) hears(a netip.Addr, macs ...string) bool {
	start := time.Now()
	time.Sleep(8 * askEvery)
	var from []string
	for _, s := range o.after(start, a) {
		if !slices.Contains(from, s.mac) {
			from = append(from, s.mac)
		}
	}
	slices.Sort(from)
	return slices.Equal(from, slices.Sorted(slices.Values(macs)))
}

// owns gives a speaker the addresses and waits until it answers for them. A busy machine can stop it for longer than
// its dead-man time: then it gets them again. It returns how often the speaker has lapsed.
func (o *observer) owns(a *speaker, addrs ...netip.Addr) (lapses int) {
	o.t.Helper()
	lapses = a.lapsed()
	a.own(addrs...)
	wait.Until(o.t, a.name+" owns the addresses", func() bool {
		if n := a.lapsed(); n > lapses {
			lapses = n
			a.own(addrs...)
		}
		return !slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return !o.hears(addr, a.mac) })
	})
	return lapses
}

// silentSince checks that a station has claimed none of the addresses since a time.
func (o *observer) silentSince(since time.Time, mac string, addrs ...netip.Addr) {
	o.t.Helper()
	for _, a := range addrs {
		for _, s := range o.after(since, a) {
			if s.mac == mac {
				o.t.Errorf("%s claimed %v %v after it had to be silent", mac, a, s.at.Sub(since))
				break
			}
		}
	}
}

// lastClaim returns when a station last claimed an address.
func (o *observer) lastClaim(mac string, a netip.Addr) (at time.Time) {
	for _, s := range o.after(time.Time{}, a) {
		if s.mac == mac {
			at = s.at
		}
	}
	return at
}

// learn makes a node resolve addresses, so that it has them in its neighbor cache.
func learn(t *testing.T, n *netlab.Node, addrs ...netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		wait.Until(t, fmt.Sprintf("%s knows the station of %v", n.Name, a), func() bool {
			send(t, n, a)
			time.Sleep(5 * time.Millisecond)
			return cached(t, n, a) != ""
		})
	}
}

func send(t *testing.T, n *netlab.Node, a netip.Addr) {
	n.Do(func() {
		c := must.Get(net.Dial("udp", netip.AddrPortFrom(a, 9).String()))(t)
		defer c.Close()
		_, _ = c.Write([]byte("x"))
	})
}

// cached returns the station of an address in a node's neighbor cache.
func cached(t *testing.T, n *netlab.Node, a netip.Addr) string {
	t.Helper()
	link := must.Get(n.Netlink.LinkByName("eth0"))(t)
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	for _, x := range netlab.List(t, func() ([]netlink.Neigh, error) { return n.Netlink.NeighList(link.Attrs().Index, family) }) {
		if got, _ := netip.AddrFromSlice(x.IP); got.Unmap() == a && x.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
			return x.HardwareAddr.String()
		}
	}
	return ""
}

// points waits until a node sends packets for addresses to a station.
func points(t *testing.T, n *netlab.Node, mac string, addrs ...netip.Addr) {
	t.Helper()
	for _, a := range addrs {
		wait.Until(t, fmt.Sprintf("%s sends to %v at %s", n.Name, a, mac), func() bool { return cached(t, n, a) == mac }, func() any { return cached(t, n, a) })
	}
}

// read reads a file in a node's namespace.
func read(t *testing.T, n *netlab.Node, path string) (text string) {
	t.Helper()
	n.Do(func() {
		b := must.Get(os.ReadFile(path))(t)
		text = string(b)
	})
	return text
}

func device(t *testing.T, n *netlab.Node, name string) netlink.Link {
	t.Helper()
	return must.Get(n.Netlink.LinkByName(name))(t)
}

// sendFrom sends a datagram with a source address, in the calling thread's namespace.
func sendFrom(t *testing.T, from, to netip.Addr) {
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	c := must.Get(d.Dial("udp", netip.AddrPortFrom(to, 9).String()))(t)
	defer c.Close()
	_, _ = c.Write([]byte("x"))
}

func hex(b []byte) string { return fmt.Sprintf("%x", b) }
