package proxyproto

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
)

func control(t *testing.T, c *net.TCPConn, f func(fd int) error) {
	t.Helper()
	raw := must.Get(c.SyscallConn())(t)
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// unread returns the number of received bytes that nobody has read.
func unread(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	control(t, c, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.SIOCINQ)
		return err
	})
	return n
}

// ended reports whether the peer has closed its side.
func ended(t *testing.T, c *net.TCPConn) (is bool) {
	t.Helper()
	control(t, c, func(fd int) error {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p, 0)
		is = p[0].Revents&unix.POLLRDHUP != 0
		return err
	})
	return is
}
