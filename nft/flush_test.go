package nft

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// needOwnedTables skips the test on a kernel that can't hold connections.
func (w *world) needOwnedTables() {
	w.t.Helper()
	table := filter.Of(w.layout, &w.nftMessages)
	var err error
	w.Director.Do(func() { err = table.PinConntrack(w.t.Context()) })
	table.Close()
	need.KernelFeature(w.t, linux.OwnedTables, err == nil)
}

// Another program flushes the ruleset, and nothing repairs the table. Open connections go on in both directions, whoever
// sends first.
func TestOpenConnectionsOutliveAFlush(t *testing.T) {
	for _, m := range []vip.Masquerade{vip.MasqueradeAlways, vip.MasqueradeOwn} {
		w := newWorld(t)
		w.needOwnedTables()
		l := w.Backends[0].Listen(netip.AddrPortFrom(w.Backends[0].Addr4, 0))
		f := frontend("10.96.0.1", 80, vip.TCP, vip.Endpoint{Addr: l.Addr().(*net.TCPAddr).AddrPort(), Weight: 1})
		f.Masquerade = m
		w.set(f)
		for _, clientFirst := range []bool{false, true} {
			w.Put(t, updateOf{Key: f.Key, Old: &f, New: &f, Repair: true})
			client := must.Get(w.Client.DialContext(t.Context(), "tcp", "10.96.0.1:80"))(t)
			defer client.Close()
			server := must.Get(l.Accept())(t)
			defer server.Close()
			w.run("nft flush ruleset")
			pass := func(from, to net.Conn) {
				t.Helper()
				_ = to.SetReadDeadline(time.Now().Add(10 * time.Second))
				must.Get(from.Write([]byte("hello")))(t)
				_, err := io.ReadFull(to, make([]byte, 5))
				must.Succeed(t, err, "masquerade %v, client first %v", m, clientFirst)
			}
			if clientFirst {
				pass(client, server)
				pass(server, client)
			} else {
				pass(server, client)
				pass(client, server)
			}
		}
	}
}

// Between a flush and the repair, this host answers new clients. After it, they reach their backends, also a client of UDP
// that goes on with the same socket. Clients of UDP that were there before stay where they are.
func TestClientsThatCameAfterAFlush(t *testing.T) {
	w := newWorld(t)
	f := frontend("10.96.0.1", 53, vip.UDP, w.servers("udp", false, 0)...)
	ranged := frontend("10.96.0.1", 6000, vip.UDP, w.servers("udp", false, 0)...)
	ranged.Key.LastPort = 6009
	w.set(f)
	w.set(ranged)
	dial := func(port uint16) *netlab.Conn {
		c := must.Get(w.Client.Dial("udp", netip.AddrPortFrom(f.Key.Addr, port)))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	ports := []uint16{53, 6005}
	before, names, after := map[uint16]*netlab.Conn{}, map[uint16]string{}, map[uint16]*netlab.Conn{}
	for _, port := range ports {
		before[port], after[port] = dial(port), dial(port)
		a := must.Get(before[port].Ask())(t)
		names[port] = a.Name
	}
	w.run("nft flush ruleset")
	for _, port := range ports {
		if a, err := after[port].Ask(); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without a table: %v %v", a, err)
		}
	}
	w.Put(t, updateOf{Key: f.Key, Old: &f, New: &f, Repair: true})
	for _, port := range ports {
		if _, err := after[port].Ask(); err != nil {
			t.Errorf("port %d: a client that came before the repair: %v", port, err)
		}
		if a, err := before[port].Ask(); err != nil || a.Name != names[port] {
			t.Errorf("port %d: an open one: %v %v, want %s", port, a, err, names[port])
		}
	}
}

// The table that holds connections goes with the agent, and is the only one besides that of the dataplane.
func TestHoldEndsWithTheAgent(t *testing.T) {
	w := newWorld(t)
	w.needOwnedTables()
	w.set(frontend("10.96.0.1", 80, vip.TCP, w.servers("tcp", false, 0)...))
	expect.Equal(t, strings.Count(w.list(), "table inet ironvip_nft_"), 1, "tables hold connections")
	w.Director.Do(func() { w.Close() })
	if text := w.list(); strings.Contains(text, "ironvip_nft_") || !strings.Contains(text, "table inet ironvip_nft ") {
		t.Errorf("after the agent:\n%s", text)
	}
}

