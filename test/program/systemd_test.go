//go:build system

package program

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// manager plays systemd: it owns the socket on which the agent reports its state, and the store of
// the agent's descriptors.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
	mu   sync.Mutex // guards got
	got  []string   // every line, in order
	path string     // of the socket
	descriptors
}

func newManager(t *testing.T, h *host, env ...string) *manager {
	t.Helper()
	path := filepath.Join(h.dir, "notify")
	conn := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	m := &manager{t: t, conn: conn, path: path}
	var reader sync.WaitGroup
	reader.Go(func() {
		control := make([]byte, unix.CmsgSpace(4*253))
		for buf := make([]byte, 4096); ; {
			n, room, _, _, err := conn.ReadMsgUnix(buf, control)
			if err != nil {
				return
			}
			expect.Succeed(t, m.descriptors.add(control[:room]))
			m.mu.Lock()
			m.got = append(m.got, strings.Split(strings.TrimSpace(string(buf[:n])), "\n")...)
			m.mu.Unlock()
		}
	})
	t.Cleanup(func() { conn.Close(); reader.Wait(); m.descriptors.close() })
	h.adjust = func(cmd *exec.Cmd) { cmd.Env = append(os.Environ(), append(env, "NOTIFY_SOCKET="+path)...) }
	return m
}

// received waits until everything that was sent before has been read.
func (m *manager) received(h *host) {
	m.t.Helper()
	const barrier = "BARRIER=1" // as systemd-notify sends it
	n := m.count(barrier)
	conn := must.Get(net.Dial("unixgram", m.path))(m.t)
	defer conn.Close()
	must.Get(conn.Write([]byte(barrier)))(m.t)
	m.await(h, barrier, n+1)
}

// descriptors plays the descriptor store of systemd.
type descriptors struct {
	mu  sync.Mutex
	fds []int
}

// add stores the descriptors of a message. It is the only one that may close them.
func (s *descriptors) add(control []byte) error {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil {
			s.fds = append(s.fds, fds...)
		}
	}
	return nil
}

// len drops what was shut down, and returns how many listening sockets are stored.
func (s *descriptors) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left, copies []int
	for _, fd := range s.fds {
		polled := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(polled, 0); err == nil && polled[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			unix.Close(fd)
			continue
		}
		left = append(left, fd)
		if copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			copies = append(copies, copied)
		}
	}
	s.fds = left
	var set sockets.Set
	defer set.Close()
	set.Inherit(copies)
	return set.Unclaimed()
}

func (s *descriptors) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.fds {
		unix.Close(fd)
	}
	s.fds = nil
}

// lines returns the lines received so far.
func (m *manager) lines() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.got...)
}

// count returns the number of lines with the prefix.
func (m *manager) count(prefix string) int {
	n := 0
	for _, line := range m.lines() {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

func (m *manager) await(h *host, prefix string, n int) {
	m.t.Helper()
	h.eventually(fmt.Sprintf("systemd is sent %s %d times", prefix, n), func() error {
		if m.count(prefix) < n {
			return fmt.Errorf("%q", m.lines())
		}
		return nil
	})
}

// READY is sent once every service is served. After that the watchdog is notified, a reload is
// reported at its start and end, and the stop is reported.
func TestNotify(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	const services = 50
	for i := range services {
		h.write(fmt.Sprintf("services.d/s%d.toml", i), service(fmt.Sprintf("s%d", i), "drain_timeout = \"0s\"", a))
	}
	m := newManager(t, h, "WATCHDOG_USEC=2000000")
	h.launch()
	m.await(h, "READY=1", 1)
	for i := range services { // immediately, without waiting
		list := h.vips(fmt.Sprintf("s%d", i))
		must.Len(t, list, 1, "s%d has %v when systemd is sent READY", i, list)
		name, err := who(list[0] + ":8080")
		expect.Succeed(t, err, "s%d is answered by %q, %v when systemd is sent READY", i, name, err)
	}
	status := ""
	for _, line := range m.lines() {
		if text, ok := strings.CutPrefix(line, "STATUS="); ok {
			status = text
		}
	}
	mentions(t, "STATUS", status, mode, fmt.Sprintf("%d services", services))
	m.await(h, "WATCHDOG=1", 3)
	if m.count("RELOADING=1") != 0 {
		t.Errorf("reloading before it is asked to: %q", m.lines())
	}
	h.signalOnly(syscall.SIGHUP)
	m.await(h, "RELOADING=1", 1)
	m.await(h, "MONOTONIC_USEC=", 1)
	m.await(h, "READY=1", 2)
	h.edit("ironvip.toml", `mode = "`, `moed = "`) // an invalid file ends the reload as well
	h.signalOnly(syscall.SIGHUP)
	m.await(h, "READY=1", 3)
	n := m.count("STOPPING=1")
	expect.Equal(t, n, 0, "STOPPING=1 %d times while it runs", n)
	h.stop()
	m.await(h, "STOPPING=1", 1)
}

// signalOnly sends a signal and doesn't wait.
func (h *host) signalOnly(s syscall.Signal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cmd.Process.Signal(s)
}

// READY isn't sent before every source has synced. systemd reports a host that doesn't start, but
// not one that serves half of its services.
func TestNotReadyBeforeSourcesSpoke(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a := newBackend(t, "a")
	late := filepath.Join(h.dir, "late.d")
	h.config("[[source]]\ntype = \"static\"\nname = \"files\"\npath = \"" + late + "\"\n")
	m := newManager(t, h)
	h.launch()
	h.eventually("the API answers", func() error {
		resp, err := h.http().Get("http://ironvip/healthz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		resp, err = h.http().Get("http://ironvip/readyz")
		if err != nil {
			return err
		}
		resp.Body.Close()
		expect.Equal(t, resp.StatusCode, 503, "readyz: %s before a source has spoken", resp.Status)
		return nil
	})
	time.Sleep(300 * time.Millisecond)
	if n := m.count("READY=1"); n != 0 {
		t.Errorf("READY before a source has spoken: %q", m.lines())
	}
	must.Succeed(t, os.Mkdir(late, 0o755))
	h.write("late.d/web.toml", service("web", "", a))
	h.ok("source", "resync", "files")
	m.await(h, "READY=1", 1)
	h.serves(h.vip("web")+":8080", "a")
}
