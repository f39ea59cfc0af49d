//go:build system

package program

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// On a kernel without IPVS, clean reports that, and removes what can exist there, for example a
// table from a time with another kernel.
func TestCleanWithoutIPVS(t *testing.T) {
	parallel(t)
	need.Root(t)
	need.Program(t, "nft")
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		t.Log("this kernel has IPVS: the VM's tests have the rest")
		return
	}
	l, h := netlab.New(t), newHost(t)
	inside := func(want int, args ...string) string {
		t.Helper()
		var out []byte
		var err error
		l.Director.Do(func() { out, err = exec.Command(args[0], args[1:]...).CombinedOutput() })
		code := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code, err = exit.ExitCode(), nil
		}
		if err != nil || code != want {
			t.Errorf("%s: exit code %d, want %d: %v\n%s", args, code, want, err, out)
		}
		return string(out)
	}
	clean := []string{bin(t), "dataplane", "clean", "--config", h.dir}
	inside(0, "nft", "add", "table", "inet", "neighbour")
	before := inside(0, "nft", "list", "ruleset")
	mentions(t, "nothing there", inside(0, clean...), "no IPVS", "there can be no services of ours", "nothing to remove")
	inside(0, "nft", "add", "table", "inet", "ironvip")
	mentions(t, "dry run", inside(10, append(clean, "--dry-run")...), "inet ironvip")
	mentions(t, "clean", inside(0, clean...), "inet ironvip", "removed 1 object")
	if now := inside(0, "nft", "list", "ruleset"); now != before || !strings.Contains(now, "neighbour") {
		t.Errorf("after clean there is %q, before there was %q", now, before)
	}
}
