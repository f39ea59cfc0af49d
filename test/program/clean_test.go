//go:build system

package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// Without privileges nothing is removed, and the exit code reports that.
func TestCleanWithoutRights(t *testing.T) {
	parallel(t)
	need.Root(t)
	h := newHost(t)
	h.write("services.d/web.toml", service("web", "", newBackend(t, "a")))
	h.start()
	h.vip("web")
	h.stop()
	clean := func() result { return h.as(nobody, nil, "dataplane", "clean", "--config", h.dir) }
	h.belongsTo(nobody)
	r := clean()
	if r.code != 7 || !strings.Contains(r.stderr, "look for what was left") || !strings.Contains(r.stderr, "CAP_NET_ADMIN") || r.stdout != "" {
		t.Errorf("without rights: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if err := os.Chown(filepath.Join(h.dir, "state", "ironvip.db"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if r := clean(); r.code != 7 || !strings.Contains(r.stderr, "ironvip.db") || !strings.Contains(r.stderr, "as root") {
		t.Errorf("with a state file of root's: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}
