// Package sockopt has options of sockets: those that routing protocols set before a socket is bound or connected, the hop
// limit of received packets, and who is at the other end of a unix socket.
package sockopt

import (
	"cmp"
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// ClassSelector6 is the traffic class of routing protocols (RFC 4594, 3.2: DSCP CS6), as the value of
// IP_TOS and IPV6_TCLASS.
const ClassSelector6 = 0xc0

// Control returns a function for net.Dialer and net.ListenConfig that calls set with a new socket.
func Control(set func(fd int) error) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		if err := c.Control(func(fd uintptr) { failed = set(int(fd)) }); err != nil {
			return err
		}
		return failed
	}
}

// PeerOf returns who had the other end of a unix socket when it was connected.
func PeerOf(c syscall.Conn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, cmp.Or(controlErr, err)
}

// HopLimit returns the TTL or hop limit from the control messages of a received packet, 0 without
// one. The socket needs IP_RECVTTL or IPV6_RECVHOPLIMIT.
func HopLimit(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		ttl := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TTL
		limit := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT
		if (ttl || limit) && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}
