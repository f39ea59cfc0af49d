//go:build system

package packages

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// oldPackages builds packages of an older version, for the processor of this host.
func oldPackages(t *testing.T) string {
	t.Helper()
	return builtOldPackages.get(t, func(dir string) error {
		return script(repository(t), "packaging/package.sh", []string{dir}, "VERSION=v1.1.0", "ARCHS="+hostArch(t))
	})
}

// newDeb and oldDeb are the packages below a root.
func newDeb(t *testing.T) string { return "/packages/new/" + filepath.Base(deb(t, hostArch(t))) }

func oldDeb(t *testing.T) string {
	return strings.NewReplacer("new", "old", "1.2.3", "1.1.0").Replace(newDeb(t))
}

const (
	config  = "[dataplane]\nmode = \"proxy\"\n"
	enabled = "/etc/systemd/system/multi-user.target.wants/ironvip.service"
	// The same of the proxy's socket.
	enabledSocket = "/etc/systemd/system/sockets.target.wants/ironvip-proxy.socket"
	preset        = "preset ironvip.service ironvip-proxy.socket"
	stopAll       = "stop ironvip-announcer.service ironvip.service ironvip-proxy.socket ironvip-proxy.service"
	// The agent writes these files at its first start.
	state = "/var/lib/ironvip/ironvip.db"
)

// has reports whether systemctl was called with the words, among calls.
func has(calls []string, words string) bool { return slices.Contains(calls, words) }

const (
	proxyUnit = "/run/units/ironvip-proxy.service"
	restart   = "try-restart ironvip.service"
	reload    = "reload ironvip-proxy.service"
)

// checkRestart checks that the calls of an upgrade check the new version, make the changes before, restart the agent, and
// change nothing else.
func checkRestart(t *testing.T, what string, calls []string, before ...string) {
	t.Helper()
	expect.SameList(t, changes(calls), slices.Concat([]string{"check"}, before, []string{restart}), what)
}

// checkNoChange checks that calls change no process.
func checkNoChange(t *testing.T, what string, calls []string) {
	t.Helper()
	expect.Empty(t, slices.DeleteFunc(changes(calls), func(c string) bool { return c == "check" }), what)
}

// changes are the calls that change a process or a drain, and the check before.
func changes(calls []string) []string {
	return slices.DeleteFunc(slices.Clone(calls), func(call string) bool {
		word, _, _ := strings.Cut(call, " ")
		return !slices.Contains([]string{"check", "start", "stop", "restart", "try-restart", "reload", "node"}, word)
	})
}

// proxy starts the proxy of a package, and returns its process number.
func (r *root) proxy(deb string) string {
	r.t.Helper()
	dir := "/tmp/" + filepath.Base(deb)
	r.must("dpkg-deb", "--extract", deb, dir)
	socket := dir + "/proxy.sock"
	pid, _ := r.start(dir+"/usr/libexec/ironvip/ironvip-proxy", "--socket", socket)
	wait.Until(r.t, "the proxy runs", func() bool { return r.exists(socket) })
	return strconv.Itoa(pid)
}

