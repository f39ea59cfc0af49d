package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// ReasonDaemon means that a daemon of a Debian package is missing.
const ReasonDaemon Reason = "needs a daemon"

// Daemon skips the test unless the daemon, or its command, is installed. It returns its
// path. Debian's packages put some of them outside PATH.
func Daemon(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/usr/lib/frr", "/usr/lib/polkit-1"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	Lack(t, ReasonDaemon, name+": run make system, or apt-get install bird2 frr gobgpd exabgp dnsmasq-base unbound polkitd prometheus")
	return ""
}
