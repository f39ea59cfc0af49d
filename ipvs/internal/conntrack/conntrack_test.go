package conntrack

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// entry is a connection tracking entry as the kernel reports it.
func entry(dst, reply netip.AddrPort) []byte {
	b := []byte{unix.AF_INET, 0, 0, 0}
	b = appendTuple(b, ctaTupleOrig, dst, ctaDst4, ctaDst6, ctaProtoDport)
	b = appendTuple(b, ctaTupleReply, reply, ctaSrc4, ctaSrc6, ctaProtoSport)
	return netlink.AppendAttr(netlink.AppendAttr(b, ctaID, 1, 2, 3, 4), ctaZone, 0, 7)
}

// The attributes that identify an entry to the kernel for its deletion contain the entry's
// frontend, so that no other entry is deleted.
func FuzzDecodeFlow(f *testing.F) {
	four, six := entry(netip.MustParseAddrPort("10.96.0.1:53"), netip.MustParseAddrPort("10.1.0.1:53")), entry(netip.MustParseAddrPort("[fd96::1]:53"), netip.MustParseAddrPort("[fd01::1]:53"))
	f.Add(four)
	f.Add(six)
	f.Add(four[:40])
	f.Add(four[4+len(four)/2:])
	f.Add(append(bytes.Clone(four), six[4:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, id, err := DecodeFlow(b)
		if err != nil || !x.Frontend.Addr.IsValid() {
			return // an entry without a frontend is not deleted
		}
		again, _, err := DecodeFlow(append([]byte{0, 0, 0, 0}, id...))
		if err != nil || again.Frontend != x.Frontend {
			t.Errorf("an entry of %s is named as one of %s, %v", x.Frontend, again.Frontend, err)
		}
	})
}

func TestDecodeFlow(t *testing.T) {
	for _, c := range []struct{ dst, backend string }{{"10.96.0.1:53", "10.1.0.1:5353"}, {"[fd96::1]:53", "[fd01::1]:5353"}} {
		x, id, err := DecodeFlow(entry(netip.MustParseAddrPort(c.dst), netip.MustParseAddrPort(c.backend)))
		want := Flow{Frontend: vip.FrontendKey{Addr: netip.MustParseAddrPort(c.dst).Addr(), Port: 53, Protocol: vip.UDP}, Backend: netip.MustParseAddrPort(c.backend)}
		if err != nil || x != want {
			t.Errorf("%+v, %v, want %+v", x, err, want)
		}
		if !bytes.Contains(id, []byte{1, 2, 3, 4}) || !bytes.Contains(id, []byte{0, 7}) {
			t.Errorf("%s: the entry's number or zone is lost: %x", c.dst, id)
		}
	}
}