// The life of the .deb on a host with systemd.
func TestDebScripts(t *testing.T) {
	r := newRoot(t, true)
	before := r.tree()

	// Without a configuration, the agent is enabled and does not start.
	text := r.must("dpkg", "-i", oldDeb(t))
	if calls := r.calls(); !has(calls, "start ironvip-proxy.socket") || !has(calls, "start ironvip.service") || !has(calls, "daemon-reload") || !has(calls, "restart systemd-modules-load.service") {
		t.Errorf("installation: %q", calls)
	}
	expect.False(t, strings.Contains(text, "ironvip: "), "the installation warns: %s", text)
	if !r.exists(enabled) || !r.exists(enabledSocket) || r.exists("/run/units/ironvip.service") || r.exists(proxyUnit) {
		t.Error("after the installation, the agent or the proxy's socket is not enabled, or the agent runs without a configuration")
	}
	if r.exists(strings.Replace(enabled, "ironvip.service", "ironvip-announcer.service", 1)) {
		t.Error("after the installation, the announcer is enabled")
	}
	expect.Contains(t, r.must("getent", "passwd", "ironvip"), ":/var/lib/ironvip:", "user")

	// With one, the agent runs. The announcer runs, too.
	r.write("/etc/ironvip/ironvip.toml", config)
	r.write(state, "leases")
	r.must("systemctl", "start", "ironvip.service")
	must.True(t, r.exists("/run/units/ironvip.service"), "the agent does not start with a configuration")
	announcer, stop := r.start("/usr/libexec/ironvip/ironvip-announcer", "--socket", "/tmp/announcer.sock")
	wait.Until(t, "the announcer runs", func() bool { return r.exists("/tmp/announcer.sock") })
	r.write("/run/units/ironvip-announcer.service", strconv.Itoa(announcer)+"\n")
	r.kernelState()
	r.calls()

	// The same version again changes no program.
	if text := r.must("dpkg", "-i", oldDeb(t)); strings.Contains(text, "announcer goes on") {
		t.Errorf("the announcer is not of another version: %s", text)
	}
	checkRestart(t, "the same version", r.calls())

	// Upgrade and downgrade restart the agent, and leave the announcer and the kernel alone.
	for _, step := range []struct{ what, deb, version string }{{"upgrade", newDeb(t), "v1.2.3"}, {"downgrade", oldDeb(t), "v1.1.0"}, {"upgrade again", newDeb(t), "v1.2.3"}} {
		text := r.must("dpkg", "-i", step.deb)
		checkRestart(t, step.what, r.calls())
		if step.version != "v1.1.0" && !strings.Contains(text, "the former version of the announcer goes on: run 'systemctl restart ironvip-announcer'") {
			t.Errorf("%s does not tell about the announcer: %s", step.what, text)
		}
		expect.Contains(t, r.must("ironvip", "version"), step.version, "after the %s, the version", step.what)
		if !r.kernelStateStays() || !r.exists(state) || !r.exists("/etc/ironvip/ironvip.toml") {
			t.Errorf("the %s removes something", step.what)
		}
	}

	// An announcer that the new agent can't steer is restarted.
	other, end := r.start("sleep", "1000") // like announcers of protocol 1, it knows no --protocol
	r.write("/run/units/ironvip-announcer.service", strconv.Itoa(other)+"\n")
	if text := r.must("dpkg", "-i", oldDeb(t)); !strings.Contains(text, "the announcer is restarted") || !has(r.calls(), "try-restart ironvip-announcer.service") {
		t.Errorf("an upgrade beside an announcer of another protocol: %s", text)
	}
	end()
	r.write("/run/units/ironvip-announcer.service", strconv.Itoa(announcer)+"\n")

	// A proxy of another version is replaced before the agent, one of the same version goes on.
	former, next := r.proxy(newDeb(t)), r.proxy(oldDeb(t))
	r.write(proxyUnit, former)
	r.write("/run/next-proxy", next)
	r.must("dpkg", "-i", oldDeb(t))
	checkRestart(t, "an upgrade beside a proxy", r.calls(), reload)
	r.must("dpkg", "-i", oldDeb(t))
	checkRestart(t, "an upgrade beside a proxy of the same version", r.calls())
	r.must("rm", proxyUnit)

	// A stopped agent stays stopped.
	r.must("systemctl", "stop", "ironvip.service")
	r.calls()
	r.must("dpkg", "-i", newDeb(t))
	if calls := changes(r.calls()); !slices.Equal(calls, []string{restart}) || r.exists("/run/units/ironvip.service") {
		t.Errorf("the upgrade with a stopped agent: %q", calls)
	}

	// An agent outside of its unit prevents the removal, and the units start again.
	stop()
	r.must("rm", "-f", "/tmp/announcer.sock", "/run/units/ironvip-announcer.service", state)
	r.must("mkdir", "-p", "/run/ironvip")
	_, stop = r.start("ironvip", "agent", "--config", "/etc/ironvip")
	wait.For(t, "the agent runs", func() error { return r.command("ironvip", "version", "--timeout", "1s").Run() })
	wait.Until(t, "the agent has its socket", func() bool { return r.exists("/run/ironvip/ironvip.sock") })
	if out, err := r.command("dpkg", "-r", "ironvip").CombinedOutput(); err == nil || !strings.Contains(string(out), "package not removed: end the agent or announcer that runs without its unit") {
		t.Errorf("the removal beside a running agent: %v\n%s", err, out)
	}
	status := r.must("dpkg-query", "-W", "-f", "${db:Status-Abbrev}", "ironvip")
	expect.Equal(t, status[1], 'i', "after the refused removal, the package is %q", status)
	if calls := r.calls(); !has(calls, "start ironvip.service") {
		t.Errorf("the units don't start after the refused removal: %q", calls)
	}
	stop()
	must.True(t, r.exists(state), "the agent has no state file")

	// The removal stops all units, and cleans the kernel. The rest stays.
	r.kernelState()
	r.must("dpkg", "-r", "ironvip")
	if calls := r.calls(); !has(calls, stopAll) {
		t.Errorf("removal: %q", calls)
	}
	if r.kernelStateStays() || !r.exists(state) || !r.exists("/etc/ironvip/ironvip.toml") || r.exists("/usr/bin/ironvip") {
		t.Error("after the removal, there is kernel state or the program, or no state file or configuration")
	}

	// Another installation starts the agent, which is still enabled.
	r.must("dpkg", "-i", oldDeb(t))
	if calls := r.calls(); !has(calls, "start ironvip.service") || slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "preset") }) {
		t.Errorf("installation after a removal: %q", calls)
	}
	expect.True(t, r.exists("/run/units/ironvip.service"), "the agent does not run after a removal and an installation")
	// An upgrade after that is one.
	r.must("dpkg", "-i", newDeb(t))
	checkRestart(t, "upgrade after a removal", r.calls())

	// If it was disabled, it stays off.
	r.must("systemctl", "--no-reload", "disable", "ironvip.service")
	r.must("dpkg", "-r", "ironvip")
	r.calls()
	r.must("dpkg", "-i", newDeb(t))
	if calls := r.calls(); has(calls, "start ironvip.service") || r.exists(enabled) {
		t.Errorf("installation of a disabled agent: %q", calls)
	}

	// Purge leaves the root as it was before.
	r.must("dpkg", "--purge", "ironvip")
	diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(r.tree(), "\n"))
	expect.NoDiff(t, diff, "after the purge (-before +after)")
}

