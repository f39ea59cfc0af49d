// Package sockopt has options of sockets: those that routing protocols set before a socket is bound or connected, the hop
// limit of received packets, and who is at the other end of a unix socket.
package sockopt

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

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

// BindToDevice binds a socket to a VRF or to another interface; "": to none.
func BindToDevice(fd int, device string) error {
	if device == "" {
		return nil
	}
	err := unix.BindToDevice(fd, device)
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("device %s does not exist on this host: %w", device, err)
	} else if err != nil {
		return fmt.Errorf("bind to device %s: %w", device, err)
	}
	return nil
}

// DeviceCheck is how often the owner of a socket that waits should compare DeviceIndex with that of the time when the socket was
// bound: the socket stays bound to a device that was removed, also when there is a new one of its name.
const DeviceCheck = 2 * time.Second

// DeviceIndex returns the index of an interface; 0: there is none.
func DeviceIndex(name string) int {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return device.Index
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
