//go:build system

package packages

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// supervisor runs the agent while its unit runs, as another process after each restart of the unit. It writes which one
// answers.
const supervisor = `while :; do
	want=$(cat /run/units/ironvip.service 2>/dev/null)
	if [ "$want" != "$have" ]; then
		[ -z "$have" ] || { kill $! && wait $!; }
		have=$want
		ironvip agent --config /etc/ironvip --state-dir /var/lib/ironvip &
		until ironvip pool list --timeout 1s >/dev/null 2>&1 || ! kill -0 $!; do sleep 0.05; done
	fi
	echo "$have" >/run/serving
	sleep 0.05
done`

// The role installs ironvip, configures it and upgrades it, and changes nothing the second time. A mistake in a file
// replaces none, and an upgrade drains a host with an announcer.
//
// Slow: each run of Ansible takes seconds.
func TestAnsible(t *testing.T) {
	playbook, dir := need.Program(t, "ansible-playbook"), t.TempDir()
	r := newRoot(t, true)
	r.write("/run/serving", "")
	r.must("mkdir", "-p", "/run/ironvip")
	r.start("unshare", "--pid", "--fork", "--kill-child", "sh", "-c", supervisor)
	ssh := must.Get(filepath.Abs("testdata/ssh"))(t)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "inventory"), []byte("[ironvip]\nlb1 ansible_user=root ansible_python_interpreter=/usr/bin/python3 ansible_ssh_executable="+ssh+"\n"), 0o644))
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "ansible.cfg"), nil, 0o644)) // not that of this host
	run := func(vars map[string]any, flags ...string) (out string, err error) {
		cmd := exec.CommandContext(t.Context(), playbook, slices.Concat(flags, []string{"--inventory", filepath.Join(dir, "inventory"), "--extra-vars", string(must.Get(json.Marshal(vars))(t)), filepath.Join(repository(t), "packaging/ansible/site.yml")})...)
		cmd.Env = append(os.Environ(), "ROOT_PID="+strconv.Itoa(r.hold.Process.Pid), "ROOT_DIR="+r.dir, "ANSIBLE_HOME="+dir, "ANSIBLE_CONFIG="+filepath.Join(dir, "ansible.cfg"), "ANSIBLE_NOCOLOR=1",
			"ANSIBLE_PIPELINING=1", "ANSIBLE_SSH_TRANSFER_METHOD=piped", "ANSIBLE_GATHER_SUBSET=!all,!min,pkg_mgr", "LC_ALL=C.UTF-8")
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	// change runs the role, which makes these calls.
	change := func(what string, vars map[string]any, want []string, flags ...string) string {
		t.Helper()
		r.calls()
		out, err := run(vars, flags...)
		must.Succeed(t, err, "%s: %s", what, out)
		expect.SameList(t, changes(r.calls()), want, what)
		return out
	}
	service := func(name string) string {
		return fmt.Sprintf("[[service]]\nname = %q\nports = [{ port = 80 }]\n", name)
	}
	serves := func(want string) {
		t.Helper()
		wait.Until(t, "the agent serves "+want, func() bool { return r.must("ironvip", "service", "list", "--output", "name") == want+"\n" })
	}

	files := map[string]string{"ironvip.toml": config + pool, "services.d/web.toml": service("web")}
	change("installation", map[string]any{"ironvip_package_file": filepath.Join(oldPackages(t), filepath.Base(oldDeb(t))), "ironvip_files": files},
		[]string{"restart systemd-modules-load.service", "start ironvip-proxy.socket", "start ironvip.service", "start ironvip.service"})
	serves("web")

	// One of two files has a mistake.
	files["services.d/web.toml"], files["services.d/shop.toml"] = service("shop"), "[[service]]\nname = 1\n"
	vars := map[string]any{"ironvip_repository": "file:///srv", "ironvip_version": "", "ironvip_files": files, "ironvip_services_exclusive": true}
	must.Succeed(t, os.CopyFS(r.path("/srv"), os.DirFS(release(t))))
	r.must("find", "/etc/apt", "-name", "*.list", "-delete") // of Debian: the namespace has no network
	const onlyFiles = "--start-at-task=Change the configuration"
	out, err := run(vars, onlyFiles)
	expect.True(t, err != nil && strings.Contains(out, "services.d/shop.toml:2: "), "a mistake: %v\n%s", err, out)
	expect.Empty(t, changes(r.calls()), "a mistake")
	expect.Equal(t, r.must("find", "/etc", "-path", "/etc/ironvip*", "-type", "f"), "/etc/ironvip/ironvip.toml\n/etc/ironvip/services.d/web.toml\n")
	serves("web")

	// An upgrade to an agent that can't start: the former one goes on, and the host stays drained.
	announcer, _ := r.start("/usr/libexec/ironvip/ironvip-announcer", "--socket", "/tmp/announcer.sock")
	r.write("/run/units/ironvip-announcer.service", strconv.Itoa(announcer)+"\n")
	r.write("/run/check-fails", "")
	const drain = "node drain --wait --timeout 5m"
	out, err = run(map[string]any{"ironvip_package_file": deb(t, hostArch(t))})
	expect.True(t, err != nil && strings.Contains(out, "[ironvip : Compare the version of the running agent]"), "an agent that can't start: %v\n%s", err, out)
	expect.SameList(t, changes(r.calls()), []string{drain, "check"}, "an agent that can't start")
	r.must("rm", "/run/check-fails")
	r.must("dpkg", "-i", oldDeb(t))

	// Without the mistakes, the host drains for the upgrade, and a reload is enough for the files.
	delete(files, "services.d/web.toml")
	files["services.d/shop.toml"], vars["ironvip_version"] = service("shop"), "latest"
	change("upgrade", vars, []string{drain, "check", restart, "restart ironvip-announcer.service", "node undrain", "reload --output json"})
	expect.Contains(t, r.must("ironvip", "version"), version, "after the upgrade")
	serves("shop")

	files["ironvip.toml"] += "[log]\nformat = \"json\"\n"
	change("a key that needs a restart", vars, []string{"reload --output json", "restart ironvip.service"}, onlyFiles)
	expect.Contains(t, change("no change", vars, nil), "changed=0 ", "no change")

	// The agent would not start with another store.
	files["ironvip.toml"] += "[ipam]\nstore = \"consul\"\n[consul]\naddress = \"127.0.0.2:8500\"\n"
	out, err = run(vars, onlyFiles)
	expect.True(t, err != nil && strings.Contains(out, "ironvip snapshot restore"), "another store: %v\n%s", err, out)
	expect.SameList(t, changes(r.calls()), []string{"reload --output json"}, "another store")
}

const pool = "[[pool]]\nname = \"public\"\ncidrs = [\"192.0.2.0/24\"]\n"
