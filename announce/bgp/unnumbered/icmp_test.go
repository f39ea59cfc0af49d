package unnumbered

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func FuzzDiscovery(f *testing.F) {
	f.Add(advertisement())
	f.Fuzz(func(_ *testing.T, b []byte) { accept(b, netip.MustParseAddr("fe80::1"), 255) })
}

func TestAcceptsAdvertisements(t *testing.T) {
	link, global := netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fd00::1")
	for _, c := range []struct {
		name  string
		b     []byte
		from  netip.Addr
		limit int
		want  int
	}{
		{"advertisement", advertisement(), link, 255, icmpAdvertisement},
		{"solicitation", solicitation(), link, 255, icmpSolicitation},
		{"forwarded", advertisement(), link, 254, 0},
		{"not link-local", advertisement(), global, 255, 0},
		{"short", advertisement()[:15], link, 255, 0},
		{"code 1", append([]byte{icmpAdvertisement, 1}, make([]byte, 14)...), link, 255, 0},
		{"empty", nil, link, 255, 0},
	} {
		expect.Equal(t, accept(c.b, c.from, c.limit), c.want, "%s", c.name)
	}
}
