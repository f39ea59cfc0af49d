//go:build system

package program

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// newForwarder makes h use a proxy in a process of its own, which it returns. Program is its binary.
func newForwarder(t *testing.T, h *host, program string) *host {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "proxy.sock")
	h.edit("ironvip.toml", "resync_interval", fmt.Sprintf("proxy_socket = %q\nresync_interval", socket))
	f := &host{t: t, dir: filepath.Dir(socket), inside: h.inside, adjust: func(cmd *exec.Cmd) {
		cmd.Path, cmd.Args = program, []string{program, "proxy", "--socket", socket}
	}}
	t.Cleanup(func() {
		f.stop()
		if t.Failed() {
			t.Logf("the log of the proxy:\n%s", f.log)
		}
	})
	return f
}

// withListeners gives each frontend a listener. withSkLookup is the default.
func withListeners(h *host) {
	h.edit("ironvip.toml", "resync_interval", "sk_lookup = \"never\"\nresync_interval")
}

func withSkLookup(*host) {}

// replaced waits until the n-th process that replaces this proxy serves, and returns its number.
func (h *host) replaced(n int) (pid int) {
	h.t.Helper()
	h.eventually("another process serves", func() error {
		all := regexp.MustCompile(`msg=replaced pid=(\d+)`).FindAllStringSubmatch(h.log.String(), -1)
		if len(all) < n {
			return fmt.Errorf("%d have", len(all))
		}
		pid, _ = strconv.Atoi(all[n-1][1])
		return nil
	})
	return pid
}

// ended waits for the end of the process by itself. Another process may still have its log, so it may be a zombie.
func (h *host) ended() {
	h.t.Helper()
	path := fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid)
	h.eventually("the process ends", func() error {
		stat, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			return errors.New(string(stat))
		}
		return nil
	})
}

// A proxy in a process of its own goes on while its agent ends, crashes and starts again, and when it is replaced by
// another version: no client is refused, and no connection ends.
func TestProxyOutlivesTheAgent(t *testing.T) {
	t.Run("sk_lookup", func(t *testing.T) { outlivesTheAgent(t, withSkLookup) })
	t.Run("listeners", func(t *testing.T) { outlivesTheAgent(t, withListeners) })
}

func outlivesTheAgent(t *testing.T, set func(*host)) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	set(h)
	f := newForwarder(t, h, bin(t))
	f.launch()
	h.start()
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	open := dial(t, web, "a")
	c := newClients(t, web, dns)
	c.more(h, 20)
	h.stop()
	c.more(h, 20)
	open.lives("without an agent")
	h.start()
	c.more(h, 20)
	h.kill()
	c.more(h, 20)
	h.start()
	open.lives("after kill -9 of the agent")
	h.ok("status", "--wait")

	f.cmd.Process.Signal(syscall.SIGHUP)
	pid := f.replaced(1)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	t.Cleanup(stop)
	c.more(h, 50)
	open.lives("in the process that was replaced")
	h.ok("status", "--wait")
	c.check("restarts and an upgrade", false)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "b")))
	h.serves(web, "b")
	open.conn.Close()
	f.ended()

	// A proxy that crashes loses its connections, and the next one gets its frontends at once.
	stop()
	h.eventually("the agent says that the proxy is gone", func() error {
		if out := h.cli("status"); !strings.Contains(out.stdout, "no connection to the proxy") {
			return errors.New(out.stdout)
		}
		return nil
	})
	f.stop()
	f.launch()
	h.serves(web, "b")
	h.ok("status", "--wait")
}

// A version that can't start doesn't replace the running one.
func TestProxyThatCannotBeReplaced(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	program := filepath.Join(t.TempDir(), "ironvip")
	binary, err := os.ReadFile(bin(t))
	if err == nil {
		err = os.WriteFile(program, binary, 0o755)
	}
	must.Succeed(t, err)
	f := newForwarder(t, h, program)
	f.launch()
	h.start()
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	open := dial(t, web, "a")
	c := newClients(t, web, dns)
	c.more(h, 20)
	if err := errors.Join(os.Remove(program), os.WriteFile(program, []byte("#!/bin/sh\necho no library >&2\nexit 1\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	f.cmd.Process.Signal(syscall.SIGHUP)
	f.eventually("it goes on", func() error {
		if !strings.Contains(f.log.String(), "not replaced; this process goes on") {
			return errors.New("it says nothing")
		}
		return nil
	})
	c.more(h, 20)
	c.check("a failed upgrade", false)
	open.lives("after it")
	h.write("services.d/web.toml", service("web", "", newBackend(t, "b")))
	h.serves(web, "b")
}

// Without dataplane.proxy_socket, the agent forwards: its connections end with it, and the next one serves.
func TestProxyInTheAgent(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	h.start()
	web := h.vip("web") + ":8080"
	open := dial(t, web, "a")
	h.kill()
	expect.True(t, open.say("after its end") != nil, "the connection survives its process")
	if c, err := net.Dial("tcp", web); err == nil {
		c.Close()
		t.Error("somebody accepts clients")
	}
	h.start()
	h.serves(web, "a")
}
