package wait_test

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// stop stops this process for 0.8 s, as a busy machine does.
func stop(t *testing.T) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "kill -STOP $0 && sleep 0.8; kill -CONT $0", strconv.Itoa(os.Getpid()))
	out, err := cmd.CombinedOutput()
	must.Succeed(t, err, "%s", out)
}

func TestNoticesAStall(t *testing.T) {
	began := time.Now()
	stalls := wait.WatchStalls(t)
	stop(t)
	if got := stalls.Since(began); got < 700*time.Millisecond || got > time.Since(began) {
		t.Errorf("a stall of %s, want 0.8 s", got)
	}
	if got := stalls.Since(time.Now().Add(time.Hour)); got != 0 { // nobody knows what this machine does now
		t.Errorf("a stall of %s after the stall", got)
	}
}

func TestUndisturbedRepeatsStalledRounds(t *testing.T) {
	n := 0
	f := &fake{TB: t}
	wait.Undisturbed(f, "two rounds", func() error {
		if n++; n == 1 {
			stop(t)
			return errors.New("stalled")
		}
		return nil
	})
	if n != 2 || f.failure != "" {
		t.Errorf("%d rounds, failure %q", n, f.failure)
	}
}

func TestUndisturbedFails(t *testing.T) {
	f := &fake{TB: t}
	n := 0
	wait.Undisturbed(f, "bad luck", func() error { n++; stop(t); return errors.New("a fault") })
	if n < 2 || n > 10 || !strings.Contains(f.failure, "a fault") {
		t.Errorf("%d rounds, failure %q", n, f.failure)
	}
}
