package kernel

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// body returns a message without its header.
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
		s := Service{
			Key: vip.FrontendKey{
				Addr: drawAddr(t, v4), Port: rapid.Uint16().Draw(t, "port"),
				Protocol: rapid.SampledFrom([]vip.Protocol{vip.TCP, vip.UDP, vip.SCTP}).Draw(t, "protocol"),
			},
			Scheduler: rapid.StringMatching(`[a-z]{1,15}`).Draw(t, "scheduler"), PE: rapid.StringMatching(`[a-z]{0,15}`).Draw(t, "pe"),
			Flags: rapid.Uint32().Draw(t, "flags") &^ FlagHashed, Timeout: rapid.Uint32().Draw(t, "timeout"), Netmask: rapid.Uint32().Draw(t, "netmask"),
		}
		if s.Mark = rapid.SampledFrom([]uint32{0, 1, 0xff00007f}).Draw(t, "mark"); s.Mark != 0 {
			s.Key = vip.FrontendKey{Addr: netip.IPv6Unspecified()}
			if v4 {
				s.Key.Addr = netip.IPv4Unspecified()
			}
		}
		m := AppendService(AppendCommand(nil, 33, CmdNewService, 0), &s, true)
		must.Equal(t, len(m)%4, 0, "bytes beyond the alignment of a message")
		if got, _, err := DecodeService(body(m)); err != nil || got != s {
			t.Fatalf("%+v is read as %+v, %v", s, got, err)
		}
		d := Dest{
			Addr:   netip.AddrPortFrom(drawAddr(t, v4), rapid.Uint16().Draw(t, "port")),
			Weight: rapid.Uint32().Draw(t, "weight"), Forward: rapid.Uint32Range(0, 4).Draw(t, "forward"),
			Upper: rapid.Uint32().Draw(t, "upper"), Lower: rapid.Uint32().Draw(t, "lower"),
		}
		if d.Forward == ForwardTunnel {
			d.Tunnel = tunnelKind{Type: rapid.Uint8().Draw(t, "tunnel"), port: rapid.Uint16().Draw(t, "tunnel port"), flags: rapid.Uint16().Draw(t, "tunnel flags")}
		}
		m = AppendDest(AppendService(AppendCommand(nil, 33, CmdNewDest, 0), &s, false), &d, true)
		must.Equal(t, must.Get(DecodeDest(body(m), s.Key.Addr))(t), (DestStatus{Dest: d}), "%+v is read as", d)
	})
}

// A message as a 6.1 kernel sends it: with 16 bytes of address for IPv4, too, and with
// statistics.
func TestDecodeKernelForm(t *testing.T) {
	b, start := netlink.BeginNest([]byte{CmdNewDest, 1, 0, 0}, attrDest)
	b = netlink.AppendAttr(b, destAddr, 10, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.AppendAttr(b, destPort, 0x1f, 0x90)
	b = netlink.AppendAttr32(b, destForward, 0x100) // with a bit outside the method's
	b = netlink.AppendAttr32(b, destWeight, 100000)
	b = netlink.AppendAttr32(b, destActive, 3)
	b = netlink.AppendAttr32(b, destInactive, 4)
	b, stats := netlink.BeginNest(b, destStats64|unix.NLA_F_NESTED)
	b = netlink.AppendAttr(b, statsInPkts, 1, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.AppendAttr(b, statsOutPkts, 2, 0, 0, 0, 0, 0, 0, 0)
	b = netlink.EndNest(netlink.EndNest(b, stats), start)
	got, err := DecodeDest(b, netip.MustParseAddr("10.96.0.1"))
	want := DestStatus{Dest: Dest{Addr: netip.MustParseAddrPort("10.1.0.7:8080"), Weight: 100000}, Active: 3, Inactive: 4}
	want.Traffic = got.Traffic
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got.Traffic.In.Packets == 0 || got.Traffic.Out.Packets == 0 {
		t.Error("no packets counted")
	}
}

func FuzzDecode(f *testing.F) {
	s := Service{Key: vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}, Scheduler: "wrr", Netmask: Netmask4}
	d := Dest{Addr: netip.MustParseAddrPort("10.1.0.1:8080"), Weight: 1}
	f.Add(body(AppendService(AppendCommand(nil, 33, CmdNewService, 0), &s, true)))
	f.Add(body(AppendDest(AppendCommand(nil, 33, CmdNewDest, 0), &d, true)))
	f.Add([]byte{1, 1, 0, 0, 4, 0, 1, 0})
	f.Add([]byte{1, 1, 0, 0, 8, 0, 2, 0, 3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, _, err := DecodeService(b); err == nil {
			again, _, err := DecodeService(body(AppendService(AppendCommand(nil, 33, CmdNewService, 0), &s, true)))
			if err != nil || again != s {
				t.Errorf("%+v is read again as %+v, %v", s, again, err)
			}
		}
		if d, err := DecodeDest(b, netip.IPv4Unspecified()); err == nil {
			again, err := DecodeDest(body(AppendDest(AppendCommand(nil, 33, CmdNewDest, 0), &d.Dest, true)), d.Addr.Addr())
			if err != nil || again.Dest != d.Dest {
				t.Errorf("%+v is read again as %+v, %v", d, again, err)
			}
		}
	})
}
