package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// free returns an address with a port of the kernel's choice.
func free(t *testing.T, protocol, addr string) netip.AddrPort {
	t.Helper()
	var at net.Addr
	if protocol == "udp" {
		c := must.Get(net.ListenPacket("udp", addr+":0"))(t)
		defer c.Close()
		at = c.LocalAddr()
	} else {
		l := must.Get(net.Listen("tcp", addr+":0"))(t)
		defer l.Close()
		at = l.Addr()
	}
	return netip.MustParseAddrPort(at.String())
}

// open listens with the set.
func open(t *testing.T, s *Set, protocol string, at netip.AddrPort) Socket {
	t.Helper()
	var l Socket
	var err error
	if protocol == "udp" {
		l, err = s.ListenUDP(t.Context(), at)
	} else {
		l, err = s.ListenTCP(t.Context(), at)
	}
	must.Succeed(t, err, "listen on %s/%s", at, protocol)
	t.Cleanup(func() { l.Close() })
	return l
}

// cookie returns the kernel's number of a socket, which all copies of it have.
func cookie(t *testing.T, s syscall.Conn) (cookie uint64) {
	t.Helper()
	fd, err := duplicate(s)
	must.Succeed(t, err)
	defer unix.Close(fd)
	if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		t.Fatal(err)
	}
	return cookie
}

// next returns the set of the next process, which the service manager gives the sockets of s.
func next(t *testing.T, s *Set) *Set {
	t.Helper()
	n := &Set{}
	must.Empty(t, n.Inherit(must.Get(s.copies())(t)))
	for l := range s.open {
		s.open[l] = true
	}
	t.Cleanup(n.Close)
	return n
}

var places = []struct{ protocol, addr string }{{"tcp", "127.0.0.1"}, {"tcp", "[::1]"}, {"udp", "127.0.0.1"}, {"udp", "[::1]"}}

// The sockets of a set, as the set opens them, are adopted by the next one: it listens with the
// same socket. Another address and another protocol get a socket of their own.
func TestNextSetAdopts(t *testing.T) {
	for _, p := range places {
		t.Run(p.protocol+" "+p.addr, func(t *testing.T) {
			var first Set
			at := free(t, p.protocol, p.addr)
			before := open(t, &first, p.protocol, at)
			second := next(t, &first)
			other := open(t, second, p.protocol, free(t, p.protocol, p.addr))
			must.Equal(t, second.Unclaimed(), 1, "sockets unclaimed")
			after := open(t, second, p.protocol, at)
			if cookie(t, before) != cookie(t, after) || cookie(t, before) == cookie(t, other) {
				t.Error("the next set doesn't listen with the same socket, or another address does")
			}
			first.Release(before)
			expect.Succeed(t, reach(p.protocol, at), "after Release of the first set's copy")
			second.Remove(after)
			expect.True(t, cookie(t, open(t, new(Set), p.protocol, at)) != cookie(t, other), "not a new socket")
		})
	}
}

// reach reports whether someone listens.
func reach(protocol string, at netip.AddrPort) error {
	c, err := net.Dial(protocol, at.String())
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	if protocol == "udp" {
		_, err = c.Write([]byte("x")) // reports the refusal of the first
	}
	return err
}

// Remove ends a socket in all processes: nobody can connect although a copy is open, and a process
// that polls its copy, as systemd does, sees that.
func TestRemoveEndsCopies(t *testing.T) {
	for _, p := range places {
		t.Run(p.protocol+" "+p.addr, func(t *testing.T) {
			var s Set
			at := free(t, p.protocol, p.addr)
			l := open(t, &s, p.protocol, at)
			copied := must.Get(duplicate(l))(t)
			defer unix.Close(copied)
			polled := []unix.PollFd{{Fd: int32(copied)}}
			if n, err := unix.Poll(polled, 0); n != 0 || err != nil {
				t.Fatalf("poll of an open socket: %d, %v", n, err)
			}
			s.Remove(l)
			if n, err := unix.Poll(polled, 0); n != 1 || err != nil || polled[0].Revents&unix.POLLHUP == 0 {
				t.Errorf("poll of the copy: %d, %v, events %x", n, err, polled[0].Revents)
			}
			if p.protocol == "tcp" && reach(p.protocol, at) == nil {
				t.Error("clients can still connect")
			}
			var third Set
			expect.Len(t, third.Inherit([]int{dup(t, copied)}), 1, "the removed socket can be inherited")
		})
	}
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	return must.Get(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
}

// Sockets that nobody claims are removed.
func TestRemoveUnclaimed(t *testing.T) {
	var first Set
	at := free(t, "tcp", "127.0.0.1")
	l := open(t, &first, "tcp", at)
	second := next(t, &first)
	expect.SameList(t, second.RemoveUnclaimed(), []string{at.String() + "/tcp"}, "removed")
	first.Release(l)
	expect.True(t, reach("tcp", at) != nil, "it still accepts clients")
	expect.Empty(t, second.RemoveUnclaimed(), "removed twice")
}

// raw opens a socket with a function that binds it, as another program could leave behind.
func raw(t *testing.T, family, kind int, prepare func(fd int) error) int {
	t.Helper()
	fd := must.Get(unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0))(t)
	must.Succeed(t, prepare(fd))
	return fd
}

