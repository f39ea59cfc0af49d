//go:build system

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
)

// Two hosts are on two LANs, with a pool on each. A host answers for a VIP on the LAN of its pool only. An interface that fails, or
// that a reload names wrongly, moves the VIPs of its pool, and the other ones stay: heartbeats have the other LAN.
func TestTwoLANs(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 2)
	second := netlab.NewLAN(t, "x1", "x2", "x3", "client")
	client := second.Nodes[3]
	client.AddAddr("eth0", netip.MustParsePrefix("10.79.0.100/24"))
	const front, back = 0, 1
	pools := [2][]netip.Addr{vips(), nil}
	text := services(serviceCount, l.backends)
	for i := range serviceCount {
		vip := netip.AddrFrom4([4]byte{10, 79, 0, byte(130 + i)})
		pools[back] = append(pools[back], vip)
		text += fmt.Sprintf("[[service]]\nname = \"back%d\"\nvips = [%q]\nports = [{ port = %d }]\nbackends = [{ address = %q, port = 9000 }]\nhealth = { type = \"none\" }\n", i, vip, servicePort, l.backends[0])
	}
	var peers []string
	ports := map[*host]string{}
	for i, h := range l.hosts {
		ports[h] = second.Connect(h.Node, "eth1")
		on := netip.AddrFrom4([4]byte{10, 79, 0, byte(1 + i)})
		h.AddAddr("eth1", netip.PrefixFrom(on, 24))
		peers = append(peers, fmt.Sprintf("%q, %q", h.Addr4, on))
	}
	for _, h := range l.hosts {
		h.configure(text, l.config(h, "l2", fmt.Sprintf("peers = [%s]\nkey_file = \"key\"\n%s", strings.Join(peers, ", "), patient)+
			"[[pool]]\nname = \"back\"\ncidrs = [\"10.79.0.128/25\"]\nannounce_interfaces = [\"eth1\"]\n"))
		h.start()
	}
	a, b := l.hosts[0], l.hosts[1]
	l.settled()
	start := l.decisions()
	owned := func(pool int) netip.Addr {
		i := slices.IndexFunc(pools[pool], func(vip netip.Addr) bool { return vip.Is4() && start[decisionAt{a.Name, vip}].owner == a.Name })
		must.True(t, i >= 0, "%s owns no VIP of the pool", a.Name)
		return pools[pool][i]
	}
	mac := func(dev string) []string { return []string{a.MAC(dev)} }
	expect.SameList(t, answers(t, l.client, owned(back), owned(front)), mac("eth0"), "answers on the LAN of the first pool")
	expect.SameList(t, answers(t, client, owned(front), owned(back)), mac("eth1"), "answers on the LAN of the second pool")

	// moved waits until b owns all VIPs of a pool, and checks that nothing has happened to the other pool.
	moved := func(what string, pool int) {
		t.Helper()
		wait.For(t, what, func() error {
			for at, d := range l.decisions() {
				if slices.Contains(pools[pool], at.vip) && d.owner != b.Name {
					return fmt.Errorf("%s: %s: %+v", at.host, at.vip, d)
				}
			}
			return nil
		})
		for at, d := range l.decisions() {
			if slices.Contains(pools[1-pool], at.vip) {
				expect.Equal(t, d, start[at], "%s: %v", what, at)
			}
		}
	}
	// returned waits until the owners are those of the start.
	returned := func(pool int) {
		t.Helper()
		wait.For(t, "the first owners", func() error {
			for at, d := range l.decisions() {
				if slices.Contains(pools[pool], at.vip) && d.owner != start[at].owner {
					return fmt.Errorf("%s: %s: %+v", at.host, at.vip, d)
				}
			}
			return nil
		})
		start = l.decisions()
	}
	carrier := func(up bool) {
		t.Helper()
		port, err := second.Switch.Netlink.LinkByName(ports[a])
		set := second.Switch.Netlink.LinkSetDown
		if up {
			set = second.Switch.Netlink.LinkSetUp
		}
		must.Succeed(t, errors.Join(err, set(port)))
	}
	status := func(want string) {
		t.Helper()
		out := func() string { text, _ := a.run("status"); return text }
		wait.Until(t, "status: "+want, func() bool { return strings.Contains(out(), want) }, func() any { return out() })
	}
	of := owned(back)
	carrier(false)
	moved("the second LAN fails", back)
	wait.For(t, "the service answers on the second LAN", func() error {
		_, err := client.Ask("tcp", netip.AddrPortFrom(of, servicePort))
		return err
	})
	expect.Contains(t, a.must("announce", "explain", of.String()), a.Name+" can't announce it: eth1: link down", "explanation")
	status("l2 interfaces of pool: back: eth1: link down")
	carrier(true)
	returned(back)

	l.setPort(a, false)
	moved("the first LAN fails", front)
	l.setPort(a, true)
	returned(front)

	a.edit(`announce_interfaces = ["eth1"]`, `announce_interfaces = ["eth9"]`)
	a.must("reload")
	moved("a wrong name", back)
	status("l2 interfaces of pool: back: eth9: link missing")
	a.edit(`announce_interfaces = ["eth9"]`, `announce_interfaces = ["eth1"]`)
	a.must("reload")
	returned(back)
}

// answers asks on a node's LAN for two VIPs, and returns which stations have answered when one answers for the second VIP. A host
// reads the questions in order.
func answers(t *testing.T, n *netlab.Node, first, second netip.Addr) (macs []string) {
	t.Helper()
	var mu sync.Mutex
	done := false
	n.Frames(t, "eth0", frame.TypeARP, func(_ time.Time, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range frame.ARPClaims(b) {
			if c.Kind == frame.Holds && (c.Addr == first || c.Addr == second) {
				if done = done || c.Addr == second; !slices.Contains(macs, c.From.String()) {
					macs = append(macs, c.From.String())
				}
				expect.Equal(t, c.Addr, second, "an answer")
			}
		}
	})
	var socket *wire.Socket
	var err error
	n.Do(func() { socket, err = wire.Open(frame.TypeARP) })
	link, e := n.Netlink.LinkByName("eth0")
	must.Succeed(t, errors.Join(err, e))
	defer socket.Close()
	wait.For(t, "an answer", func() error {
		for _, vip := range []netip.Addr{first, second} {
			if err := socket.Send(link.Attrs().Index, frame.AppendProbe(nil, frame.MAC(link.Attrs().HardwareAddr), vip)); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if !done {
			return fmt.Errorf("none yet, %v", macs)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(macs)
}
