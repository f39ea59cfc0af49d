//go:build system

package resolvers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// The users of a system, with ids that this host doesn't use.
const (
	resolveID = 64901
	agentID   = 64902
)

// system is what systemd-resolved needs on a host: a mount namespace with files of its own in /run
// and /etc, a system bus, and polkit.
type system struct {
	*host
	unpacked string // Debian's package
	mount    string // the namespace
	resolved *process.Process
}

// inSystem prepares the mount namespace, and waits in it until its end. $1 is a folder with files,
// $2 the unpacked package, $3 the agent's binary, to which the path may be closed to other users.
const inSystem = `set -e
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/dbus /run/systemd/resolve /run/systemd/resolved.conf.d
mount --bind "$1/passwd" /etc/passwd
mount --bind "$1/group" /etc/group
chown systemd-resolve:systemd-resolve /run/systemd/resolve
mount --bind "$1/resolv.conf" /etc/resolv.conf
cp "$1/upstream.conf" /run/systemd/resolved.conf.d/
mount --bind "$2/usr/share/polkit-1/actions" /usr/share/polkit-1/actions
mount --bind "$1/rules.d" /etc/polkit-1/rules.d
touch "$1/ironvip"
mount --bind "$3" "$1/ironvip"
touch "$1/ready"
exec sleep infinity
`

// newSystem starts the bus, polkit with the rule or without it, a DNS server for other names, and
// systemd-resolved.
func newSystem(t testing.TB, rule bool) *system {
	t.Helper()
	s := &system{host: newHost(t), unpacked: unpacked(t)}
	accounts := fmt.Sprintf("systemd-resolve:x:%[1]d:%[1]d::/:/usr/sbin/nologin\nironvip:x:%[2]d:%[2]d::/:/usr/sbin/nologin\n", resolveID, agentID)
	write(t, s.file("passwd"), read(t, "/etc/passwd")+accounts)
	write(t, s.file("group"), read(t, "/etc/group")+fmt.Sprintf("systemd-resolve:x:%d:\nironvip:x:%d:\n", resolveID, agentID))
	write(t, s.file("resolv.conf"), "nameserver 127.0.0.53\noptions edns0\n")
	write(t, s.file("upstream.conf"), fmt.Sprintf("[Resolve]\nDNS=%s\nLLMNR=no\nMulticastDNS=no\n", s.Addr4))
	must.Succeed(t, os.Mkdir(s.file("rules.d"), 0o755))
	if rule {
		write(t, s.file("rules.d/50-ironvip.rules"), read(t, "../../configs/polkit/50-ironvip.rules"))
	}
	write(t, s.file("bus.conf"), fmt.Sprintf(`<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><include>/usr/share/dbus-1/system.conf</include><include>%s/usr/share/dbus-1/system.d/org.freedesktop.resolve1.conf</include></busconfig>
`, s.unpacked))
	for dir := filepath.Join(s.dir, "services.d"); ; dir = filepath.Dir(dir) { // the agent's state, as another user
		must.Succeed(t, os.Chown(dir, agentID, agentID))
		if dir == s.dir {
			break
		}
	}

	holder := run(t, s.Node, "the mount namespace", s.file("mount.log"), need.Program(t, "unshare"), "--mount", "--propagation", "private", "/bin/sh", "-c", inSystem, "sh", s.dir, s.unpacked, need.Binary(t))
	s.mount = fmt.Sprintf("/proc/%d/ns/mnt", holder.Pid())
	awaitFile := func(path string) {
		wait.For(t, path+" exists", func() error { _, err := os.Stat(path); return err })
	}
	awaitFile(s.file("ready"))
	s.inside("dbus", "dbus-daemon", "--config-file="+s.file("bus.conf"), "--nofork", "--nopidfile")
	awaitFile(fmt.Sprintf("/proc/%d/root/run/dbus/system_bus_socket", holder.Pid()))
	s.inside("polkit", need.Daemon(t, "polkitd"), "--no-debug")
	s.inside("upstream", need.Daemon(t, "dnsmasq"), "--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root", "--pid-file=",
		"--bind-interfaces", "--listen-address="+s.Addr4.String(), "--address=/example.com/192.0.2.53")
	s.resolved = s.inside("resolved", "/usr/bin/env", "SYSTEMD_LOG_TARGET=console", "LD_LIBRARY_PATH="+s.unpacked+"/usr/lib/x86_64-linux-gnu/systemd",
		s.unpacked+"/lib/systemd/systemd-resolved")
	return s
}

// unpacked returns the folder of Debian's package systemd-resolved.
func unpacked(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../.cache/resolved/current")
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		need.Lack(t, need.ReasonServer, "systemd-resolved: run test/resolvers/setup.sh")
	}
	return dir
}

func read(t testing.TB, path string) string {
	t.Helper()
	return string(must.Get(os.ReadFile(path))(t))
}

func (s *system) file(name string) string { return filepath.Join(s.dir, name) }

// inside starts a program in the namespaces. It ends with the test, and with this process: the kernel
// does the latter only for programs that keep their user.
func (s *system) inside(name string, args ...string) *process.Process {
	s.t.Helper()
	p := run(s.t, s.Node, name, s.file(name+".log"), need.Program(s.t, "nsenter"), append([]string{"--mount=" + s.mount, "--"}, args...)...)
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read x; kill -9 %d", p.Pid()))
	must.Get(cmd.StdinPipe())(s.t) // closed at the end of this process
	must.Succeed(s.t, cmd.Start())
	s.t.Cleanup(func() { // before the program's end, whose id may then be used again
		cmd.Process.Kill()
		cmd.Wait()
	})
	return p
}

// asAgent are arguments that run a program as the agent's user, with the rights of its unit.
func asAgent(args ...string) []string {
	const rights = "+net_admin,+net_raw,+net_bind_service"
	return append([]string{"setpriv", "--reuid=ironvip", "--regid=ironvip", "--clear-groups", "--inh-caps=" + rights, "--ambient-caps=" + rights}, args...)
}

// output runs a program in the namespaces to its end.
func (s *system) output(args ...string) string {
	s.t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--mount=" + s.mount, "--", "/usr/bin/env", "LD_LIBRARY_PATH=" + s.unpacked + "/usr/lib/x86_64-linux-gnu/systemd"}, args...)...)
	var out []byte
	var err error
	s.Do(func() { out, err = cmd.CombinedOutput() })
	if err != nil {
		s.t.Logf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *system) resolvectl(args ...string) string {
	s.t.Helper()
	return s.output(append([]string{s.unpacked + "/usr/bin/resolvectl"}, args...)...)
}
