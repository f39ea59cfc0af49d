//go:build system || vm

package program

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
		conn, err := net.DialTimeout("tcp", addr, maxWait)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(maxWait))
		c := &call{t: t, conn: conn, r: bufio.NewReader(conn)}
		line, err := c.r.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
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
	if err := c.say(when); err != nil {
		c.t.Errorf("%s: the connection to %s: %v", when, c.name, err)
	}
}

func (c *call) say(text string) error {
	c.conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c.conn, text+"\n"); err != nil {
		return err
	}
	line, err := c.r.ReadString('\n')
	if err == nil && line != text+"\n" {
		err = fmt.Errorf("echoed as %q", line)
	}
	return err
}

// drained waits until a backend is no longer listed, and returns the time for that.
func (h *host) drained(service, backend string) time.Duration {
	h.t.Helper()
	start := time.Now()
	h.eventually(backend+" is gone from "+service, func() error {
		if out := h.frontends(service); strings.Contains(out, backend) {
			return errors.New(out)
		}
		return nil
	})
	return time.Since(start)
}

// frontends returns the desired frontends of a service, as JSON.
func (h *host) frontends(service string) string {
	h.t.Helper()
	r := h.cli("dataplane", "show", service, "-o", "json")
	if r.code != 0 {
		h.t.Fatalf("dataplane show %s: exit %d\n%s", service, r.code, r.stderr)
	}
	return r.stdout
}

// A backend that is removed while a connection is open gets no new ones, and the open one
// continues. The backend is deleted when it is idle, else at the deadline.
func TestRemovedBackendDrains(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	const deadline = 15 * time.Second // for what is looked at before: machines are busy, and the VM's clock is no slower than theirs
	drain := fmt.Sprintf("drain_timeout = %q", deadline)
	h.write("services.d/web.toml", service("web", drain, a, b))
	h.write("services.d/idle.toml", service("idle", "drain_timeout = \"10m\"", a, b))
	h.start()
	web := h.vip("web") + ":8080"
	h.serves(web, "a", "b")
	open := dial(t, web, "b")
	removed := time.Now()
	h.write("services.d/web.toml", service("web", drain, a))
	h.serves(web, "a")
	if got := answered(t, web, 6); got["a"] != 6 {
		t.Errorf("new connections while b drains: %v", got)
	}
	open.lives("while it drains")
	if out := h.frontends("web"); !strings.Contains(out, "leaving_at") {
		t.Errorf("the frontend says nothing of the drain:\n%s", out)
	}
	h.drained("web", b.addr)
	if took := time.Since(removed); took < deadline-time.Second {
		t.Errorf("a backend with an open connection is let go after %s, the deadline is %s", took, deadline)
	}
	h.eventually("the connection ends with its backend", func() error {
		if err := open.say("after the deadline"); err == nil {
			return errors.New("it still lives")
		}
		return nil
	})
	h.serves(web, "a")

	// A backend without connections doesn't wait for its deadline of ten minutes.
	h.serves(h.vip("idle")+":8080", "a", "b")
	if mode == "proxy" { // the kernel keeps entries of closed connections for two minutes
		h.write("services.d/idle.toml", service("idle", "drain_timeout = \"10m\"", a))
		h.serves(h.vip("idle")+":8080", "a")
		h.drained("idle", b.addr)
	}
}

// A backend that returns while it drains gets new connections again, and an open connection is not
// affected.
func TestReturningBackend(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.start()
	web := h.vip("web") + ":8080"
	open := dial(t, web, "b")
	h.write("services.d/web.toml", service("web", "", a))
	h.serves(web, "a")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.serves(web, "a", "b")
	open.lives("after it returned")
	if out := h.frontends("web"); strings.Contains(out, "leaving_at") {
		t.Errorf("it still leaves: %s", out)
	}
}

