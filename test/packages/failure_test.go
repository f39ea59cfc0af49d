//go:build system

package packages

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// An upgrade that fails leaves the former version running, and names the cause: a full disk while the
// files are unpacked, a new agent that can't start, and a proxy that is not replaced.
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
		got := r.must("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Version}", "ironvip")
		expect.True(t, strings.HasPrefix(got, "ii "+version), "%s: the package is %q, want %s", what, got, version)
		expect.Contains(t, r.must("ironvip", "version"), "v"+version, "%s: the program is of", what)
	}

	// The agent fits on the disk and the other programs do not, so the new files are there in part.
	const full = "/usr/libexec/ironvip"
	size := int64(1 << 20)
	for _, program := range []string{"/ironvip-announcer", "/ironvip-proxy"} {
		info := must.Get(os.Stat(r.path(full + program)))(t)
		size += info.Size()
	}
	outside := func(args ...string) {
		t.Helper()
		if out, err := r.outside(args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	disk := filepath.Join(r.dir, full)
	r.must("cp", "-a", full, "/tmp/former")
	outside("mount", "-t", "tmpfs", "-o", "mode=755,size="+strconv.FormatInt(size, 10), "tmpfs", disk)
	r.must("cp", "-a", "/tmp/former/ironvip-announcer", "/tmp/former/ironvip-proxy", full)
	out, err := r.command("dpkg", "-i", newDeb(t)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "ironvip-announcer") || !strings.Contains(string(out), "No space left on device") {
		t.Errorf("an upgrade with a full disk: %v\n%s", err, out)
	}
	checkNoChange(t, "a full disk", r.calls())
	goesOn("a full disk")
	installed("a full disk", "1.1.0")
	left := r.must("find", "/usr/bin", full, "-name", "*.dpkg-*")
	expect.Equal(t, left, "", "a full disk: files of the new version stay")
	outside("umount", disk)

	// The new version is installed, and can't start.
	const goOn = "ironvip: the former version goes on: fix the cause, then run 'systemctl restart ironvip'\n"
	r.write("/run/check-fails", "")
	text := r.must("dpkg", "-i", newDeb(t))
	expect.Contains(t, text, "error: the state file is damaged\n"+goOn, "an agent that can't start")
	checkNoChange(t, "an agent that can't start", r.calls())
	goesOn("an agent that can't start")
	installed("an agent that can't start", "1.2.3")

	// The proxy is replaced all the same, unless the former agent could not steer the new one. The same is true of the
	// announcer.
	former, next := r.proxy(oldDeb(t)), r.proxy(newDeb(t))
	r.write(proxyUnit, former)
	r.write("/run/next-proxy", next)
	text = r.must("dpkg", "-i", newDeb(t))
	if calls := r.calls(); !has(calls, reload) || has(calls, restart) || r.must("cat", proxyUnit) != next || !strings.Contains(text, goOn) {
		t.Errorf("an agent that can't start, beside a proxy of the same protocol: %q\n%s", calls, text)
	}
	other, _ := r.start("sleep", "1000") // it knows no --protocol
	r.write(proxyUnit, strconv.Itoa(other))
	const announcerUnit = "/run/units/ironvip-announcer.service"
	r.write(announcerUnit, strconv.Itoa(other))
	text = r.must("dpkg", "-i", newDeb(t))
	checkNoChange(t, "an agent that can't start, beside processes of another protocol", r.calls())
	if !strings.Contains(text, "fix the cause, then run 'systemctl reload ironvip-proxy && systemctl restart ironvip'\n") {
		t.Errorf("an agent that can't start, beside processes of another protocol: %s", text)
	}
	goesOn("an agent that can't start, beside other processes")
	r.must("rm", announcerUnit)
	r.must("rm", "/run/check-fails")

	// The proxy is not replaced, so the agent isn't either. Nothing waits in the loop of the script here.
	r.must("mv", "/usr/bin/sleep", "/usr/bin/sleep.real")
	r.must("ln", "-s", "true", "/usr/bin/sleep")
	text = r.must("dpkg", "-i", newDeb(t))
	if want := "ironvip: proxy not replaced: see 'journalctl -u ironvip-proxy'\nironvip: the former version goes on: fix the cause, then run 'systemctl reload ironvip-proxy && systemctl restart ironvip'\n"; !strings.Contains(text, want) {
		t.Errorf("a proxy that is not replaced: %s", text)
	}
	if calls := r.calls(); !has(calls, reload) || has(calls, restart) {
		t.Errorf("a proxy that is not replaced: %q", calls)
	}
	goesOn("a proxy that is not replaced")

	// With the cause gone, another installation replaces both, the proxy first.
	r.write("/run/next-proxy", next)
	if text := r.must("dpkg", "-i", newDeb(t)); strings.Contains(text, "ironvip: ") {
		t.Errorf("the cause is gone: %s", text)
	}
	checkRestart(t, "the cause is gone", r.calls(), reload)
	if r.must("cat", "/run/units/ironvip.service") == process {
		t.Error("the cause is gone: the former process goes on")
	}
}
