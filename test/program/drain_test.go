//go:build system || vm

package program

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/user"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// call is an open connection to a VIP.
type call struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
	name string // of the backend at its other end
}

// dial opens connections to addr until one is answered by the backend.
func dial(t *testing.T, addr, name string) *call {
	t.Helper()
	for range 50 {
		conn := must.Get(net.DialTimeout("tcp", addr, wait.Timeout))(t)
		conn.SetDeadline(time.Now().Add(wait.Timeout))
		c := &call{t: t, conn: conn, r: bufio.NewReader(conn)}
		line, err := c.r.ReadString('\n')
		must.Succeed(t, err, addr)
		if c.name = strings.TrimSpace(line); c.name == name {
			t.Cleanup(func() { conn.Close() })
			return c
		}
		conn.Close()
	}
	t.Fatalf("%s is never answered by %s", addr, name)
	return nil
}

// lives fails the test unless the connection still carries bytes in both directions.
func (c *call) lives(when string) {
	c.t.Helper()
	expect.Succeed(c.t, c.say(when), "%s: the connection to %s", when, c.name)
}

func (c *call) say(text string) error {
	c.conn.SetDeadline(time.Now().Add(wait.Reply))
	if _, err := io.WriteString(c.conn, text+"\n"); err != nil {
		return err
	}
	line, err := c.r.ReadString('\n')
	if err == nil && line != text+"\n" {
		err = fmt.Errorf("echoed as %q", line)
	}
	return err
}

// overrides: an override of a backend is in effect for any source, across a change of its file and
// kill -9, until it is removed.
func overrides(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.start()
	web := h.vip("web") + ":8080"
	open := dial(t, web, "b")
	h.ok("backend", "drain", "web", b.addr)
	if got := answered(t, web, 4); got["a"] != 4 {
		t.Errorf("right after the drain: %v", got)
	}
	me := must.Get(user.Current())(t)
	if out := h.ok("override", "list"); !strings.Contains(out, b.addr) || !strings.Contains(out, me.Username) {
		t.Errorf("override list:\n%s", out)
	}
	expect.Contains(t, h.ok("events"), "set to drain by "+me.Username, "events:\n")
	if r := h.cli("backend", "maint", "web", a.addr); r.code != 5 || !strings.Contains(r.stderr, "is the last usable backend") || !strings.Contains(r.stderr, "--force") {
		t.Errorf("maint of the last backend: exit %d\n%s", r.code, r.stderr)
	}
	open.lives("while it drains")
	expect.Contains(t, h.ok("backend", "list", "web"), "drain", "backend list:\n")
	h.explains("web", b.addr, "drain")
	h.write("services.d/web.toml", service("web", "labels = { touched = \"yes\" }", a, b))
	h.ok("reload")
	if got := answered(t, web, 4); got["a"] != 4 {
		t.Errorf("after a change of the file: %v", got)
	}
	h.kill()
	h.start()
	if got := answered(t, web, 4); got["a"] != 4 {
		t.Errorf("after kill -9: %v", got)
	}
	if mode == "ipvs" {
		open.lives("after kill -9")
	}
	h.ok("backend", "ready", "web", b.addr)
	if got := answered(t, web, 4); got["a"] != 2 || got["b"] != 2 {
		t.Errorf("right after it is ready again: %v", got)
	}
}