var loopback = &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}

// A descriptor that isn't a listening socket like this package's is reported, with the reason. It
// isn't adopted, and no socket keeps a port.
func TestJunkIsNotInherited(t *testing.T) {
	listens := func(level, option, value int) func(int) error {
		return func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, level, option, value),
				unix.Bind(fd, loopback), unix.Listen(fd, 10))
		}
	}
	receives := func(level, option, value int) func(int) error {
		return func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.SetsockoptInt(fd, level, option, value), unix.Bind(fd, loopback))
		}
	}
	for _, c := range []struct {
		family, kind int
		prepare      func(int) error
		says         string
	}{
		{unix.AF_INET, unix.SOCK_STREAM, func(int) error { return nil }, "doesn't listen"},
		{unix.AF_INET, unix.SOCK_STREAM, func(fd int) error { return unix.Bind(fd, loopback) }, "doesn't listen"},
		{unix.AF_INET, unix.SOCK_STREAM, func(fd int) error { return errors.Join(unix.Bind(fd, loopback), unix.Listen(fd, 10)) }, "SO_REUSEADDR 0"},
		{unix.AF_INET, unix.SOCK_STREAM, listens(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), "SO_REUSEPORT 1 instead of 0"},
		{unix.AF_INET, unix.SOCK_STREAM, listens(unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5), "TCP_DEFER_ACCEPT"},
		{unix.AF_INET, unix.SOCK_DGRAM, func(int) error { return nil }, "not bound"},
		{unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error { return unix.Bind(fd, loopback) }, "SO_BROADCAST 0"},
		{unix.AF_INET, unix.SOCK_DGRAM, receives(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), "SO_REUSEADDR 1"},
		{unix.AF_INET, unix.SOCK_DGRAM, func(fd int) error {
			return errors.Join(unix.Bind(fd, loopback), unix.Connect(fd, &unix.SockaddrInet4{Addr: loopback.Addr, Port: 9}))
		}, "connected"},
		{unix.AF_INET6, unix.SOCK_STREAM, func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0),
				unix.Bind(fd, &unix.SockaddrInet6{}), unix.Listen(fd, 10))
		}, "IPV6_V6ONLY 0 instead of 1"},
		{unix.AF_UNIX, unix.SOCK_STREAM, func(int) error { return nil }, "a unix socket without a file"},
		{unix.AF_UNIX, unix.SOCK_STREAM, func(fd int) error {
			return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "@ironvip-test-" + t.Name()}), unix.Listen(fd, 1))
		}, "a unix socket without a file"},
		{unix.AF_UNIX, unix.SOCK_STREAM, func(fd int) error {
			return unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(t.TempDir(), "s")})
		}, "doesn't listen"},
		{unix.AF_UNIX, unix.SOCK_DGRAM, func(fd int) error {
			return unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(t.TempDir(), "s")})
		}, "has type 2"},
		{unix.AF_NETLINK, unix.SOCK_RAW, func(int) error { return nil }, "not a socket of IPv4, IPv6 or a file"},
	} {
		fd := raw(t, c.family, c.kind, c.prepare)
		var s Set
		problems := s.Inherit([]int{fd})
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), c.says) || s.Unclaimed() != 0 {
			t.Errorf("want a problem with %q: %v, %d unclaimed", c.says, problems, s.Unclaimed())
		}
	}

	var s Set
	file := must.Get(os.Open(filepath.Join("/proc", "self", "stat")))(t)
	defer file.Close()
	problems := s.Inherit([]int{int(file.Fd()), 1 << 20})
	for _, err := range problems {
		expect.Is(t, err, errNoSocket)
	}
	if _, err := file.Stat(); len(problems) != 2 || err != nil {
		t.Errorf("a file and a closed descriptor: %v; the file afterwards: %v", problems, err)
	}

	// A copy of an inherited socket doesn't end it.
	at := free(t, "tcp", "127.0.0.1")
	l := open(t, &s, "tcp", at)
	one := must.Get(duplicate(l))(t)
	var twice Set
	if problems := twice.Inherit([]int{one, dup(t, one)}); len(problems) > 0 || twice.Unclaimed() != 1 {
		t.Errorf("the same socket twice: %v, %d sockets", problems, twice.Unclaimed())
	}
	if after := open(t, &twice, "tcp", at); cookie(t, after) != cookie(t, l) || reach("tcp", at) != nil {
		t.Error("the socket was ended")
	}
}

// A listener with a short accept queue gets one of the usual length.
func TestAdoptionSetsTheQueueLength(t *testing.T) {
	fd := raw(t, unix.AF_INET, unix.SOCK_STREAM, func(fd int) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, loopback), unix.Listen(fd, 1))
	})
	name := must.Get(unix.Getsockname(fd))(t)
	at := netip.AddrPortFrom(netip.AddrFrom4(loopback.Addr), uint16(name.(*unix.SockaddrInet4).Port))
	var s Set
	must.Empty(t, s.Inherit([]int{fd}))
	open(t, &s, "tcp", at)
	for range 20 { // none is accepted
		c := must.Get(net.Dial("tcp", at.String()))(t)
		defer c.Close()
	}
}

