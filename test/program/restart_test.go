//go:build system

package program

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// newUDPBackend starts a UDP server on the loopback that returns each datagram.
func newUDPBackend(t *testing.T) *backend {
	t.Helper()
	conn := must.Get(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	go func() {
		for buf := make([]byte, 100); ; {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	t.Cleanup(func() { conn.Close() })
	return &backend{port: conn.LocalAddr().(*net.UDPAddr).Port}
}

// clients connect to a VIP one after the other, 200 per second, by TCP and by UDP.
type clients struct {
	t      *testing.T
	served [2]atomic.Int64 // by TCP and UDP
	stop   chan struct{}
	work   sync.WaitGroup

	mu              sync.Mutex
	refused, broken []error
}

const pace = 5 * time.Millisecond

func newClients(t *testing.T, tcp, udp string) *clients {
	c := &clients{t: t, stop: make(chan struct{})}
	for i, f := range []func() error{func() error { return askTCP(tcp) }, func() error { return askUDP(udp) }} {
		c.work.Go(func() {
			for tick := time.NewTicker(pace); ; <-tick.C {
				select {
				case <-c.stop:
					return
				default:
				}
				began := time.Now()
				if err := f(); err == nil {
					c.served[i].Add(1)
				} else {
					c.failed(err, time.Since(began))
				}
			}
		})
	}
	t.Cleanup(c.end)
	return c
}

// grace is the time for requests in progress when an agent stops, see docs/operations.md. On a busy machine, one may need longer.
const grace = 500 * time.Millisecond

func (c *clients) failed(err error, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, errDial) {
		c.refused = append(c.refused, err)
	} else if after < grace {
		c.broken = append(c.broken, err)
	}
}

// more waits until n more clients of each protocol were served.
func (c *clients) more(h *host, n int64) {
	c.t.Helper()
	tcp, udp := c.served[0].Load(), c.served[1].Load()
	h.eventually(fmt.Sprintf("%d more clients are served", n), func() error {
		if a, b := c.served[0].Load(), c.served[1].Load(); a < tcp+n || b < udp+n {
			return fmt.Errorf("%d and %d were before, now %d by TCP and %d by UDP", tcp, udp, a, b)
		}
		return nil
	})
}

func (c *clients) end() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.work.Wait()
}

// check ends the clients, none of which may have been refused.
func (c *clients) check(what string, allowBroken bool) {
	c.t.Helper()
	c.end()
	if len(c.refused) > 0 || len(c.broken) > 0 && !allowBroken {
		c.t.Errorf("%s: %d clients refused, %d cut off, %d served by TCP and %d by UDP; first errors %v, %v",
			what, len(c.refused), len(c.broken), c.served[0].Load(), c.served[1].Load(), first(c.refused), first(c.broken))
	}
}

func first(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[0]
}

var errDial = errors.New("connect")

func askTCP(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, wait.Timeout)
	if err != nil {
		return errors.Join(errDial, err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(wait.Timeout))
	r := bufio.NewReader(conn)
	if _, err = r.ReadString('\n'); err == nil {
		_, err = io.WriteString(conn, "x\n")
	}
	if err == nil {
		_, err = r.ReadString('\n')
	}
	return err
}

// askUDP repeats a datagram without an answer, as a resolver does. A refusal is an error.
func askUDP(addr string) error {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	var timeout net.Error
	for end := time.Now().Add(wait.Timeout); time.Now().Before(end); {
		if _, err := conn.Write([]byte("x")); err != nil {
			return err
		}
		conn.SetReadDeadline(time.Now().Add(time.Second))
		if _, err = conn.Read(make([]byte, 1)); err == nil || !errors.As(err, &timeout) || !timeout.Timeout() {
			return err
		}
	}
	return os.ErrDeadlineExceeded
}

// newServices writes a TCP service "web" and a UDP service "dns", each with several others.
func newServices(t *testing.T, h *host) (a *backend) {
	t.Helper()
	a = newBackend(t, "a")
	h.write("services.d/web.toml", service("web", "", a)+service("web2", "", a))
	udp := strings.ReplaceAll(service("dns", "", newUDPBackend(t)), "port = 8080", `port = 53, protocol = "udp"`)
	h.write("services.d/dns.toml", udp+strings.ReplaceAll(udp, `"dns"`, `"dns2"`))
	return a
}

// freeAt returns an address of the loopback with a free port.
func freeAt(t *testing.T) netip.AddrPort {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String())
}

