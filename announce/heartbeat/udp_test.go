package heartbeat

import (
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// A full queue is an error of its own; others concern the peer.
func TestWriteErrors(t *testing.T) {
	c := must.Get(Listen("127.0.0.1:0"))(t)
	defer c.Close()
	to := netip.MustParseAddrPort(c.udp.LocalAddr().String())
	expect.Succeed(t, c.Write(to, []byte("x")))
	for fault, want := range map[error]error{unix.ENOBUFS: ErrBusy, unix.EAGAIN: ErrBusy, unix.EHOSTUNREACH: unix.EHOSTUNREACH} {
		c.sendto = func([]byte, netip.AddrPort) (int, error) { return 0, fault }
		expect.Is(t, c.Write(to, []byte("x")), want, "%v", fault)
	}
}

// The kernel tells that the queue of an interface has no room for a packet. An ICMP error that an earlier
// packet has caused stops no later one.
func TestQueueOfTheInterface(t *testing.T) {
	tc := need.Program(t, "tc")
	lan := netlab.NewLAN(t, "a", "b")
	a, b := lan.Nodes[0], lan.Nodes[1]
	listen := func(n *netlab.Node) (c *Conn) {
		t.Helper()
		var err error
		n.Do(func() { c, err = Listen(":0") })
		must.Succeed(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	from, to := listen(a), listen(b)
	port := netip.MustParseAddrPort(to.udp.LocalAddr().String()).Port()
	packet := make([]byte, 100)
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		for i := range 3 {
			if err := from.Write(netip.AddrPortFrom(addr, 9), packet); err != nil { // nobody listens
				t.Errorf("%s: %v", addr, err)
			}
			packet[0] = byte(i)
			expect.Succeed(t, from.Write(netip.AddrPortFrom(addr, port), packet), "%s", addr)
			if p, err := to.Read(); err != nil || !slices.Equal(p.Data, packet) {
				t.Errorf("%s: received %v, %v", addr, p, err)
			}
		}
	}
	var out []byte
	var err error
	a.Do(func() {
		out, err = exec.Command(tc, "qdisc", "add", "dev", "eth0", "root", "bfifo", "limit", "60").CombinedOutput()
	})
	must.Succeed(t, err, "tc: %s", out)
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		expect.Is(t, from.Write(netip.AddrPortFrom(addr, port), packet), ErrBusy, "%s", addr)
	}
}
