package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// A successor that hangs before it asks is killed, so that it can't take over after its failure has been reported. One that
// ends is not said to hang.
func TestSuccessorThatHangs(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	for script, want := range map[string]string{
		"kill -STOP $$":                       "so this agent has ended it",
		"echo asking >&3; kill -STOP $$":      "so this agent has ended it",
		"test ! -e /proc/self/fd/4 && exit 0": "it ended before it took over",
	} {
		os.Args = []string{"/bin/sh", "-c", script, "sh"}
		s, err := startSuccessor(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		hangs := strings.Contains(script, "STOP")
		if hangs {
			s.patience = 100 * time.Millisecond
		}
		stat := fmt.Sprintf("/proc/%d/stat", s.process.PID)
		if err := s.wait(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
		if now, err := os.ReadFile(stat); hangs && err == nil && !strings.Contains(string(now), ") Z ") { // nobody may have reaped it
			t.Errorf("%s: it is still there: %s", script, now)
		}
	}
}
