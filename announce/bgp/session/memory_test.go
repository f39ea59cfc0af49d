package session

import (
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/test/heapsize"
)

// The memory of one prefix, and of nothing more for each of ten peers that have received all of them.
func TestMemoryPerPrefix(t *testing.T) {
	const prefixes, peers, most = 10_000, 10, 160
	size := heapsize.Of(func() any {
		routes := announce.NewPrefixes()
		loc := NewLocRIB(routes)
		for i := range prefixes {
			routes.Set(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)}), 32))
		}
		var outs []*adjRIBOut
		for range peers {
			o := loc.out([message.Families]bool{true, true}, [message.Families]netip.Addr{netip.MustParseAddr("10.0.0.2"), {}})
			for b, more := []byte(nil), true; more; {
				_, more = o.appendUpdates(b[:0])
			}
			outs = append(outs, o)
		}
		return outs
	}) / prefixes
	if size > most || size < most/2 {
		t.Errorf("%d bytes for each prefix, want at most %d", size, most)
	}
}
