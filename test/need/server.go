package need

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ReasonServer is the lack of a real server that tests run against.
const ReasonServer Reason = "needs a real server"

// Server skips the test unless the server's binary is there, and returns its
// path: that of the variable IRONVIP_ and the server's name in capitals
// (IRONVIP_CONSUL, IRONVIP_KUBE_APISERVER), else what test/servers/setup.sh built.
func Server(t testing.TB, name string) string {
	t.Helper()
	variable := "IRONVIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	if path := os.Getenv(variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%s: %v", variable, err) // asked for, so it is no lack
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

// moduleRoot is the folder of go.mod above the package under test, "" where
// there is none.
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
