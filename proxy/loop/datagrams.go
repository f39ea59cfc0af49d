package loop

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxDatagram is the largest UDP datagram, rounded up.
const maxDatagram = 64 << 10

// maxBatch is how many datagrams arrive and leave with one system call.
const maxBatch = 32

// Batch is room for datagrams. A loop has one, in which nothing stays after a call of the loop.
type Batch struct {
	messages [maxBatch]message
	vectors  [maxBatch]unix.Iovec
	names    [maxBatch]Sockaddr
	controls [maxBatch][128]byte
	data     []byte // touched as far as datagrams need it
}

// message is the kernel's struct mmsghdr.
type message struct {
	unix.Msghdr
	len uint32
}

func newBatch() *Batch {
	b := &Batch{data: make([]byte, maxBatch*maxDatagram)}
	for i := range b.messages {
		b.vectors[i].Base = &b.data[i*maxDatagram]
		b.messages[i].Iov, b.messages[i].Iovlen = &b.vectors[i], 1
	}
	return b
}

// Receive takes datagrams that have arrived. Without one, it returns EAGAIN.
func (b *Batch) Receive(fd int) (n int, err error) {
	for i := range b.messages {
		m := &b.messages[i]
		b.vectors[i].SetLen(maxDatagram)
		m.Name, m.Namelen = (*byte)(unsafe.Pointer(&b.names[i])), uint32(unsafe.Sizeof(b.names[i]))
		m.Control = &b.controls[i][0]
		m.SetControllen(len(b.controls[i]))
	}
	return b.call(unix.SYS_RECVMMSG, "recvmmsg", fd, 0, maxBatch)
}

// SendTo sends the first n datagrams to an address, and returns the length of those that the kernel has taken. It drops the
// others: for lack of room all that follow, otherwise the one that the kernel refuses.
func (b *Batch) SendTo(fd, n int, to *Sockaddr) (bytes int) {
	size := uint32(unix.SizeofSockaddrInet6)
	if to.Family == unix.AF_INET {
		size = unix.SizeofSockaddrInet4
	}
	for i := range n {
		m := &b.messages[i]
		b.vectors[i].SetLen(int(m.len))
		m.Name, m.Namelen = (*byte)(unsafe.Pointer(to)), size
		m.Control = nil
		m.SetControllen(0)
	}
	for first := 0; first < n; {
		sent, err := b.call(unix.SYS_SENDMMSG, "sendmmsg", fd, first, n-first)
		for i := range sent {
			bytes += int(b.messages[first+i].len)
		}
		switch {
		case err == nil:
			first += sent
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
			return bytes
		default:
			first++
		}
	}
	return bytes
}

func (b *Batch) call(number uintptr, what string, fd, first, n int) (int, error) {
	for {
		done, _, errno := unix.Syscall6(number, uintptr(fd), uintptr(unsafe.Pointer(&b.messages[first])), uintptr(n), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch errno {
		case 0:
			return int(done), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, errno
		default:
			return 0, os.NewSyscallError(what, errno)
		}
	}
}

// Datagram is one of a batch.
type Datagram struct {
	batch *Batch
	i     int
}

func (d Datagram) Data() []byte    { return d.batch.data[d.i*maxDatagram:][:d.batch.messages[d.i].len] }
func (d Datagram) Control() []byte { return d.batch.controls[d.i][:d.batch.messages[d.i].Controllen] }
func (d Datagram) Name() *Sockaddr { return &d.batch.names[d.i] }
