//go:build linux

package netlab

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Flood makes the node send SYNs to an address that it reaches through a router, as fast as it can and from addresses that
// don't exist, until stop is called or the test ends. The answers come back to the node, and are lost there.
func (n *Node) Flood(t testing.TB, router *Node, to netip.AddrPort) (sent *atomic.Int64, stop func()) {
	t.Helper()
	// The offsets of the addresses and of TCP in a packet.
	from, tcp, family := 12, 20, unix.AF_INET
	packet := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
	invented, gateway := netip.MustParsePrefix("198.18.0.0/15"), n.Addr4
	if to.Addr().Is6() {
		from, tcp, family = 8, 40, unix.AF_INET6
		packet = []byte{0x60, 0, 0, 0, 0, 20, unix.IPPROTO_TCP, 64}
		invented, gateway = netip.MustParsePrefix("fdf0::/96"), n.Addr6
	}
	router.Run("ip", "route", "replace", invented.String(), "via", gateway.String())
	n.Run("ip", "route", "replace", "blackhole", invented.String())
	var fd int
	var err error
	n.Do(func() { fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) })
	must(t, "open a raw socket", err)

	packet = append(packet, invented.Addr().AsSlice()...)
	packet = append(packet, to.Addr().AsSlice()...)
	packet = append(packet, make([]byte, 20)...)
	segment := packet[tcp:]
	binary.BigEndian.PutUint16(segment[2:], to.Port())
	copy(segment[12:], []byte{5 << 4, 2, 0xff, 0xff}) // a header of 20 bytes, SYN, the largest window
	var dst unix.Sockaddr
	if family == unix.AF_INET {
		dst = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	} else {
		dst = &unix.SockaddrInet6{Addr: to.Addr().As16()}
	}
	sent = new(atomic.Int64)
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for !over.Load() {
			r := rand.Uint64()
			binary.BigEndian.PutUint16(packet[tcp-len(invented.Addr().AsSlice())-2:], uint16(r)) // the last part of the source
			binary.BigEndian.PutUint16(segment, 1024+uint16(r>>16)%60000)
			binary.BigEndian.PutUint32(segment[4:], uint32(r>>32))
			segment[16], segment[17] = 0, 0
			sum := uint32(unix.IPPROTO_TCP + 20)
			for i := from; i < len(packet); i += 2 {
				sum += uint32(binary.BigEndian.Uint16(packet[i:]))
			}
			sum = sum>>16 + sum&0xffff
			binary.BigEndian.PutUint16(segment[16:], ^uint16(sum+sum>>16))
			if unix.Sendto(fd, packet, 0, dst) == nil {
				sent.Add(1)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		over.Store(true)
		running.Wait()
		unix.Close(fd)
	})
	t.Cleanup(stop)
	return sent, stop
}
