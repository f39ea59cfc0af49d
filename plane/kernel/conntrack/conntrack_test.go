package conntrack

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// entry is a connection tracking entry as the kernel reports it.
func entry(dst, reply netip.AddrPort) []byte {
	b := []byte{unix.AF_INET, 0, 0, 0}
	b = appendTuple(b, ctaTupleOrig, unix.IPPROTO_UDP, netip.AddrPort{}, dst)
	b = appendTuple(b, ctaTupleReply, unix.IPPROTO_UDP, reply, netip.AddrPort{})
	return netlink.AppendAttr(netlink.AppendAttr(b, ctaID, 1, 2, 3, 4), ctaZone, 0, 7)
}

// The attributes that identify an entry to the kernel for its deletion contain the entry's
// frontend, so that no other entry is deleted.
func FuzzDecode(f *testing.F) {
	four, six := entry(netip.MustParseAddrPort("10.96.0.1:53"), netip.MustParseAddrPort("10.1.0.1:53")), entry(netip.MustParseAddrPort("[fd96::1]:53"), netip.MustParseAddrPort("[fd01::1]:53"))
	f.Add(four)
	f.Add(six)
	f.Add(four[:40])
	f.Add(four[4+len(four)/2:])
	f.Add(append(bytes.Clone(four), six[4:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var x, again Entry
		if err := x.Decode(b); err != nil || !x.Frontend.Addr.IsValid() {
			return // an entry without a frontend is not deleted
		}
		id, err := identity(b)
		if err == nil {
			err = again.Decode(append([]byte{0, 0, 0, 0}, id...))
		}
		if err != nil || again.Frontend != x.Frontend {
			t.Errorf("an entry of %s is named as one of %s, %v", x.Frontend, again.Frontend, err)
		}
	})
}

func TestDecode(t *testing.T) {
	for _, c := range []struct{ dst, backend string }{{"10.96.0.1:53", "10.1.0.1:5353"}, {"[fd96::1]:53", "[fd01::1]:5353"}} {
		data := entry(netip.MustParseAddrPort(c.dst), netip.MustParseAddrPort(c.backend))
		var x Entry
		err := x.Decode(data)
		id, _ := identity(data)
		want := Flow{Frontend: vip.FrontendKey{Addr: netip.MustParseAddrPort(c.dst).Addr(), Port: 53, Protocol: vip.UDP}, Backend: netip.MustParseAddrPort(c.backend)}
		if err != nil || x.Flow != want {
			t.Errorf("%+v, %v, want %+v", x.Flow, err, want)
		}
		if !bytes.Contains(id, []byte{1, 2, 3, 4}) || !bytes.Contains(id, []byte{0, 7}) {
			t.Errorf("%s: the entry's number or zone is lost: %x", c.dst, id)
		}
	}
}

func TestDecodeStatusAndState(t *testing.T) {
	opening := map[byte]bool{}
	for state := byte(1); state < 9; state++ {
		data := []byte{unix.AF_INET, 0, 0, 0}
		data = appendTuple(data, ctaTupleOrig, unix.IPPROTO_TCP, netip.AddrPort{}, netip.MustParseAddrPort("10.96.0.1:80"))
		data, info := netlink.BeginNest(data, ctaProtoInfo)
		data, tcp := netlink.BeginNest(data, ctaProtoInfoTCP)
		data = netlink.EndNest(netlink.EndNest(netlink.AppendAttr(data, ctaProtoInfoState, state), tcp), info)
		var x Entry
		must.Succeed(t, x.Decode(netlink.AppendAttr(data, ctaStatus, 0, 0, 0, state<<4)))
		if x.Masqueraded != (state&1 != 0) || x.Translated != (state&2 != 0) {
			t.Errorf("status %#x: %+v", state<<4, x)
		}
		if x.Opening() {
			opening[state] = true
		}
	}
	if len(opening) != 2 || !opening[1] || !opening[2] {
		t.Errorf("opening connections have the states %v", opening)
	}
}
