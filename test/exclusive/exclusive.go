// Package exclusive lets one test at a time use a thing of the host, over all test processes of the host.
package exclusive

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Demo is what `ironvip agent --demo` uses: fixed addresses and ports of the loopback.
const Demo = "demo"

// Use waits until no other test uses the thing, and keeps it until the end of the test. The kernel gives it back if
// the test's process dies.
func Use(t testing.TB, thing string) {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "ironvip-test-"+thing+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	for {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != unix.EINTR { //nolint:errorlint // an errno
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
