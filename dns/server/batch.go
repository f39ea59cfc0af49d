package server

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/dns/message"
)

// Sizes of a batch.
const (
	// batchSize is the number of datagrams of one system call. A larger one saves little more, and
	// delays the first reply.
	batchSize = 16
	// maxQuery is the longest datagram that is read whole. Queries are below 512 bytes, with rare
	// exceptions for padding.
	maxQuery = 2048
)

// batch is datagrams that were received with one system call, and their replies. It is the kernel
// access: package net receives and sends one datagram at a time, which costs a fifth more of the
// processor's time at saturation.
//
// The system calls are raw, because they never wait. During another call of more than 20 us, which is
// less than a full batch takes, the scheduler gives the processor to another thread. That costs a tenth
// at saturation.
type batch struct {
	packets [batchSize]packet
	in, out [batchSize]mmsghdr
	replied int // the number of out that are set
}

// packet is the memory of one datagram and its reply.
type packet struct {
	client unix.RawSockaddrInet6 // or an Inet4
	query  [maxQuery]byte
	reply  [message.MaxUDP]byte
	inVec  unix.Iovec
	outVec unix.Iovec
}

// mmsghdr is the kernel's struct.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // length of the datagram
}

// newBatch returns a batch for one socket, which is bound to one address: replies leave from it.
func newBatch() *batch {
	b := &batch{}
	for i := range b.packets {
		p := &b.packets[i]
		p.inVec.Base, p.outVec.Base = &p.query[0], &p.reply[0]
		p.inVec.SetLen(maxQuery)
		in := &b.in[i].hdr
		in.Name, in.Iov = (*byte)(unsafe.Pointer(&p.client)), &p.inVec
		in.SetIovlen(1)
	}
	return b
}

// receive waits for nothing. It returns the number of datagrams.
func (b *batch) receive(fd uintptr) (int, syscall.Errno) {
	b.replied = 0
	for i := range b.in {
		b.in[i].hdr.Namelen = unix.SizeofSockaddrInet6
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.in[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// query returns a datagram, and whether its end is missing.
func (b *batch) query(i int) (query []byte, truncated bool) {
	return b.packets[i].query[:b.in[i].n], b.in[i].hdr.Flags&unix.MSG_TRUNC != 0
}

// client returns the source of a datagram.
func (b *batch) client(i int) netip.AddrPort {
	sa := &b.packets[i].client
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(sa)).Addr), port)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), port)
}

// space returns where the reply to a datagram is written.
func (b *batch) space(i int) []byte { return b.packets[i].reply[:0] }

// reply adds the reply to a datagram, which is in its space, to what send sends.
func (b *batch) reply(i, length int) {
	p, in, out := &b.packets[i], &b.in[i].hdr, &b.out[b.replied].hdr
	p.outVec.SetLen(length)
	*out = unix.Msghdr{Name: in.Name, Namelen: in.Namelen, Iov: &p.outVec}
	out.SetIovlen(1)
	b.replied++
}

// send sends the replies, and returns how many of them the kernel refused.
func (b *batch) send(fd uintptr) (failed int) {
	for at := 0; at < b.replied; {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&b.out[at])), uintptr(b.replied-at), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			at += int(n)
		case unix.EINTR:
		default: // of the first one
			failed++
			at++
		}
	}
	return failed
}

// prepare sets the options of a socket.
func prepare(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		// Room for what arrives while the process waits for the processor. A process without
		// CAP_NET_ADMIN gets what net.core.rmem_max allows.
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
		}
	})
}

// receiveBuffer is in bytes. The kernel counts about 800 for a query.
const receiveBuffer = 1 << 20
