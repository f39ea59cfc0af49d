package sockets

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func listenUnix(t *testing.T, s *Set, path string) *net.UnixListener {
	t.Helper()
	l := must.Get(s.ListenUnix(t.Context(), path, 0o660))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// A socket in use and another file are never replaced, and a socket without a listener is.
func TestSocketsInTheWay(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.Succeed(t, os.WriteFile(file, []byte("x"), 0o600))
	used := filepath.Join(dir, "used")
	listenUnix(t, &Set{}, used)
	for path, want := range map[string]error{file: ErrNotSocket, filepath.Join(file, "sock"): syscall.ENOTDIR, used: ErrInUse} {
		if _, err := new(Set).ListenUnix(t.Context(), path, 0o660); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	stale := filepath.Join(dir, "stale")
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	listenUnix(t, &Set{}, stale)
}

// The file has its permissions whatever the umask is, and never more.
func TestPermissionsOfASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	defer syscall.Umask(syscall.Umask(0o027))
	l := listenUnix(t, &Set{}, path)
	expect.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), 0o660)
	l.Close()
	syscall.Umask(0)
	must.Get(openUnix(t.Context(), path, 0o600))(t)
	expect.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), 0o600, "before any chmod")
}

// A unix socket is adopted with the clients in its accept queue, also by another name of its path.
// Its file stays for as long as another process can have the socket.
func TestNextSetAdoptsUnixSockets(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d", "sock")
	var first Set
	l := listenUnix(t, &first, path)
	waiting := must.Get(net.Dial("unix", path))(t)
	defer waiting.Close()
	set := next(t, &first)
	was := cookie(t, l)
	first.Release(l)
	must.Succeed(t, os.Symlink(filepath.Join(dir, "d"), filepath.Join(dir, "link")))
	adopted := listenUnix(t, set, filepath.Join(dir, "link", "sock"))
	expect.Equal(t, cookie(t, adopted), was, "socket")
	if c, err := adopted.Accept(); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	set.Release(adopted)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nobody has the socket, and its file is there: %v", err)
	}
}

// A socket with a file that was deleted or replaced is not adopted: no client would reach it.
func TestUnixSocketWithoutItsFile(t *testing.T) {
	for name, displace := range map[string]func(path string) error{
		"deleted": os.Remove,
		"replaced": func(path string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			return errors.Join(err, os.Remove(path), unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Close(fd))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sock")
			var first Set
			l := listenUnix(t, &first, path)
			set := next(t, &first)
			must.Succeed(t, displace(path))
			now := listenUnix(t, set, path)
			expect.True(t, cookie(t, now) != cookie(t, l), "the old socket was adopted")
			go func() {
				if c, err := now.Accept(); err == nil {
					c.Close()
				}
			}()
			c := must.Get(net.Dial("unix", path))(t)
			c.Close()
		})
	}
}

// An inherited unix socket that nobody claims is removed with its file.
func TestRemoveUnclaimedUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	var first Set
	listenUnix(t, &first, path)
	if got := next(t, &first).RemoveUnclaimed(); len(got) != 1 || got[0] != path {
		t.Errorf("%v", got)
	}
	_, err := os.Stat(path)
	expect.Is(t, err, os.ErrNotExist, "its file")
}
