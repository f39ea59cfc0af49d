//go:build vm

package program

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The deadline of a drain is kept over kill -9: the backend stays, with its
// connection, and goes when it was to go; not earlier, and not a whole
// drain_timeout after the restart.
func TestDrainDeadlineSurvivesKill(t *testing.T) {
	h := newHost(t)
	a, b := newBackend(t, "a"), newBackend(t, "b")
	const deadline = 30 * time.Second
	drain := `drain_timeout = "30s"`
	h.write("services.d/web.toml", service("web", drain, a, b))
	h.start()
	web := h.vip("web") + ":8080"
	open := dial(t, web, "b")
	h.write("services.d/web.toml", service("web", drain, a))
	h.serves(web, "a")
	begun := time.Now()
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
	time.Sleep(10 * time.Second) // what is left of the deadline must not start anew
	h.start()
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
	if took := time.Since(begun); took < deadline-2*time.Second || took > deadline+8*time.Second {
		t.Errorf("taken out after %s, the deadline is %s", took, deadline)
	}
}

type errorString string

func (e errorString) Error() string { return string(e) }