// callers ask the API over and over, each time with a new connection.
type callers struct {
	t      *testing.T
	failed atomic.Pointer[error]
	calls  atomic.Int64
	stop   chan struct{}
	done   chan struct{}
}

func newCallers(t *testing.T, h *host) *callers {
	c := &callers{t: t, stop: make(chan struct{}), done: make(chan struct{})}
	client := h.http()
	go func() {
		defer close(c.done)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(pace):
			}
			resp, err := client.Get("http://ironvip/healthz")
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if c.calls.Add(1); err != nil {
				c.failed.CompareAndSwap(nil, &err)
			}
		}
	}()
	t.Cleanup(c.end)
	return c
}

func (c *callers) end() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	<-c.done
}

// check ends the callers, all of which must have been answered.
func (c *callers) check(what string) {
	c.t.Helper()
	c.end()
	if err := c.failed.Load(); err != nil {
		c.t.Errorf("%s: a caller of the API got no answer: %v", what, *err)
	}
	c.t.Logf("%s: %d calls of the API", what, c.calls.Load())
}

// launchWithStore starts the agent as systemd does, with the stored descriptors and more.
func (m *manager) launchWithStore(h *host, more ...*os.File) {
	h.t.Helper()
	m.received(h)
	var files []*os.File
	m.descriptors.mu.Lock()
	fds := slices.Clone(m.fds)
	m.descriptors.mu.Unlock()
	for _, fd := range fds {
		d := must.Get(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(h.t)
		f := os.NewFile(uintptr(d), "")
		defer f.Close()
		files = append(files, f)
	}
	files = append(files, more...)
	adjust := h.adjust
	defer func() { h.adjust = adjust }()
	h.adjust = func(cmd *exec.Cmd) {
		adjust(cmd)
		cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$@"`, "sh"}, cmd.Args...)
		cmd.Path = "/bin/sh"
		cmd.ExtraFiles = files
		cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(files)))
	}
	h.launch()
	h.ready()
}

// With its listener in the service manager's store, no caller of the API is refused by a restart or a crash of the agent.
func TestRestartWithDescriptorStore(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	m := newManager(t, h)
	h.start()
	stored := func() {
		t.Helper()
		h.eventually("the listener is stored", func() error {
			if got := m.len(); got != 1 {
				return fmt.Errorf("%d sockets", got)
			}
			return nil
		})
	}
	stored()
	api := newCallers(t, h)
	h.stop()
	m.launchWithStore(h)
	stored()
	api.check("restart")
	h.kill()
	c, err := net.Dial("unix", filepath.Join(h.dir, "sock"))
	if err != nil {
		t.Errorf("after a crash, a caller is refused: %v", err)
	} else {
		c.Close()
	}
	m.launchWithStore(h)
	stored()
	if strings.Contains(h.log.String(), "inherited socket not used") {
		t.Errorf("the agent doesn't use what it has stored:\n%s", h.log)
	}
}

// Whatever the descriptors are that the agent inherits, it starts and serves. It reports those that
// it can't use.
func TestInheritedJunk(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	m := newManager(t, h)
	h.start()
	web := h.vip("web")
	h.stop()
	m.received(h)
	m.descriptors.close() // as systemd does when a service has stopped

	file := must.Get(os.Open(filepath.Join(h.dir, "ironvip.toml")))(t)
	defer file.Close()
	// A socket of another kind at the address of a service.
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	other := os.NewFile(uintptr(fd), "")
	at := &unix.SockaddrInet4{Port: 8080, Addr: [4]byte(net.ParseIP(web).To4())}
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.Bind(fd, at), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	// A listener of the right kind that no service needs.
	var set sockets.Set
	strange := must.Get(set.ListenTCP(t.Context(), freeAt(t)))(t)
	strangeFile := must.Get(strange.File())(t)
	m.launchWithStore(h, file, other, strangeFile)
	other.Close()
	strangeFile.Close()
	h.serves(web+":8080", "a")
	wait.Until(t, "the agent closes what nothing needs", func() bool {
		return strings.Contains(h.log.String(), "inherited listeners closed: no service needs them")
	})
	mentions(t, "the log", h.log.String(), "inherited descriptor 3: not an open socket", "SO_REUSEPORT 1 instead of 0", strange.Addr().String())
	if c, err := net.Dial("tcp", strange.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener that no service needs still accepts clients")
	}
}
