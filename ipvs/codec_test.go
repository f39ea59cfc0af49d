package ipvs

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// body returns a message's part after its header.
func body(m []byte) []byte { return m[unix.SizeofNlMsghdr:] }

func drawAddr(t *rapid.T, v4 bool) netip.Addr {
	b := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "address")
	if v4 {
		return netip.AddrFrom4([4]byte(b))
	}
	return netip.AddrFrom16([16]byte(b))
}

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v4 := rapid.Bool().Draw(t, "v4")
		s := service{
			key: vip.FrontendKey{
				Addr: drawAddr(t, v4), Port: rapid.Uint16().Draw(t, "port"),
				Protocol: rapid.SampledFrom([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}).Draw(t, "protocol"),
			},
			sched: rapid.StringMatching(`[a-z]{1,15}`).Draw(t, "scheduler"), pe: rapid.StringMatching(`[a-z]{0,15}`).Draw(t, "pe"),
			flags: rapid.Uint32().Draw(t, "flags") &^ flagHashed, timeout: rapid.Uint32().Draw(t, "timeout"), netmask: rapid.Uint32().Draw(t, "netmask"),
		}
		if s.fwmark = rapid.SampledFrom([]uint32{0, 1, 0xff00007f}).Draw(t, "mark"); s.fwmark != 0 {
			s.key = vip.FrontendKey{Addr: netip.IPv6Unspecified()}
			if v4 {
				s.key.Addr = netip.IPv4Unspecified()
			}
		}
		m := appendService(appendCommand(nil, 33, cmdNewService, 0), &s, true)
		if len(m)%4 != 0 {
			t.Fatalf("a message of %d bytes is not aligned", len(m))
		}
		if got, err := decodeService(body(m)); err != nil || got != s {
			t.Fatalf("%+v is read as %+v, %v", s, got, err)
		}
		d := dest{
			addr:   netip.AddrPortFrom(drawAddr(t, v4), rapid.Uint16().Draw(t, "port")),
			weight: rapid.Uint32().Draw(t, "weight"), forward: rapid.Uint32Range(0, 4).Draw(t, "forward"),
			upper: rapid.Uint32().Draw(t, "upper"), lower: rapid.Uint32().Draw(t, "lower"),
		}
		if d.forward == forwardTunnel {
			d.tunnel = tunnelKind{typ: rapid.Uint8().Draw(t, "tunnel"), port: rapid.Uint16().Draw(t, "tunnel port"), flags: rapid.Uint16().Draw(t, "tunnel flags")}
		}
		m = appendDest(appendService(appendCommand(nil, 33, cmdNewDest, 0), &s, false), &d, true)
		if got, err := decodeDest(body(m), s.key.Addr); err != nil || got != d {
			t.Fatalf("%+v is read as %+v, %v", d, got, err)
		}
	})
}

// The kernel's side of it, from a 6.1 kernel: 16 bytes of address for IPv4, too,
// and both kinds of statistics.
func TestDecodeKernelForm(t *testing.T) {
	b, start := netlink.BeginNest([]byte{cmdNewDest, 1, 0, 0}, attrDest)
	b = netlink.AppendAttr(b, destAddr, 10, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.AppendAttr(b, destPort, 0x1f, 0x90)
	b = netlink.AppendAttr32(b, destForward, 0x100) // other bits than the method's
	b = netlink.AppendAttr32(b, destWeight, 100000)
	b = netlink.AppendAttr32(b, destActive, 3)
	b = netlink.AppendAttr32(b, destInactive, 4)
	b, stats := netlink.BeginNest(b, destStats64|unix.NLA_F_NESTED)
	b = netlink.AppendAttr(b, statsInPkts, 1, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.AppendAttr(b, statsOutPkts, 2, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.EndNest(netlink.EndNest(b, stats), start)
	got, err := decodeDestStatus(b, netip.MustParseAddr("10.96.0.1"))
	want := destStatus{dest: dest{addr: addrPort("10.1.0.7:8080"), weight: 100000}, active: 3, inactive: 4}
	want.traffic = got.traffic
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got.traffic.In.Packets == 0 || got.traffic.Out.Packets == 0 {
		t.Error("no packets counted")
	}
}

func FuzzDecode(f *testing.F) {
	s := desired(oneFrontend(), 0)
	f.Add(body(appendService(appendCommand(nil, 33, cmdNewService, 0), &s.service, true)))
	f.Add(body(appendDest(appendCommand(nil, 33, cmdNewDest, 0), &s.dests[0], true)))
	f.Add([]byte{1, 1, 0, 0, 4, 0, 1, 0})
	f.Add([]byte{1, 1, 0, 0, 8, 0, 2, 0, 3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := decodeService(b); err == nil {
			again, err := decodeService(body(appendService(appendCommand(nil, 33, cmdNewService, 0), &s, true)))
			if err != nil || again != s {
				t.Errorf("%+v is read again as %+v, %v", s, again, err)
			}
		}
		if d, err := decodeDestStatus(b, netip.IPv4Unspecified()); err == nil {
			again, err := decodeDest(body(appendDest(appendCommand(nil, 33, cmdNewDest, 0), &d.dest, true)), d.addr.Addr())
			if err != nil || again != d.dest {
				t.Errorf("%+v is read again as %+v, %v", d, again, err)
			}
		}
	})
}
