package proxy

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// Without free descriptors, accept waits instead of spinning or ending. It continues when
// descriptors are free again.
func TestAcceptSurvivesWantOfDescriptors(t *testing.T) {
	var log syncBuffer
	p := newTarget(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	p.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a"))))
	p.pipes.close() // keep none for reuse, so that the count is exact
	fds := openFDs(t)
	who(t, key)
	wait.Until(t, "idle, and the backend is", func() bool { return p.Stats().Connections == 0 && openFDs(t) <= fds })

	// The client's socket is created first; then no descriptors remain.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = uint64(openFDs(t) + 20)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	restore := sync.OnceFunc(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
	defer restore()
	var filler []int
	free := func() {
		for _, f := range filler {
			unix.Close(f)
		}
		filler = nil
	}
	defer free()
	for {
		f, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			break
		}
		filler = append(filler, f)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: key.Addr.As4(), Port: int(key.Port)}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	reported := func() int { return strings.Count(log.String(), "too many open files") }
	wait.Until(t, "error logged", func() bool { return reported() > 0 })
	time.Sleep(300 * time.Millisecond)
	// The log has at most one line per second, for any number of attempts.
	if n, most := reported(), 2+int(time.Since(start)/time.Second); n > most {
		t.Errorf("%d lines of the log, want %d at most", n, most)
	}
	free()
	restore()
	buf := make([]byte, 10)
	if n, err := unix.Read(fd, buf); err != nil || string(buf[:n]) != "a\n" {
		t.Errorf("%q, %v once descriptors are there again", buf[:n], err)
	}
	if err := p.frontend(key).listener.died(); err != nil {
		t.Error(err)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
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
	if err := b.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	refused := 0 // approximately the last ones
	for i := range batch {
		if err := batch[i].Err; err != nil {
			refused++
			if !strings.Contains(err.Error(), "no file descriptor left") {
				t.Fatalf("frontend %d: %v", i, err)
			}
		}
		batch[i].Old, batch[i].New, batch[i].Err = batch[i].New, nil, nil
	}
	if refused != len(batch)-192 {
		t.Errorf("%d of %d are refused", refused, len(batch))
	}
	if most := b.capacity.most.Load(); most != 64 {
		t.Errorf("%d descriptors for connections beside 192 listeners of 256", most)
	}
	if err := b.Apply(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	if b.listening != 0 || b.capacity.most.Load() != 256 {
		t.Errorf("%d listeners counted, %d descriptors for connections after all are gone", b.listening, b.capacity.most.Load())
	}
}