// An override of a backend is in effect for any source, across a change of its file and kill -9,
// until it is removed.
func TestOperatorDrain(t *testing.T) {
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
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if out := h.ok("override", "list"); !strings.Contains(out, b.addr) || !strings.Contains(out, me.Username) {
		t.Errorf("override list:\n%s", out)
	}
	if out := h.ok("events"); !strings.Contains(out, "set to drain by "+me.Username) {
		t.Errorf("events:\n%s", out)
	}
	if r := h.cli("backend", "maint", "web", a.addr); r.code != 5 || !strings.Contains(r.stderr, "is the last usable backend") || !strings.Contains(r.stderr, "--force") {
		t.Errorf("maint of the last backend: exit %d\n%s", r.code, r.stderr)
	}
	open.lives("while it drains")
	if out := h.ok("backend", "list", "web"); !strings.Contains(out, "drain") {
		t.Errorf("backend list:\n%s", out)
	}
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

// A deleted service drains: open connections continue until its deadline, new ones are refused at
// once, and then nothing of it remains.
func TestDeletedServiceDrains(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.start()
	const deadline = 20 * time.Second // for what is looked at before
	body := fmt.Sprintf(`{"drain_timeout": %q, "ports": [{"port": 8080}], "backends": [%s]}`, deadline, a.json())
	code, tree := h.rest("PUT", "/v1/services/default/web", body, "Prefer", "wait=30")
	if code != http.StatusCreated {
		t.Fatalf("PUT: %d %v", code, tree)
	}
	vip := h.vip("web")
	open := dial(t, vip+":8080", "a")
	h.ok("service", "delete", "web")
	if name, err := who(vip + ":8080"); err == nil {
		t.Errorf("a new connection to a deleted service is answered by %s", name)
	}
	open.lives("while the deleted service drains")
	if other := h.put("other", b); other == vip {
		t.Errorf("the address of a draining service is given away")
	}
	h.eventually("nothing of it is left", func() error {
		if out := h.ok("dataplane", "show"); strings.Contains(out, vip) {
			return errors.New(out)
		}
		return nil
	})
	h.ok("dataplane", "diff")
	h.serves(h.vip("other")+":8080", "b")
}

// An override expires while the agent runs, and while it does not. It ends with its service.
func TestOverrideEnds(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.start()
	web := h.vip("web") + ":8080"
	none := func() {
		t.Helper()
		h.eventually("no override is listed", func() error {
			if out := h.ok("override", "list", "-o", "name"); out != "" {
				return errors.New(out)
			}
			return nil
		})
	}
	h.ok("backend", "drain", "web", a.addr, "--force", "--for", "1s")
	none()
	h.serves(web, "a", "b")
	h.ok("backend", "maint", "web", b.addr, "--for", "1s")
	h.kill()
	time.Sleep(time.Second)
	h.start()
	none()
	h.serves(web, "a", "b")

	h.ok("backend", "drain", "web", b.addr)
	if err := os.Remove(filepath.Join(h.dir, "services.d", "web.toml")); err != nil {
		t.Fatal(err)
	}
	none()
	h.write("services.d/web.toml", service("web", "", a, b))
	h.serves(h.vip("web")+":8080", "a", "b")
	h.ok("backend", "drain", "web", b.addr)
	h.ok("override", "clear", "web", b.addr)
	none()
}

// backend drain --wait returns when the backend has no connections, and fails while it has some.
func TestDrainWaitsForConnections(t *testing.T) {
	parallel(t)
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	h.write("services.d/web.toml", service("web", "", a, b))
	h.start()
	open := dial(t, h.vip("web")+":8080", "b")
	r := h.cli("backend", "drain", "web", b.addr, "--wait", "--timeout", "2s")
	if r.code != 3 || !strings.Contains(r.stderr, "still has 1 open connection after 2s") {
		t.Errorf("with a connection: exit %d\n%s", r.code, r.stderr)
	}
	open.lives("after the wait")
	open.conn.Close()
	if mode == "proxy" { // the kernel keeps entries of closed connections for two minutes
		r = h.cli("backend", "drain", "web", b.addr, "--wait", "--timeout", "1m")
		if r.code != 0 || !strings.Contains(r.stderr, "has no connections") {
			t.Errorf("without a connection: exit %d\n%s", r.code, r.stderr)
		}
	}
}
