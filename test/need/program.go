package need

import (
	"os/exec"
	"testing"
)

// ReasonProgram means that a program is missing.
const ReasonProgram Reason = "needs a program"

// Program skips the test unless the program is in PATH, and returns its path.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Lack(t, ReasonProgram, name)
	}
	return path
}
