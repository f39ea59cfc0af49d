package loop

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// passes reports whether an error of accept, receive or a loop is temporary, so that the socket can be
// used again.
func passes(err error) bool {
	return isOneOf(err, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ENOSPC, unix.ECONNABORTED, unix.EPROTO,
		unix.EPERM, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ECONNREFUSED,
		unix.ECONNRESET, unix.EINTR, unix.EAGAIN, unix.EOPNOTSUPP)
}

// IsLocalFault reports whether an error to reach a backend is caused by this host.
func IsLocalFault(err error) bool {
	return isOneOf(err, unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.EADDRNOTAVAIL, unix.EAGAIN)
}

// LacksDescriptor reports whether an error means that the process or the host has no descriptor
// left.
func LacksDescriptor(err error) bool { return isOneOf(err, unix.EMFILE, unix.ENFILE) }

// IsReset reports whether an error of a socket means that its peer has reset the connection or is
// gone, and not that this process closed it.
func IsReset(err error) bool {
	return err != nil && isOneOf(err, unix.ECONNRESET, unix.EPIPE, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH)
}

func isOneOf(err error, all ...unix.Errno) bool {
	return slices.ContainsFunc(all, func(e unix.Errno) bool { return errors.Is(err, e) })
}
