//go:build vm

package program

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The deadline of a drain survives kill -9: the backend and its connection remain until the
// original deadline, not less, and not for a whole drain_timeout after the restart.
func TestDrainDeadlineSurvivesKill(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	drain := `drain_timeout = "60s"` // longer than all steps before, on a busy machine too
	h.write("services.d/web.toml", service("web", drain, a, b))
	h.start()
	web := h.vip("web") + ":8080"
	open := dial(t, web, "b")
	h.write("services.d/web.toml", service("web", drain, a))
	h.serves(web, "a")
	deadline := h.leavingAt("web")
	h.keeps("drains", web+"/tcp", func(kept string) bool { return strings.Contains(kept, b.addr) })
	h.kill()
	kernel := func() string {
		out, err := exec.Command("ipvsadm", "-Sn").CombinedOutput()
		if err != nil {
			t.Fatalf("%v %s", err, out)
		}
		return string(out)
	}
	if !strings.Contains(kernel(), "-r "+b.addr+" -m -w 0") {
		t.Errorf("b does not drain in the kernel:\n%s", kernel())
	}
	time.Sleep(2 * time.Second) // the rest of the deadline must not start again
	h.start()
	if now := h.leavingAt("web"); !now.Equal(deadline) {
		t.Errorf("b is to leave at %s, after the restart at %s", deadline, now)
	}
	open.lives("after kill -9")
	if got := answered(t, web, 4); got["a"] != 4 {
		t.Errorf("new connections after kill -9: %v", got)
	}
	if !strings.Contains(kernel(), b.addr) {
		t.Errorf("b was taken out by the restart:\n%s", kernel())
	}
	h.eventually("b is taken out", func() error {
		if out := kernel(); strings.Contains(out, b.addr) {
			return errorString(out)
		}
		return nil
	})
	if now := time.Now(); now.Before(deadline) {
		t.Errorf("taken out at %s, the deadline is %s", now, deadline)
	}
}

// leavingAt returns when the only draining backend of a service is to be removed.
func (h *host) leavingAt(service string) (at time.Time) {
	h.t.Helper()
	h.eventually("a backend of "+service+" leaves", func() error {
		out := h.frontends(service)
		found := regexp.MustCompile(`"leaving_at": *"([^"]+)"`).FindStringSubmatch(out)
		if found == nil {
			return errorString(out)
		}
		var err error
		at, err = time.Parse(time.RFC3339Nano, found[1])
		return err
	})
	return at
}

type errorString string

func (e errorString) Error() string { return string(e) }
