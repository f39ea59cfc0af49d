package freeport

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
)

func TestPortsAreReservedUntilTheEnd(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.1")
	seen := map[uint16]bool{}
	var early Block
	t.Run("reserve", func(t *testing.T) {
		for i := range 100 {
			b := Reserve(t, nil, addr)
			if i == 0 {
				early = b
			}
			for _, port := range b {
				if seen[port] || port < first || port >= first+blocks*size {
					t.Fatalf("port %d was given twice, or is out of range", port)
				}
				seen[port] = true
			}
			if err := free(netip.AddrPortFrom(addr, b[0])); err == nil {
				t.Fatal("the block is not locked")
			}
		}
	})
	// Nor does another address give them out again.
	ours := Reserve(t, nil, addr)
	for _, other := range []string{"127.0.0.2", "::1"} {
		if err := free(netip.AddrPortFrom(netip.MustParseAddr(other), ours[0])); err == nil {
			t.Errorf("the block is not locked at %s", other)
		}
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", early[0]))
	if err != nil {
		t.Fatalf("after its test, a block is still locked: %v", err)
	}
	l.Close()
}
