//go:build system && long

package program

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/internal/takeover"
	"github.com/ironvip/ironvip/test/consultest"
)

// If the new process fails, the old agent goes on. Its clients don't notice.
func TestFailedTakeOver(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	withListeners(h)
	m := newManager(t, h, "WATCHDOG_USEC=2000000")
	h.start()
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	open := dial(t, web, "a")
	c := newClients(t, web, dns)
	c.more(h, 50)

	fake, set := h.fakeTakeOver()
	if set.Unclaimed() != 4+ownSockets {
		t.Errorf("%d sockets, want %d", set.Unclaimed(), 4+ownSockets)
	}
	c.more(h, 50) // the old dataplane accepts clients until the new process is ready
	m.await(h, "WATCHDOG=1", m.count("WATCHDOG=1")+2)
	set.Close()
	fake.Close()
	h.eventually("the agent goes on", func() error {
		if log := h.log.String(); strings.Count(log, "msg=ready") != 2 {
			return errors.New("not ready for a second time")
		}
		return nil
	})
	h.ready()
	mentions(t, "the log", h.log.String(), "the other agent did not take over; this one goes on")
	h.status("WARN", "take-over", "it ended before it was ready")
	mentions(t, "the events", h.ok("events"), "takeover_failed", "it ended before it was ready")
	c.more(h, 50)
	open.lives("after a failed take-over")
	h.write("services.d/more.toml", service("more", "", newBackend(t, "b")))
	h.serves(h.vip("more")+":8080", "b")

	next := h.takeOver()
	c.more(next, 50)
	c.check("failed and successful take-over", false)
	if n := m.count("STOPPING=1"); n != 0 {
		t.Errorf("STOPPING=1 %d times, while an agent serves", n)
	}
	if n := m.count("MAINPID="); n != 1 {
		t.Errorf("MAINPID %d times, want once: %q", n, m.lines())
	}
	open.lives("after a take-over")
	open.conn.Close()
	h.ended()

	conn, err := net.Dial("unix", h.takeOverSocket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "takeover 2\n"); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("an unknown request is answered by %d bytes, %v", n, err)
	}
	next.serves(web, "a")
}

func (h *host) takeOverSocket() string { return filepath.Join(h.dir, "state", "takeover.sock") }

// fakeTakeOver begins to take over from h in this process, which gives signs of life until Close.
func (h *host) fakeTakeOver() (*takeover.Predecessor, *sockets.Set) {
	h.t.Helper()
	set := &sockets.Set{}
	p, problems, err := takeover.RequestFrom(h.t.Context(), h.takeOverSocket(), set)
	if err != nil || len(problems) > 0 {
		h.t.Fatal(err, problems)
	}
	h.t.Cleanup(func() { p.Close(); set.Close() })
	return p, set
}

// resumed waits until the agent has become ready once more after a failed take-over.
func (h *host) resumed(times int) {
	h.t.Helper()
	h.eventually("the agent goes on", func() error {
		if n := strings.Count(h.log.String(), "msg=ready"); n != times+1 {
			return fmt.Errorf("ready %d times", n)
		}
		return nil
	})
	h.ready()
}

// While a process takes over, another one is refused with a reason and a hint, and so is a signal to
// start one. Neither this nor SIGHUP harms the take-over.
func TestSecondTakeOver(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	h.start()
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	c := newClients(t, web, dns)
	c.more(h, 50)
	fake, set := h.fakeTakeOver()
	for _, s := range []syscall.Signal{syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGUSR2} {
		h.signalOnly(s)
	}
	other := &host{t: t, dir: h.dir, adjust: func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "--take-over") }}
	mentions(t, "the second process", other.fails(), fmt.Sprintf("take over refused: process %d takes over", os.Getpid()), "hint: wait until that agent is ready")
	h.eventually("the signals are answered", func() error {
		if log := h.log.String(); !strings.Contains(log, "SIGUSR2 ignored") || !strings.Contains(log, "request to take over refused") {
			return errors.New(log)
		}
		return nil
	})
	c.more(h, 50)
	set.Close()
	fake.Close()
	h.resumed(1)
	c.more(h, 50)
	next := h.takeOver()
	c.more(next, 50)
	c.check("two requests at once", false)
	h.ended()
}

