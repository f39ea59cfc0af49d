package bgp

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/bgptest"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
)

// A router that is gone from the settings is told so. Another one keeps the routes until its next session.
func TestSessionsThatDoNotGoOn(t *testing.T) {
	before, id := samplePeer(), netip.MustParseAddr("10.0.0.2")
	before.Password = "before"
	all := samplePeer()
	all.Peer, all.PeerRange, all.Passive, all.Source = netip.Addr{}, netip.PrefixFrom(before.Peer, 24), true, netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		name      string
		peers     []announce.BGPPeer
		code, sub uint8
	}{
		{"removed", nil, message.CodeCease, message.CeaseDeconfigured},
		{"another password", []announce.BGPPeer{samplePeer()}, 0, 0},
		{"another password of a range", []announce.BGPPeer{all}, 0, 0},
	} {
		bubble.Run(t, c.name, func(t *testing.T) {
			ours, theirs := bgptest.Pipe()
			router := bgptest.NewConn(t, theirs)
			h := HandedOver{Peer: before.Name(), Router: before.Peer, Settings: (&Speaker{config: Config{RouterID: id}}).digest(before),
				Conn: ours, Kept: session.Kept{Remote: bgptest.Open()}}
			newAnnouncing(t, Config{RouterID: id, Peers: c.peers, Inherited: []HandedOver{h}}, bgptest.NewRouter(t))
			router.Ends(c.code, c.sub)
			router.Close()
		})
	}
}

// The first listeners begin while New starts the others, which the race detector watches.
func TestManyListeners(t *testing.T) {
	var peers []announce.BGPPeer
	port := freePort(t)
	for i := range byte(50) {
		p := samplePeer()
		p.Peer, p.Source, p.Port, p.Passive = netip.AddrFrom4([4]byte{127, 0, 1, i}), netip.AddrFrom4([4]byte{127, 0, 0, i + 1}), port, true
		peers = append(peers, p)
	}
	s, _ := newAnnouncing(t, Config{RouterID: netip.MustParseAddr("10.0.0.2"), Peers: peers}, nil)
	expect.Len(t, s.Sessions(), 50, "sessions")
}
