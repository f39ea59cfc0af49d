package sockets

import (
	"errors"
	"net"
	"os"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// HasStore reports whether there is a service manager, which may have a store of descriptors.
func HasStore() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Store adds a descriptor to the service manager's store (FileDescriptorStoreMax=), which passes it to the next process of the
// service.
func Store(name string, l syscall.Conn) error {
	of, err := l.SyscallConn()
	if err != nil {
		return err
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = of.Control(func(stored uintptr) {
		// Not WriteMsgUnix, which refuses connected datagram sockets.
		if err := raw.Write(func(fd uintptr) bool {
			failed = unix.Sendmsg(int(fd), []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(stored)), nil, unix.MSG_NOSIGNAL)
			return !errors.Is(failed, unix.EAGAIN)
		}); err != nil {
			failed = err
		}
	})
	if errors.Is(err, net.ErrClosed) { // meanwhile
		return nil
	}
	return errors.Join(err, os.NewSyscallError("sendmsg", failed))
}

// Unstore removes the descriptors of a name from the store. It does not end what they refer to.
func Unstore(name string) error {
	_, err := daemon.SdNotify(false, "FDSTOREREMOVE=1\nFDNAME="+name)
	return err
}

// Cookie returns the number of a socket (SO_COOKIE), which no other one has until the next boot; 0: unknown.
func Cookie(c syscall.Conn) (cookie uint64) {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { cookie = cookieOf(int(fd)) })
	}
	return cookie
}
