//go:build vm && long

package systemd

import (
	"os"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// script does what scripts of keepalived's notify do, and writes what of it works.
const script = `#!/bin/sh
try() {
	name=$1; shift
	if "$@" >/dev/null 2>&1; then echo "$name works"; else echo "$name fails"; fi
}
{
	try route ip route replace blackhole 203.0.113.7
	try logger logger --tag moved "$IRONVIP_KIND"
	try state touch /var/lib/ironvip/moved
	try tmp touch /tmp/moved
	try log touch /var/log/moved/log
	try etc touch /etc/moved
	try systemctl systemctl --no-ask-password reload cron.service
} >/var/lib/ironvip/moved.new
mv /var/lib/ironvip/moved.new /var/lib/ironvip/moved.out
`

// A hook's program runs in the sandbox of the packaged unit: docs/hooks.md says what it can do there. The drop-in of that page
// lets it write elsewhere.
// Slow: the emulated machine.
func TestHookInTheSandbox(t *testing.T) {
	h := newHost(t)
	h.install(older)
	h.start("ipvs")
	must.Succeed(t, os.WriteFile("/usr/local/bin/vip-moved", []byte(script), 0o755))
	write(t, config, read(t, config)+"[[hook]]\nname = \"moved\"\nevents = [\"config_reloaded\"]\ncommand = [\"/usr/local/bin/vip-moved\"]\n")
	run(t, "install", "-d", "-o", "ironvip", "/var/log/moved")

	works := func(want string) {
		t.Helper()
		const out = "/var/lib/ironvip/moved.out"
		os.Remove(out)
		run(t, "ironvip", "reload")
		wait.For(t, "the hook has run", func() error {
			_, err := os.Stat(out)
			return err
		})
		expect.Equal(t, read(t, out), want)
	}
	const always = "route works\nlogger works\nstate works\ntmp works\n"
	works(always + "log fails\netc fails\nsystemctl fails\n")
	if _, err := os.Stat("/tmp/moved"); err == nil {
		t.Error("/tmp is that of the host")
	}
	expect.Contains(t, run(t, "ip", "route", "show", "203.0.113.7"), "blackhole")
	expect.Contains(t, run(t, "journalctl", "--no-pager", "--identifier=moved"), "config_reloaded")

	must.Succeed(t, os.MkdirAll("/etc/systemd/system/ironvip.service.d", 0o755))
	write(t, "/etc/systemd/system/ironvip.service.d/hooks.conf", "[Service]\nReadWritePaths=/var/log/moved\n")
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "restart", "ironvip")
	h.running(older)
	works(always + "log works\netc fails\nsystemctl fails\n")

	run(t, "ip", "route", "del", "blackhole", "203.0.113.7")
	must.Succeed(t, os.RemoveAll("/etc/systemd/system/ironvip.service.d"))
	run(t, "dpkg", "--purge", "ironvip")
	must.Succeed(t, os.Remove("/usr/local/bin/vip-moved"))
}