// Keep stores what is open, and then what is opened. A socket that could not be stored is tried again.
func TestKeep(t *testing.T) {
	var s Set
	first := open(t, &s, "tcp", free(t, "tcp", "127.0.0.1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stored, reported := make(chan Socket), make(chan error)
	full := true
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Keep(ctx, func(l Socket) error {
			if full {
				full = false
				return errors.New("the store is full")
			}
			stored <- l
			return nil
		}, func(err error) { reported <- err })
	}()
	expect.Contains(t, (<-reported).Error(), "the store is full")
	second := open(t, &s, "udp", free(t, "udp", "127.0.0.1"))
	got := map[Socket]bool{<-stored: true, <-stored: true}
	expect.True(t, got[first] && got[second], "stored: %v", got)
	cancel()
	<-ended
}

// The helper process of the tests of FromEnvironment: it prints what it has inherited.
func TestMain(m *testing.M) {
	if os.Getenv("SOCKETS_TEST_HELPER") == "" {
		os.Exit(m.Run())
	}
	if pid := os.Getenv("LISTEN_PID"); pid == "self" {
		os.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	}
	s, problems := FromEnvironment()
	for p := range s.inherited {
		fmt.Println("inherited", p)
	}
	for _, err := range problems {
		fmt.Println("problem:", err)
	}
	if left := os.Getenv("LISTEN_FDS") + os.Getenv("LISTEN_PID") + os.Getenv("LISTEN_FDNAMES"); left != "" {
		fmt.Println("variables are left:", left)
	}
}

// The variables of the service manager can have any content: what can be used is used, and the rest
// is reported.
func TestFromEnvironment(t *testing.T) {
	var s Set
	at := free(t, "tcp", "127.0.0.1")
	l := must.Get(open(t, &s, "tcp", at).(*net.TCPListener).File())(t)
	defer l.Close()
	file := must.Get(os.Open("/proc/self/stat"))(t)
	defer file.Close()
	inherited := fmt.Sprintf("inherited %s/tcp", at)
	for _, c := range []struct {
		pid, fds string
		files    []*os.File
		want     []string
	}{
		{"", "", nil, nil},
		{"self", "0", nil, nil},
		{"self", "1", []*os.File{l}, []string{inherited}},
		{"self", "3", []*os.File{file, l}, []string{inherited, "problem: inherited descriptor 3: not an open socket", "problem: inherited descriptor 5: not an open socket"}},
		{"1", "1", []*os.File{l}, []string{`problem: LISTEN_FDS ignored: LISTEN_PID is "1"`}},
		{"", "1", []*os.File{l}, []string{`problem: LISTEN_FDS ignored: LISTEN_PID is ""`}},
		{"self", "many", nil, []string{`problem: LISTEN_FDS ignored: "many" is not a number`}},
		{"self", "-1", nil, []string{`problem: LISTEN_FDS ignored: "-1" is not a number`}},
		{"self", "99999999999", nil, []string{`problem: LISTEN_FDS ignored`}},
	} {
		out := runHelper(t, c.files, "LISTEN_PID="+c.pid, "LISTEN_FDS="+c.fds, "LISTEN_FDNAMES=a:b")
		lines := strings.FieldsFunc(out, func(r rune) bool { return r == '\n' })
		ok := len(lines) == len(c.want)
		for i := range c.want {
			ok = ok && strings.HasPrefix(lines[i], c.want[i])
		}
		expect.True(t, ok, "LISTEN_PID=%s LISTEN_FDS=%s with %d files: %q, want %q", c.pid, c.fds, len(c.files), lines, c.want)
	}
}

// A listener in another network namespace isn't of this host's addresses.
func TestOtherNamespace(t *testing.T) {
	var s Set
	l := open(t, &s, "udp", free(t, "udp", "127.0.0.1"))
	fd := must.Get(duplicate(l))(t)
	defer unix.Close(fd)
	here := newIdentifier().namespace
	need.KernelFeature(t, linux.NetnsCookie, here != 0)
	other := identifier{namespace: here + 1}
	if _, err := other.identify(fd); err == nil || !strings.Contains(err.Error(), "another network namespace") {
		t.Errorf("identify: %v", err)
	}
}

func runHelper(t *testing.T, files []*os.File, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), "SOCKETS_TEST_HELPER=1"), env...)
	cmd.ExtraFiles = files
	out, err := cmd.CombinedOutput()
	must.Succeed(t, err, "%s", out)
	return string(out)
}

// A set that can't find out its own network namespace, for lack of a descriptor, refuses no socket
// for it: that would end a listener that is in use.
func TestUnknownNamespace(t *testing.T) {
	var s Set
	at := free(t, "tcp", "127.0.0.1")
	fd := must.Get(duplicate(open(t, &s, "tcp", at)))(t)
	defer unix.Close(fd)
	_, err := (identifier{}).identify(fd)
	expect.Succeed(t, err)
}
