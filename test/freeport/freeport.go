// Package freeport reserves ports for the servers that a test starts, stops and starts again. A
// port remains reserved while its server is down.
//
// Its input is an address, optionally in a network namespace. Its output is ports without a
// listener. Other users of this package, in this process or in another, never get the same ports.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// Blocks of ports lie below the range that the kernel gives to clients (32768 by default), so that
// no client takes a port while its server restarts.
const (
	first  = 20000
	size   = 5
	blocks = 2000
)

// Place is a network namespace for a server, for example a node of test/netlab.
type Place interface {
	// Do runs f in the namespace. Sockets that f creates are in it.
	Do(f func())
}

// Block is five consecutive ports that are reserved until the end of the test. The test itself
// listens on the first one, at every address of the place, so that other tests skip the block.
// Servers can't use it. The others are free, for TCP and for UDP.
type Block [size]uint16

// Reserve finds a block at an address of the place; nil is this namespace. The numbers are reserved
// at every other address of the place, too, so a server may listen on all addresses.
func Reserve(t testing.TB, in Place, addr netip.Addr) Block {
	t.Helper()
	var last error
	start := rand.IntN(blocks)
	for i := range blocks {
		var b Block
		for p := range b {
			b[p] = uint16(first + (start+i)%blocks*size + p)
		}
		var lock net.Listener
		inside(in, func() {
			if lock, last = net.Listen("tcp", fmt.Sprintf(":%d", b[0])); last != nil {
				return
			}
			for p := 1; p < size && last == nil; p++ {
				last = free(netip.AddrPortFrom(addr, b[p]))
			}
		})
		if last == nil {
			t.Cleanup(func() { lock.Close() })
			return b
		}
		if lock != nil {
			lock.Close()
		}
	}
	t.Fatalf("freeport: none at %v: %v", addr, last)
	return Block{}
}

// free returns an error if a server can't listen on the port by TCP and UDP.
func free(addr netip.AddrPort) error {
	tcp, err := net.Listen("tcp", addr.String())
	if err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", addr.String())
	if err != nil {
		return fmt.Errorf("udp: %w", err)
	}
	return udp.Close()
}

// inside runs f at the place, or here if in is nil.
func inside(in Place, f func()) {
	if in == nil {
		f()
		return
	}
	in.Do(f)
}
