package heartbeat

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/test/heapsize"
)

// The memory of one VIP in this host's log, and in the copy of another host's.
func TestMemoryPerClaim(t *testing.T) {
	const vips = 10_000
	var log claims
	var copied mirror
	for _, c := range []struct {
		name string
		set  func(announce.Claim) bool
		most int // bytes
	}{{"log", log.set, 90}, {"copy", copied.set, 80}} {
		size := heapsize.Of(func() any {
			for i := range vips {
				c.set(announce.Claim{Addr: netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)}), Services: 1})
			}
			return [2]any{&log, &copied}
		}) / vips
		if size > c.most || size < c.most/2 {
			t.Errorf("%s: %d bytes for each VIP, want at most %d", c.name, size, c.most)
		}
	}
}