// SIGHUP during a take-over reaches the new agent. SIGTERM ends the old one, and the new one has
// all listeners.
func TestSignalsDuringATakeOver(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	h.start()
	fake, _ := h.fakeTakeOver()
	go fake.Run(t.Context())
	h.signalOnly(syscall.SIGHUP)
	time.Sleep(100 * time.Millisecond) // a late signal would weaken the test
	if last, err := fake.Ready(t.Context()); err != nil || !last.Reload {
		t.Errorf("the last message: %+v, %v", last, err)
	}
	h.ended()

	h = newHost(t)
	newServices(t, h)
	withListeners(h) // the new agent is this test, which accepts with one
	h.start()
	web := netip.MustParseAddrPort(h.vip("web") + ":8080")
	fake, set := h.fakeTakeOver()
	over := make(chan error, 1)
	go func() { over <- fake.Run(t.Context()) }()
	h.stop()
	if err := <-over; err != nil {
		t.Errorf("the new agent must end: %v", err)
	}
	waiting, err := net.Dial("tcp", web.String())
	if err != nil {
		t.Fatalf("a client after the end of the old agent: %v", err)
	}
	defer waiting.Close()
	l, err := set.ListenTCP(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Remove(l)
	if got, err := l.Accept(); err != nil || got.RemoteAddr().String() != waiting.LocalAddr().String() {
		t.Errorf("%v, %v", got, err)
	}
}

// hungSource is a source that delays the start of an agent: its server accepts and never answers.
func hungSource(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return fmt.Sprintf("\n[[source]]\ntype = \"consul\"\naddress = %q\n", l.Addr())
}

// A successor that hangs is noticed and killed, and the old agent goes on with all of its listeners.
// The log, the events and the status name the cause.
func TestHungSuccessor(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	h.start()
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	open := dial(t, web, "a")
	h.config(hungSource(t)) // only for the successor, which isn't ready for 30 s
	next := &host{t: t, dir: h.dir, log: &lockedBuffer{}, adjust: func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "--take-over") }}
	t.Cleanup(next.kill)
	next.launch()
	next.eventually("the successor has the listeners", func() error {
		if log := next.log.String(); !strings.Contains(log, "taking over") {
			return errors.New(log)
		}
		return nil
	})
	next.signalOnly(syscall.SIGSTOP)
	start := time.Now()
	h.config("")
	select {
	case <-next.done:
		next.done <- nil
	case <-time.After(maxWait):
		t.Fatal("the hung process is not killed")
	}
	t.Logf("killed after %s", time.Since(start))
	h.resumed(1)
	h.status("WARN", "take-over", "no sign of life for 10s")
	mentions(t, "the events", h.ok("events"), "takeover_failed", "no sign of life for 10s")
	c := newClients(t, web, dns)
	c.more(h, 50)
	c.check("after a hung successor", false)
	open.lives("after a hung successor")
	open.conn.Close()
	third := h.takeOver()
	third.serves(web, "a")
	h.ended()
}

// After a take-over, the connections that the old process relays count for the limits and the
// drains, and they end at the deadline of a drain.
func TestLimitsAndDrainsAfterATakeOver(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "max_connections = 1", a))
	h.write("services.d/two.toml", service("two", `drain_timeout = "2s"`, a, b))
	h.start()
	web, two := h.vip("web")+":8080", h.vip("two")+":8080"
	open := dial(t, web, "a")
	draining := map[string]*call{"a": dial(t, two, "a"), "b": dial(t, two, "b")}
	next := h.takeOver()
	if _, err := who(web); err == nil {
		t.Error("a client beyond max_connections is served after a take-over")
	}
	next.eventually("the connections are counted", func() error {
		code, tree := next.rest("GET", fmt.Sprintf("/v1/services/default/two/backends/127.0.0.1:%d/connections", a.port), "")
		if n, _ := tree["connections"].(float64); code != 200 || n != 1 {
			return fmt.Errorf("%d %s", code, compact(tree))
		}
		return nil
	})
	open.conn.Close()
	next.serves(web, "a")

	next.write("services.d/two.toml", service("two", `drain_timeout = "2s"`, b))
	draining["a"].conn.SetDeadline(time.Now().Add(maxWait))
	if _, err := draining["a"].r.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("at the drain's deadline: %v, want its end", err)
	}
	draining["b"].lives("beside a drained backend")
	draining["b"].conn.Close()
	h.ended()
}

// Connections of a process that was replaced still count after a later take-over that fails, and end
// with their backend.
func TestConnectionsAfterAFailedSecondTakeOver(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", `drain_timeout = "2s"`, a))
	h.start()
	web := h.vip("web") + ":8080"
	open, drained := dial(t, web, "a"), dial(t, web, "a")
	next := h.takeOver()
	counted := func(want float64) {
		t.Helper()
		next.eventually("the connections are counted", func() error {
			code, tree := next.rest("GET", fmt.Sprintf("/v1/services/default/web/backends/127.0.0.1:%d/connections", a.port), "")
			if n, _ := tree["connections"].(float64); code != 200 || n != want {
				return fmt.Errorf("%d %s", code, compact(tree))
			}
			return nil
		})
	}
	counted(2)
	fake, set := next.fakeTakeOver()
	set.Close()
	fake.Close()
	next.resumed(1)
	open.lives("after a failed take-over")
	counted(2)
	open.conn.Close()
	counted(1)
	next.write("services.d/web.toml", service("web", `drain_timeout = "2s"`, b))
	drained.conn.SetDeadline(time.Now().Add(maxWait))
	if _, err := drained.r.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Errorf("at the drain's deadline: %v, want its end", err)
	}
	h.ended()
	next.serves(web, "b")
}

// In a fleet, the old process leaves before the new one joins: the new one has the host's name and
// identity, and the services keep their addresses.
func TestTakeOverInAFleet(t *testing.T) {
	consul := consultest.Start(t, consultest.Options{})
	h := withConsul(t, consul.URL, "")
	newServices(t, h)
	h.start()
	h.status("OK", "store", "in touch, lb1 is elected")
	web, dns := h.vip("web"), h.vip("dns")
	c := newClients(t, web+":8080", dns+":53")
	c.more(h, 50)
	next := h.takeOver()
	c.more(next, 50)
	c.check("take-over", false)
	next.status("OK", "store", "in touch, lb1 is elected")
	if now := next.vip("web"); now != web {
		t.Errorf("the service had %s, and now has %s", web, now)
	}
	h.ended()
	next.write("services.d/more.toml", service("more", "", newBackend(t, "b")))
	next.serves(next.vip("more")+":8080", "b")
}
