package need

import (
	"os"
	"testing"
)

// Binary returns the path of the built program, from IRONVIP_BIN.
func Binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("IRONVIP_BIN")
	if path == "" {
		t.Fatal("IRONVIP_BIN is not set: run `make system`, or set it to the built binary's absolute path")
	}
	return path
}
