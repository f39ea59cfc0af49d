package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The reasons why ListenUnix doesn't replace what has the path.
var (
	ErrInUse     = errors.New("another agent listens on it")
	ErrNotSocket = errors.New("the path exists and is not a socket")
)

// ListenUnix returns the inherited listener at a path, or opens one. Its file never has more
// permissions than mode. ListenUnix creates the directory. It replaces a socket on which nobody
// listens, but no socket in use (ErrInUse) and no other file (ErrNotSocket).
func (s *Set) ListenUnix(ctx context.Context, path string, mode os.FileMode) (*net.UnixListener, error) {
	p := place{protocol: "unix", path: s.spelled(filepath.Clean(path))}
	l, err := listen[*net.UnixListener](s, p,
		func(f *os.File) (any, error) { return net.FileListener(f) },
		func(p place) (any, error) { return openUnix(ctx, p.path, mode) })
	if err == nil {
		err = os.Chmod(p.path, mode) // the umask may have narrowed it, or the mode was another one before
		if err != nil {
			s.Remove(l)
			l = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// spelled returns the name by which a socket was inherited, if path is another name of it.
func (s *Set) spelled(path string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.inherited[place{protocol: "unix", path: path}]; ok {
		return path
	}
	info, err := os.Stat(path)
	if err != nil {
		return path
	}
	for p := range s.inherited {
		if p.protocol != "unix" {
			continue
		}
		if other, err := os.Stat(p.path); err == nil && os.SameFile(info, other) {
			return p.path
		}
	}
	return path
}

// UnixPath returns the path of the inherited unix socket, or "".
func (s *Set) UnixPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.inherited {
		if p.protocol == "unix" {
			return p.path
		}
	}
	return ""
}

func openUnix(ctx context.Context, path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, ErrNotSocket
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, ErrInUse
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// The file gets the permissions of the socket, which are set before it has a name.
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), uint32(mode.Perm())) })
		return errors.Join(err, failed)
	}}
	l, err := c.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return u, nil
}

// leads reports whether clients of a unix socket's path reach this socket. The file may have been
// deleted or replaced since the socket was bound to it. The process must have called listen for
// the socket, because the kernel reports the caller to clients.
func leads(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true // not known
	}
	defer unix.Close(fd)
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	if err != nil {
		return errors.Is(err, unix.EAGAIN) // the accept queue is full
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && int(cred.Pid) == os.Getpid()
}
