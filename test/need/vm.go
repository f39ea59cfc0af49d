package need

import (
	"os"
	"path/filepath"
	"testing"
)

// ReasonVM means that the kernel VM is not set up.
const ReasonVM Reason = "needs the kernel VM"

// VM skips the test unless the kernel VM is set up, and returns the path of its
// runner.
func VM(t testing.TB) string {
	t.Helper()
	if root := moduleRoot(); root != "" {
		path := filepath.Join(root, ".cache/vm/vmrun")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	Lack(t, ReasonVM, "run test/vm/setup.sh")
	return ""
}
