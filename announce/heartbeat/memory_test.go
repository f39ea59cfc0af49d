package heartbeat

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/heapsize"
)

// The memory of one VIP in this host's log.
func TestMemoryPerClaim(t *testing.T) {
	const vips, most = 10_000, 140
	log := claims{at: map[netip.Addr]int{}}
	size := heapsize.Of(func() any {
		for i := range vips {
			log.set(announce.Claim{Addr: netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)}), Services: 1})
		}
		return &log
	}) / vips
	if size > most || size < most/2 {
		t.Errorf("%d bytes for each VIP, want at most %d", size, most)
	}
}
