package proxy

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/logbuffer"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Without free descriptors, accept waits instead of spinning or ending. It continues when
// descriptors are free again.
func TestAcceptSurvivesWantOfDescriptors(t *testing.T) {
	var log logbuffer.Buffer
	p := newTarget(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
	p.pipes.close() // keep none for reuse, so that the count is exact
	fds := descriptors.Open(t)
	who(t, key)
	wait.Until(t, "idle, and the backend is", func() bool { return p.Stats().Connections == 0 && descriptors.Open(t) <= fds })

	fd := unconnected(t) // before the descriptors are gone
	free := descriptors.Exhaust(t)
	connect(t, fd, key)
	start := time.Now()
	reported := func() int { return strings.Count(log.String(), "too many open files") }
	wait.Until(t, "error logged", func() bool { return reported() > 0 })
	time.Sleep(300 * time.Millisecond)
	// The log has at most one line per second, for any number of attempts.
	if n, most := reported(), 2+int(time.Since(start)/time.Second); n > most {
		t.Errorf("%d lines of the log, want %d at most", n, most)
	}
	free()
	wantLine(t, fd, "a\n")
	expect.Succeed(t, p.frontend(key).listener.died())
}

// unconnected returns a TCP socket that isn't connected.
func unconnected(t testing.TB) (fd int) {
	t.Helper()
	fd = must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}); err != nil { // see wantLine
		t.Fatal(err)
	}
	return fd
}

func connect(t *testing.T, fd int, key vip.FrontendKey) {
	t.Helper()
	must.Succeed(t, unix.Connect(fd, &unix.SockaddrInet4{Addr: key.Addr.As4(), Port: int(key.Port)}))
}

func wantLine(t *testing.T, fd int, want string) {
	t.Helper()
	buf := make([]byte, 10)
	n, err := unix.Read(fd, buf)
	for err == unix.EINTR { //nolint:errorlint // a read with a timeout isn't restarted after a signal
		n, err = unix.Read(fd, buf)
	}
	if err != nil || string(buf[:n]) != want {
		t.Errorf("%q, %v once descriptors are there again, want %q", buf[:max(n, 0)], err, want)
	}
}

// Listeners leave descriptors for the rest of the agent. Closing listeners return theirs.
func TestListenersAreBounded(t *testing.T) {
	b := newTarget(t, Options{Files: 256})
	frontend := func(protocol vip.Protocol, port uint16) vip.Frontend {
		return vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("127.77.0.1"), Port: port, Protocol: protocol}, Scheduler: vip.RoundRobin,
			Forward: vip.ForwardNAT, Backends: []vip.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:9"), Weight: 1}}}
	}
	var batch []reconcile.Update[vip.FrontendKey, vip.Frontend]
	for i := range 100 {
		for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
			f := frontend(protocol, 20000+uint16(i))
			batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: &f})
		}
	}
	must.Succeed(t, b.Apply(t.Context(), batch))
	refused := 0 // approximately the last ones
	for i := range batch {
		if err := batch[i].Err; err != nil {
			refused++
			must.True(t, strings.Contains(err.Error(), "no file descriptor left"), "frontend %d: %v", i, err)
		}
		batch[i].Old, batch[i].New, batch[i].Err = batch[i].New, nil, nil
	}
	expect.Equal(t, refused, len(batch)-192, "%d of %d are refused", refused, len(batch))
	expect.Equal(t, b.Usage().Files, 64, "descriptors for connections beside 192 listeners of 256")
	must.Succeed(t, b.Apply(t.Context(), batch))
	expect.Equal(t, b.Usage().Files, 256, "descriptors for connections after all listeners are gone")
}
