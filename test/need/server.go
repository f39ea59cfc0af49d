package need

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ReasonServer means that a real server for tests is missing.
const ReasonServer Reason = "needs a real server"

// Server skips the test unless the server's binary exists, and returns its path. The path comes
// from the variable IRONVIP_ with the server's name in capitals (IRONVIP_CONSUL,
// IRONVIP_KUBE_APISERVER), else from test/servers/setup.sh.
func Server(t testing.TB, name string) string {
	t.Helper()
	variable := "IRONVIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	if path := os.Getenv(variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%s: %v", variable, err) // it was requested, so this is an error and not a skip
		}
		return path
	}
	if root := moduleRoot(); root != "" {
		path := filepath.Join(root, ".cache/servers", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	Lack(t, ReasonServer, name+": run test/servers/setup.sh "+name+", or name the binary in "+variable)
	return ""
}

// moduleRoot returns the directory with go.mod above the package under test, or "".
func moduleRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}