// A connection that a process of this host accepted at a virtual address before there was a table goes on, whatever its next
// packet is. Connection tracking calls an end or a reset invalid, because it has not seen the connection.
func TestConnectionsOlderThanTheTable(t *testing.T) {
	need.Root(t)
	for _, address := range []string{"10.96.0.1", "fd96::1"} {
		lab := netlab.New(t)
		at := netip.AddrPortFrom(netip.MustParseAddr(address), 80)
		lab.Director.AddAddr("lo", netip.PrefixFrom(at.Addr(), at.Addr().BitLen()))
		l := lab.Director.Listen(at)
		open := func() (client, server *net.TCPConn) {
			c := must.Get(lab.Client.DialContext(t.Context(), "tcp", at.String()))(t)
			t.Cleanup(func() { c.Close() })
			s := must.Get(l.Accept())(t)
			t.Cleanup(func() { s.Close() })
			return c.(*net.TCPConn), s.(*net.TCPConn)
		}
		cases := map[string]struct {
			end  func(client, server *net.TCPConn) (other net.Conn)
			want error
		}{
			"the client closes":  {func(c, s *net.TCPConn) net.Conn { _ = c.Close(); return s }, io.EOF},
			"the process closes": {func(c, s *net.TCPConn) net.Conn { _ = s.Close(); return c }, io.EOF},
			"the client resets":  {func(c, s *net.TCPConn) net.Conn { _ = c.SetLinger(0); _ = c.Close(); return s }, syscall.ECONNRESET},
			"the process resets": {func(c, s *net.TCPConn) net.Conn { _ = s.SetLinger(0); _ = s.Close(); return c }, syscall.ECONNRESET},
		}
		type pair struct{ client, server *net.TCPConn }
		pairs := map[string]pair{}
		for name := range cases {
			c, s := open()
			pairs[name] = pair{c, s}
		}
		client, server := open()
		w := worldIn(t, lab)
		w.set(frontend(address, 80, vip.TCP, w.servers("tcp", at.Addr().Is6(), 0)...))
		for name, c := range cases {
			p := pairs[name]
			other := c.end(p.client, p.server)
			_ = other.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := other.Read(make([]byte, 1)); !errors.Is(err, c.want) {
				t.Errorf("%s, %s: %v, want %v", address, name, err, c.want)
			}
		}
		for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
			_ = way[1].SetReadDeadline(time.Now().Add(10 * time.Second))
			must.Get(way[0].Write([]byte("hello")))(t)
			if _, err := io.ReadFull(way[1], make([]byte, 5)); err != nil {
				t.Errorf("%s, data from %s: %v", address, way[0].LocalAddr(), err)
			}
		}
	}
}

// A new client isn't masqueraded to the port of a connection of this host to the same backend, although connection tracking
// has never seen a packet of it. The backend would reset that connection. Once it ends, so does its entry.
func TestNewClientsSpareOlderConnections(t *testing.T) {
	need.Root(t)
	for _, six := range []bool{false, true} {
		lab := netlab.New(t)
		backend, client, at := lab.Backends[0].Addr4, lab.Client.Addr4, netip.MustParseAddrPort("10.96.0.1:80")
		if six {
			backend, client, at = lab.Backends[0].Addr6, lab.Client.Addr6, netip.MustParseAddrPort("[fd96::1]:80")
		}
		server := lab.Backends[0].Serve("tcp", netip.AddrPortFrom(backend, 0))
		older := must.Get(lab.Director.Dial("tcp", server))(t)
		w := worldIn(t, lab) // the connection has sent nothing since its handshake, not even a delayed acknowledgment
		f := frontend(at.Addr().String(), at.Port(), vip.TCP, vip.Endpoint{Addr: server, Weight: 1})
		f.Masquerade = vip.MasqueradeAlways
		w.set(f)
		port := older.LocalAddr().(*net.TCPAddr).AddrPort().Port()
		c, err := lab.Client.DialFromPort("tcp", netip.AddrPortFrom(client, port), at)
		must.Succeed(t, err)
		for range 2 {
			a, err := c.Ask()
			if err != nil || a.Client.Port() == port {
				t.Errorf("%s: a client from the port of an older connection: %v, %v", backend, a, err)
			}
			if a, err = older.Ask(); err != nil || a.Client.Port() != port {
				t.Errorf("%s: that connection: %v, %v", backend, a, err)
			}
		}
		must.Succeed(t, older.Close())
		wait.Until(t, "the older connection has no entry of an open one", func() bool {
			open := false
			lab.Director.Do(func() {
				err = w.flows.Each(t.Context(), vip.FamilyOf(backend), conntrack.Flow{Frontend: vip.FrontendKey{Protocol: vip.TCP}}, func(e *conntrack.Entry) bool {
					open = open || e.Client.Port() == port && e.Frontend.AddrPort() == server && e.Open()
					return true
				})
			})
			must.Succeed(t, err)
			return !open
		})
	}
}
