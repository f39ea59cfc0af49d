package need

import (
	"os"
	"testing"
)

// ReasonModule is the lack of a kernel module that is loaded.
const ReasonModule Reason = "needs a kernel module"

// Module skips the test unless the kernel module is loaded, or built in with
// parameters of its own.
func Module(t testing.TB, name string) {
	t.Helper()
	if _, err := os.Stat("/sys/module/" + name); err != nil {
		Lack(t, ReasonModule, name)
	}
}