// In a root where systemd does not run, as in an image that is built, the scripts touch neither
// processes nor the kernel.
func TestDebScriptsWithoutSystemd(t *testing.T) {
	r := newRoot(t, false)
	r.kernelState()
	r.write("/etc/ironvip/ironvip.toml", config)
	before := r.tree()
	r.must("dpkg", "-i", oldDeb(t))
	r.must("dpkg", "-i", newDeb(t))
	if !r.exists(enabled) || !r.exists(enabledSocket) {
		t.Error("the agent or the proxy's socket is not enabled")
	}
	r.must("dpkg", "-r", "ironvip")
	expect.SameList(t, r.calls(), []string{preset}, "calls without systemd")
	expect.True(t, r.kernelStateStays(), "the removal changed the kernel")
	r.must("dpkg", "--purge", "ironvip")
	want := strings.ReplaceAll(strings.ReplaceAll(before, "/etc/ironvip\n", ""), "/etc/ironvip/ironvip.toml\n", "")
	diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(r.tree(), "\n"))
	expect.NoDiff(t, diff, "after the purge (-before +after)")
}

// The installation warns of files of make install, which hide its own, but not of a masked unit.
func TestDebWarnsOfMakeInstall(t *testing.T) {
	r := newRoot(t, true)
	r.write("/etc/systemd/system/ironvip.service", "[Service]\n")
	r.must("ln", "-s", "/dev/null", "/etc/systemd/system/ironvip-announcer.service")
	r.write("/usr/local/bin/ironvip", "#!/bin/sh\n")
	text := r.must("dpkg", "-i", newDeb(t))
	for _, want := range []string{"/etc/systemd/system/ironvip.service hides the unit", "/usr/local/bin/ironvip hides /usr/bin/ironvip"} {
		expect.Contains(t, text, want, "no %q in", want)
	}
	expect.False(t, strings.Contains(text, "ironvip-announcer.service hides"), "a warning of a masked unit: %s", text)
}

// The same scripts, run by rpm.
func TestRPMScripts(t *testing.T) {
	r := newRoot(t, true)
	run := func(args ...string) string {
		t.Helper()
		out, err := r.outside(append([]string{need.Program(t, "rpm"), "--root", r.dir, "--nodeps"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("rpm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	newer := rpm(t, hostArch(t))
	older := filepath.Join(oldPackages(t), strings.Replace(filepath.Base(newer), "1.2.3", "1.1.0", 1))

	run("--install", older)
	if calls := r.calls(); !has(calls, preset) || !has(calls, "daemon-reload") || r.exists("/run/units/ironvip.service") {
		t.Errorf("installation: %q", calls)
	}
	r.must("getent", "passwd", "ironvip")

	r.write("/etc/ironvip/ironvip.toml", config)
	r.write(state, "leases")
	r.must("systemctl", "start", "ironvip.service")
	r.kernelState()
	r.calls()
	for _, step := range []struct {
		what, version string
		args          []string
	}{{"upgrade", "v1.2.3", []string{"--upgrade", newer}}, {"downgrade", "v1.1.0", []string{"--upgrade", "--oldpackage", older}}} {
		run(step.args...)
		checkRestart(t, step.what, r.calls())
		if got := r.must("ironvip", "version"); !strings.Contains(got, step.version) || !r.kernelStateStays() {
			t.Errorf("after the %s: version %s, kernel state %t", step.what, got, r.kernelStateStays())
		}
	}

	run("--erase", "ironvip")
	if calls := r.calls(); !has(calls, stopAll) || !has(calls, "--no-reload disable ironvip.service ironvip-proxy.socket ironvip-announcer.service") {
		t.Errorf("removal: %q", calls)
	}
	if r.kernelStateStays() || r.exists(enabled) || r.exists(enabledSocket) || r.exists("/usr/bin/ironvip") || r.exists("/usr/libexec/ironvip") || !r.exists(state) || !r.exists("/etc/ironvip/ironvip.toml") {
		t.Errorf("after the removal: kernel state %t\n%s", r.kernelStateStays(), r.must("find", "/etc/ironvip", "/var/lib/ironvip", "/usr/libexec", "/etc/systemd/system"))
	}
}
