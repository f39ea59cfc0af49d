// Package descriptors counts the descriptors of a test's process, and takes all that are left.
package descriptors

import (
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/must"
)

// Open returns how many descriptors are open, without those of the runtime's poller.
func Open(t testing.TB) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	n := 0
	for _, e := range entries { // the runtime opens epoll and event descriptors with the first socket
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(target, "anon_inode:") {
			n++
		}
	}
	return n
}

// Exhaust takes all descriptors of this process until free is called, at the latest at the end of
// the test.
func Exhaust(t testing.TB) (free func()) {
	t.Helper()
	var old unix.Rlimit
	must.Succeed(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	fd := must.Get(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0))(t)
	var filler []int
	free = sync.OnceFunc(func() {
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
		for _, f := range append(filler, fd) {
			unix.Close(f)
		}
	})
	t.Cleanup(free)
	low := old
	low.Cur = uint64(Open(t) + 20)
	must.Succeed(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	for {
		f, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return free
		}
		filler = append(filler, f)
	}
}
