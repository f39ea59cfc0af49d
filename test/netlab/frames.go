//go:build linux

package netlab

import (
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Frames calls each for every frame of a protocol that arrives for the node or a group on a device,
// until stop is called or the test ends. The time is the kernel's when the frame arrived: it doesn't
// depend on when this process runs. One goroutine calls each, and a frame is valid during the call only.
func (n *Node) Frames(t testing.TB, dev string, protocol uint16, each func(at time.Time, b []byte)) (stop func()) {
	t.Helper()
	link, err := n.Netlink.LinkByName(dev)
	must(t, "find "+dev, err)
	var fd int
	n.Do(func() { fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) })
	must(t, "open a packet socket", err)
	file := os.NewFile(uintptr(fd), "packet socket")
	must(t, "ask for times", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
	inOrder := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
	must(t, "bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: inOrder, Ifindex: link.Attrs().Index}))
	raw, err := file.SyscallConn()
	must(t, "use a packet socket", err)
	var running sync.WaitGroup
	running.Go(func() {
		b, control := make([]byte, 2048), make([]byte, 128)
		for {
			var size, controls int
			var from unix.Sockaddr
			var failed error
			if raw.Read(func(fd uintptr) bool {
				size, controls, _, from, failed = unix.Recvmsg(int(fd), b, control, 0)
				return failed != unix.EAGAIN
			}) != nil {
				return
			}
			if failed != nil { // such as ENETDOWN
				continue
			}
			if from, ok := from.(*unix.SockaddrLinklayer); ok && from.Pkttype <= unix.PACKET_MULTICAST { // not for other nodes, not outgoing
				each(arrival(control[:controls]), b[:size])
			}
		}
	})
	stop = sync.OnceFunc(func() {
		file.Close()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// arrival returns the time in the control messages of a frame.
func arrival(b []byte) time.Time {
	all, err := unix.ParseSocketControlMessage(b)
	for _, m := range all {
		if err == nil && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			return time.Unix((*unix.Timespec)(unsafe.Pointer(&m.Data[0])).Unix())
		}
	}
	panic("netlab: a frame without a time")
}
