package probe

import (
	"golang.org/x/sys/unix"
)

// openUDP returns a socket that sends to a job's address, with the error of connect; or -1 if it can't
// be opened. A connected socket receives only from there, and reports ICMP errors: port unreachable is
// ECONNREFUSED.
func openUDP(j *job) (fd int, err error) {
	family, to := sockaddr(j.address())
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := prepare(fd, j); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, unix.Connect(fd, to)
}
