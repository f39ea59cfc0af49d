//go:build system

package packages

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// An upgrade that fails leaves the former version running, and names the cause: a full disk while the
// files are unpacked, and a new version that does not take over.
func TestDebUpgradeFails(t *testing.T) {
	r := newRoot(t, true)
	r.must("dpkg", "-i", oldDeb(t))
	r.write("/etc/ironvip/ironvip.toml", config)
	r.write(state, "leases")
	r.must("systemctl", "start", "ironvip.service")
	r.kernelState()
	r.calls()
	process := r.must("cat", "/run/units/ironvip.service")
	// goesOn checks that the same process of the agent runs, with all that it needs.
	goesOn := func(what string) {
		t.Helper()
		if r.must("cat", "/run/units/ironvip.service") != process || !r.kernelStateStays() || !r.exists(state) || !r.exists("/etc/ironvip/ironvip.toml") {
			t.Errorf("%s: the former version does not go on", what)
		}
	}
	installed := func(what, version string) {
		t.Helper()
		if got := r.must("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", "ironvip"); !strings.HasPrefix(got, "ii "+version) {
			t.Errorf("%s: the package is %q, want %s", what, got, version)
		}
		if got := r.must("ironvip", "version"); !strings.Contains(got, "v"+version) {
			t.Errorf("%s: the program is of %s", what, got)
		}
	}

	// The agent fits on the disk and the announcer does not, so the new files are there in part.
	const full = "/usr/libexec/ironvip"
	announcer, err := os.Stat(r.path(full + "/ironvip-announcer"))
	if err != nil {
		t.Fatal(err)
	}
	outside := func(args ...string) {
		t.Helper()
		if out, err := r.outside(args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	disk := filepath.Join(r.dir, full)
	r.must("cp", "-a", full, "/tmp/former")
	outside("mount", "-t", "tmpfs", "-o", "mode=755,size="+strconv.FormatInt(announcer.Size()+1<<20, 10), "tmpfs", disk)
	r.must("cp", "-a", "/tmp/former/ironvip-announcer", full)
	out, err := r.command("dpkg", "-i", newDeb(t)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "ironvip-announcer") || !strings.Contains(string(out), "No space left on device") {
		t.Errorf("an upgrade with a full disk: %v\n%s", err, out)
	}
	calls := r.calls()
	if has(calls, takeOver) {
		t.Errorf("a full disk: %q", calls)
	}
	checkNoStop(t, "a full disk", calls)
	goesOn("a full disk")
	installed("a full disk", "1.1.0")
	if left := r.must("find", "/usr/bin", full, "-name", "*.dpkg-*"); left != "" {
		t.Errorf("a full disk: files of the new version stay: %s", left)
	}
	outside("umount", disk)

	// The new version is installed and does not take over. Nothing waits in the loop of the script here.
	r.must("mv", "/usr/bin/sleep", "/usr/bin/sleep.real")
	r.must("ln", "-s", "true", "/usr/bin/sleep")
	r.write("/run/take-over-fails", "")
	text := r.must("dpkg", "-i", newDeb(t))
	if want := "ironvip: take-over failed (see 'journalctl -u ironvip'): the former version goes on: fix the cause, then run 'systemctl restart ironvip'\n"; !strings.Contains(text, want) {
		t.Errorf("a failed take-over: %s", text)
	}
	checkTakeOver(t, "a failed take-over", r.calls())
	goesOn("a failed take-over")
	installed("a failed take-over", "1.2.3")

	// With the cause gone, another installation takes over.
	r.must("rm", "/run/take-over-fails")
	if text := r.must("dpkg", "-i", newDeb(t)); strings.Contains(text, "take-over failed") {
		t.Errorf("the cause is gone: %s", text)
	}
	checkTakeOver(t, "the cause is gone", r.calls())
	if r.must("cat", "/run/units/ironvip.service") == process {
		t.Error("the cause is gone: the former process goes on")
	}
}
