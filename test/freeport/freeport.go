// Package freeport reserves ports for the servers that a test starts, stops and
// starts again: they stay a server's own while it is down.
//
// In goes an address, in a network namespace where asked; out come ports that
// nobody listens on. Who reserves through this package, in this process or in
// another, never gets the same ones.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

// Blocks of ports lie below the range that the kernel gives to clients (32768 by
// default), so that none is taken while its server is down for a restart.
const (
	first  = 20000
	size   = 5
	blocks = 2000
)

// Place is where a server runs when not here: a network namespace. A node of
// test/netlab is one.
type Place interface {
	// Do runs f in the namespace: sockets made by it are there.
	Do(f func())
}

// Block is five ports in a row that are the test's until its end. The first is
// listened on by the test itself, at every address of the place, so that others
// pass over the block: nothing else can. The others are free, for TCP and for UDP.
type Block [size]uint16

// Reserve finds a block at an address of the place, nil for here. The numbers are
// the test's at every other address of it, too: one may listen at all of them.
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

// free says whether a port can be listened on, by TCP and UDP.
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

// inside runs f at the place, or here when that is nil.
func inside(in Place, f func()) {
	if in == nil {
		f()
		return
	}
	in.Do(f)
}
