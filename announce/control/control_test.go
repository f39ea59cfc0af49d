package control

import (
	"bytes"
	"encoding/gob"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// travels fails the test if rows change on their way through the socket.
func travels[V any](t *testing.T, rows ...V) {
	t.Helper()
	var wire bytes.Buffer
	must.Succeed(t, gob.NewEncoder(&wire).Encode(rows))
	var got []V
	must.Succeed(t, gob.NewDecoder(&wire).Decode(&got))
	expect.True(t, reflect.DeepEqual(got, rows), "%+v, want %+v", got, rows)
}

func TestRowsTravel(t *testing.T) {
	addr, at, since := netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddrPort("[fd00::1]:7481"), time.Unix(1_700_000_000, 5)
	travels(t, announce.Settings{}, announce.Settings{Node: "lb1", Weight: 2, Draining: true, Device: "ironvip0", LANs: []announce.LAN{{Pools: []string{"lan"}, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Interfaces: []string{"eth0"}}},
		Pools:  []announce.Pool{{Name: "lan", Mode: announce.BGP, CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}},
		Listen: ":7481", Peers: []netip.AddrPort{at}, Keys: [][]byte{[]byte("key")}, Heartbeat: 1, Missed: 2, Settle: 3, Hold: 4, RouterID: netip.MustParseAddr("192.0.2.1"),
		BGP: []announce.BGPPeer{{}, {Peer: addr, Interface: "eth0", ASN: 1, LocalASN: 2, Password: "p", Communities: []string{"1:2"}, MED: new(uint32(3)), LocalPref: new(uint32(4)), Prepend: new(5), LinkBandwidth: "backends", Multihop: 5,
			PeerRange: netip.MustParsePrefix("10.0.0.0/24"), PeerLimit: 8, Source: addr, VRF: "red", Port: 179, Passive: true, TTLSecurity: true, BFDInterval: 6, BFDMultiplier: 7}}})
	travels(t, announce.Eligible{Addr: addr, Mode: announce.Routes, Services: 1, Reason: "r", Route: announce.Route{Policy: "{}", Backends: 2}})
	travels(t, announce.Announcement{}, announce.Announcement{Addr: addr, Mode: announce.L2, Here: true, Owner: "lb1", Services: 2, Why: "w", Since: since, New: true, Route: announce.Route{Policy: "{}", Backends: 2}, Updated: 3})
	travels(t, announce.Announced{Place: announce.Place{Addr: addr, At: "eth0"}, State: announce.BGP.String(), Reason: "r", Since: since})
	travels(t, announce.Peer{}, announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: "lb2"}, Address: "a", State: "s", Up: true, Since: since, Reason: "r", Hint: "h",
		Problems: []string{"p"}, Draining: true, Weight: 1, Eligible: 2, Owned: 3, VIPs: []netip.Addr{addr}, Lost: 4, Routes: announce.RouteKeys{MED: new(uint32(3)), Peers: []string{"p"}}, IBGP: true})
	travels(t, Stats{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, "p"})
}
