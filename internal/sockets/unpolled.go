package sockets

import (
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unpolled is a socket that doesn't block, and that Go's poller doesn't have. Its methods may be called concurrently.
type Unpolled struct {
	mu sync.RWMutex // held for reading by Control
	fd int          // -1: closed
}

// Unpoll returns a socket of package net as one that Go's poller doesn't have, and closes it.
func Unpoll(l Socket) (*Unpolled, error) {
	defer l.Close()
	return unpolled(l)
}

// unpolled returns a copy of a socket.
func unpolled(l syscall.Conn) (*Unpolled, error) {
	fd, err := duplicate(l)
	if err == nil {
		err = unix.SetNonblock(fd, true) // an inherited one may block
	}
	return &Unpolled{fd: fd}, os.NewSyscallError("fcntl", err)
}

// SyscallConn implements syscall.Conn. The error is nil.
func (u *Unpolled) SyscallConn() (syscall.RawConn, error) { return u, nil }

// Control implements syscall.RawConn. The socket is not closed before f has returned.
func (u *Unpolled) Control(f func(fd uintptr)) error {
	u.mu.RLock()
	defer u.mu.RUnlock()
	if u.fd < 0 {
		return net.ErrClosed
	}
	f(uintptr(u.fd))
	return nil
}

// Read and Write implement syscall.RawConn. They fail: nothing waits for the socket here.
func (u *Unpolled) Read(func(fd uintptr) bool) error  { return os.ErrInvalid }
func (u *Unpolled) Write(func(fd uintptr) bool) error { return os.ErrInvalid }

// Close closes the socket, after the calls of Control that have begun.
func (u *Unpolled) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fd < 0 {
		return net.ErrClosed
	}
	err := unix.Close(u.fd)
	u.fd = -1
	return os.NewSyscallError("close", err)
}
