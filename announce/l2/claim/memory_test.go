package claim

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/test/heapsize"
)

// silent is an Output that does nothing.
type silent struct{}

func (silent) Open(netip.Addr)                 {}
func (silent) Shut(netip.Addr)                 {}
func (silent) Send(netip.Addr, Frame) bool     { return true }
func (silent) Report(netip.Addr, State, Rival) {}

// The memory of one announced address without a dispute, and of one with.
func TestMemoryPerAddress(t *testing.T) {
	const addresses = 10_000
	for _, c := range []struct {
		disputed bool
		most     int // bytes
	}{{false, 270}, {true, 350}} {
		size := heapsize.Of(func() any {
			m, now := New(silent{}), time.Unix(1, 0)
			m.SetUsable(now, true)
			for i := range addresses {
				a := netip.AddrFrom4([4]byte{10, 90, byte(i >> 8), byte(i)})
				m.Own(now, a, false)
				if c.disputed {
					m.Observe(now, a, frame.Holds, Rival{Link: 1})
				}
			}
			return m
		}) / addresses
		if size > c.most || size < c.most/2 {
			t.Errorf("disputed %t: %d bytes for each address, want at most %d", c.disputed, size, c.most)
		}
	}
}
