package bgp

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// listening is a Speaker on loopback to which routers connect.
type listening struct {
	*announcing
	at string
}

// freePort returns a TCP port on loopback at which nobody listens.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// accepting starts a Speaker to which routers connect, with these settings of the peers.
func accepting(t *testing.T, peers ...announce.BGPPeer) *listening {
	t.Helper()
	port := freePort(t)
	for i := range peers {
		p := &peers[i]
		p.Source, p.Port, p.Passive, p.ASN, p.LocalASN = netip.MustParseAddr("127.0.0.1"), port, true, 65000, 65010
	}
	s, _ := newAnnouncing(t, Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: peers}, nil)
	l := &listening{s, netip.AddrPortFrom(peers[0].Source, port).String()}
	wait.Until(t, "the listener works", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.listeners {
			return l.err == nil
		}
		return false
	})
	return l
}

// connect connects as a router with an address on loopback. The router has not sent anything.
func (l *listening) connect(t *testing.T, from string) *bgptest.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return bgptest.NewConn(t, must.Get(d.DialContext(t.Context(), "tcp4", l.at))(t))
}

// refuses checks that a connection is ended at once, before anything was read from it.
func (l *listening) refuses(t *testing.T, from string) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp4", l.at)
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	expect.Is(t, err, unix.ECONNRESET)
}

func bgpOpen() []byte {
	o := bgptest.Open()
	return o.Append(nil)
}

// open exchanges the messages of the handshake. The router's OPEN comes first.
func open(t *testing.T, c *bgptest.Conn) {
	t.Helper()
	c.Send(bgpOpen())
	if typ, _ := c.Next(); typ != message.TypeOpen {
		t.Fatalf("%v instead of OPEN", typ)
	}
	c.Send(message.AppendKeepalive(nil))
}

// A router that has lost its session, which this host does not know, gets a new one when its OPEN is accepted. Other
// connections of its address don't touch the session. This host says nothing before the router does.
func TestNewConnectionOfARouter(t *testing.T) {
	s := accepting(t, announce.BGPPeer{Peer: netip.MustParseAddr("127.0.0.2")})
	s.announce(prefix("10.96.0.1/32"))
	s.ready()
	first := s.connect(t, "127.0.0.2")
	open(t, first)
	first.Expect("+10.96.0.1/32", "EOR 4", "EOR 6")

	silent := s.connect(t, "127.0.0.2")
	wrong := bgptest.Open()
	wrong.ASN = 65001
	other := s.connect(t, "127.0.0.2")
	silent.Ends(0, 0) // the newer one takes its place
	other.Send(wrong.Append(nil))
	other.Ends(message.CodeOpen, message.OpenBadPeerAS)
	junk := s.connect(t, "127.0.0.2")
	junk.Send([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"))
	junk.Ends(message.CodeHeader, message.HeaderNotSynchronized)
	s.announce(prefix("10.96.0.2/32"))
	first.Expect("+10.96.0.2/32")

	second := s.connect(t, "127.0.0.2")
	open(t, second)
	first.Ends(0, 0) // without a NOTIFICATION, which would end graceful restart
	second.Expect("+10.96.0.1/32 +10.96.0.2/32", "EOR 4", "EOR 6")
	expect.Equal(t, s.Sessions()[0].Established, 2, "sessions")
	second.Close()
	awaitReason(t, s.announcing, "closed the connection")
	expect.Equal(t, s.Sessions()[0].State, session.Active, "state")
}

// Routers of a range have sessions while they are connected. A change of the settings reaches the sessions, or ends them.
func TestRange(t *testing.T) {
	all := netip.MustParsePrefix("127.0.0.0/28")
	s := accepting(t, announce.BGPPeer{PeerRange: all, PeerLimit: 2}, announce.BGPPeer{Peer: netip.MustParseAddr("127.0.0.5")})
	s.announce(prefix("10.96.0.1/32"))
	s.ready()
	names := func() string {
		var out []string
		for _, x := range s.Sessions() {
			out = append(out, x.Peer+" "+x.State.String())
		}
		return strings.Join(out, ", ")
	}
	await := func(want string) {
		t.Helper()
		wait.Until(t, want, func() bool { return names() == want }, func() any { return names() })
	}
	two, three := s.connect(t, "127.0.0.2"), s.connect(t, "127.0.0.3")
	await("127.0.0.5 active") // a connection is not a router yet
	open(t, two)
	two.Expect("+10.96.0.1/32", "EOR 4", "EOR 6")
	await("127.0.0.2 established, 127.0.0.5 active")
	s.refuses(t, "127.0.0.4")         // beyond the limit
	s.refuses(t, "127.0.0.17")        // of no range
	five := s.connect(t, "127.0.0.5") // it has settings of its own, and does not count
	open(t, five)
	five.Expect("+10.96.0.1/32", "EOR 4", "EOR 6")
	three.Close()
	two.Close()
	await("127.0.0.5 established")
	expect.Equal(t, s.Ranges()[0].Name+s.Ranges()[0].Reason, all.String(), "the range without routers")

	two = s.connect(t, "127.0.0.2")
	open(t, two)
	two.Expect("+10.96.0.1/32", "EOR 4", "EOR 6")
	c := s.config
	c.Peers = append([]announce.BGPPeer(nil), c.Peers...)
	c.Peers[0].Communities = []string{"65010:1"}
	s.Reconfigure(c)
	two.Expect("+10.96.0.1/32 d0 fdf20001")
	four := s.connect(t, "127.0.0.4")
	open(t, four)
	four.Expect("+10.96.0.1/32 d0 fdf20001", "EOR 4", "EOR 6")
	c.Peers = c.Peers[1:]
	s.Reconfigure(c)
	two.Ends(message.CodeCease, message.CeaseDeconfigured)
	four.Ends(message.CodeCease, message.CeaseDeconfigured)
	await("127.0.0.5 established")
	s.announce(prefix("10.96.0.2/32"))
	five.Expect("+10.96.0.2/32")
}

// A listener that can't work says why at its peers, and works when the reason is gone. A change of a password opens it again.
func TestListenerFails(t *testing.T) {
	port := freePort(t)
	taken := must.Get(net.Listen("tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String()))(t)
	p := announce.BGPPeer{Peer: netip.MustParseAddr("127.0.0.2"), Source: netip.MustParseAddr("127.0.0.1"), Port: port, Passive: true, ASN: 65000, LocalASN: 65010}
	s, _ := newAnnouncing(t, Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: []announce.BGPPeer{p}}, nil)
	awaitReason(t, s, "in use: another BGP daemon runs on this host")
	taken.Close()
	awaitReason(t, s, "the router has not connected to 127.0.0.1:")
	for _, c := range []struct {
		change func(*announce.BGPPeer)
		reason string
	}{
		{func(p *announce.BGPPeer) { p.Source = netip.MustParseAddr("192.0.2.1") }, "source 192.0.2.1 is not an address of this host"},
		{func(p *announce.BGPPeer) { p.VRF = "missing" }, "device missing does not exist on this host"},
		{func(p *announce.BGPPeer) { p.Password = "secret" }, "the router has not connected to 127.0.0.1:"},
	} {
		q := p
		c.change(&q)
		s.Reconfigure(Config{RouterID: s.config.RouterID, Peers: []announce.BGPPeer{q}})
		awaitReason(t, s, c.reason)
	}
}
