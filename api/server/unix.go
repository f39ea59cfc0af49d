package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// ListenUnix listens on a unix socket that has the given permissions from its creation on. It
// replaces a socket that an earlier agent left behind. It never replaces a socket in use or another
// file. The error has the hint on a separate line, after "hint: ".
func ListenUnix(path string, mode os.FileMode) (net.Listener, error) {
	l, hint, err := listenUnix(path, mode)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w\nhint: %s", path, err, hint)
	}
	return l, nil
}

// maxSocketPath is the maximum length of a socket's name in bytes.
const maxSocketPath = 107

func listenUnix(path string, mode os.FileMode) (l *unixListener, hint string, err error) {
	const elsewhere = "set api.socket to a path in a directory that this process can write or create"
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, elsewhere, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, elsewhere, err
	case info.Mode().Type() != os.ModeSocket:
		return nil, "remove it, or set api.socket to another path", errors.New("the path exists and is not a socket")
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, "stop that agent, or set api.socket to another path", errors.New("another agent listens on it")
		}
	}
	// The socket gets its mode under a temporary name and is then renamed. It never has wider
	// permissions than mode, and the process's umask is unchanged.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".ironvip-")
	if err != nil {
		return nil, elsewhere, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	name := made
	if len(name) > maxSocketPath {
		// The temporary name may be longer than the final one. A name through the directory's
		// descriptor is short. It is used only if needed, because ss shows this name.
		open, err := os.Open(dir)
		if err != nil {
			return nil, elsewhere, err
		}
		defer open.Close()
		name = fmt.Sprintf("/proc/self/fd/%d/s", open.Fd())
	}
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, elsewhere, err
	}
	u.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, mode), os.Rename(made, path)); err != nil {
		_ = u.Close()
		return nil, elsewhere, err
	}
	return &unixListener{UnixListener: u, path: path}, "", nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	*net.UnixListener
	path string
}

// Addr returns the address for clients.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(l.UnixListener.Close(), err)
}
