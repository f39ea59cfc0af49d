package freeport

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/test/must"
)

func TestPortsAreReservedUntilTheEnd(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.1")
	seen := map[uint16]bool{}
	var early []Block
	t.Run("reserve", func(t *testing.T) {
		for range 100 {
			b := Reserve(t, nil, addr)
			early = append(early, b)
			for _, port := range b {
				if seen[port] || port < first || port >= first+blocks*size {
					t.Fatalf("port %d was given twice, or is out of range", port)
				}
				seen[port] = true
			}
			must.True(t, free(netip.AddrPortFrom(addr, b[0])) != nil, "the block is not locked")
		}
	})
	// Another address doesn't give them out again either.
	ours := Reserve(t, nil, addr)
	for _, other := range []string{"127.0.0.2", "::1"} {
		if err := free(netip.AddrPortFrom(netip.MustParseAddr(other), ours[0])); err == nil {
			t.Errorf("the block is not locked at %s", other)
		}
	}
	locked := 0
	for _, b := range early {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", b[0]))
		if err != nil {
			locked++
			continue
		}
		l.Close()
	}
	if locked > len(early)/2 { // this process or concurrent tests may have reserved some of them
		t.Errorf("after their test, %d of %d blocks are still locked", locked, len(early))
	}
}
