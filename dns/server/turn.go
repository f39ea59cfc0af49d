package server

import (
	"cmp"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// turnConn is a connection that reads and writes only in its turn. The connections of an address share
// one turn, so that a flood by many of them takes no more than one processor, as one by UDP. A
// connection doesn't have the turn while it waits for its client.
type turnConn struct {
	*net.TCPConn
	raw  syscall.RawConn
	turn *sync.Mutex
}

func newTurnConn(c *net.TCPConn, turn *sync.Mutex) (*turnConn, error) {
	raw, err := c.SyscallConn()
	return &turnConn{c, raw, turn}, err
}

// Read implements net.Conn.
func (c *turnConn) Read(b []byte) (int, error) {
	var n int
	var failed error
	err := c.raw.Read(func(fd uintptr) (done bool) {
		n, failed = c.try(unix.Read, fd, b)
		return failed != unix.EAGAIN
	})
	if err = cmp.Or(err, failed); err != nil {
		return 0, err
	}
	if n == 0 {
		err = io.EOF
	}
	return n, err
}

// Write implements net.Conn.
func (c *turnConn) Write(b []byte) (int, error) {
	written := 0
	var failed error
	err := c.raw.Write(func(fd uintptr) (done bool) {
		for written < len(b) && failed == nil {
			var n int
			if n, failed = c.try(unix.Write, fd, b[written:]); failed == unix.EAGAIN {
				failed = nil
				return false
			}
			written += max(n, 0)
		}
		return true
	})
	return written, cmp.Or(err, failed)
}

// try makes a system call that doesn't wait.
func (c *turnConn) try(call func(int, []byte) (int, error), fd uintptr, b []byte) (n int, err error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	for {
		if n, err = call(int(fd), b); err != unix.EINTR {
			return n, err
		}
	}
}
