package need

import (
	"os"
	"testing"
)

// ReasonModule means that a kernel module is not loaded.
const ReasonModule Reason = "needs a kernel module"

// Module skips the test unless the kernel module is loaded, or built in with its own parameters.
func Module(t testing.TB, name string) {
	t.Helper()
	if _, err := os.Stat("/sys/module/" + name); err != nil {
		Lack(t, ReasonModule, name)
	}
}
