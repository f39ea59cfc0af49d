package server

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// lossTimeout is how long a TCP connection may have no answer from its peer. A stream of the API sends
// something every 15 s at least.
const lossTimeout = 40 * time.Second

// noticeLoss makes a connection end when its peer has not answered for a time. A host that has crashed, or is
// no longer reachable, ends no connection, and without this the kernel tries for 15 minutes to send a line
// of a stream, and keeps a silent connection forever.
func noticeLoss(conn net.Conn, after time.Duration) {
	c, is := conn.(*net.TCPConn)
	if !is {
		return
	}
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: after / 2, Interval: after / 4, Count: 2})
	raw, err := c.SyscallConn()
	if err != nil {
		return // the connection is gone
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after/time.Millisecond))
	})
}
