// Package netlinktest makes netlink sockets fail, for tests.
package netlinktest

import (
	"time"

	"golang.org/x/sys/unix"
)

// DropAnswers drops all that the kernel sends to a socket, and shortens the
// socket's wait for it.
func DropAnswers(fd int) error {
	short := unix.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &short); err != nil {
		return err
	}
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing})
}
