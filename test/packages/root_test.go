//go:build system

package packages

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// root is a Debian of its own: a layer of files above that of test/debian.sh, in a mount and a network
// namespace. Its systemctl is testdata/systemctl, and testdata/ironvip is before ironvip in the search path. The packages of
// both versions are in /packages.
type root struct {
	t    *testing.T
	hold *exec.Cmd // keeps the namespaces
	dir  string    // the path of the root in them
}

// enter prepares the namespaces and waits for the end of its standard input.
const enter = `set -e
ip link set lo up
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mkdir -p "$1/root/packages"
mount -t tmpfs tmpfs "$1/root/packages"
mkdir "$1/root/packages/new" "$1/root/packages/old"
mount --bind "$3" "$1/root/packages/new"
mount --bind "$4" "$1/root/packages/old"
echo ready
exec cat`

// newRoot starts a root. With systemd, it looks as if systemd runs there.
func newRoot(t *testing.T, systemd bool) *root {
	t.Helper()
	need.Root(t)
	base := filepath.Join(repository(t), ".cache/debian/root")
	if _, err := os.Stat(base); err != nil {
		need.Lack(t, need.ReasonProgram, "a Debian root: run test/debian.sh")
	}
	newer, older := packages(t), oldPackages(t)
	dir := t.TempDir()
	r := &root{t: t, dir: filepath.Join(dir, "root")}
	r.hold = exec.Command("unshare", "--mount", "--net", "sh", "-c", enter, "sh", dir, base, newer, older)
	r.hold.Stderr = os.Stderr
	r.hold.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in := must.Get(r.hold.StdinPipe())(t)
	out := must.Get(r.hold.StdoutPipe())(t)
	must.Succeed(t, r.hold.Start())
	t.Cleanup(func() {
		in.Close()
		expect.Succeed(t, r.hold.Wait())
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("namespaces: %q %v", line, err)
	}
	r.must("mv", "/usr/bin/systemctl", "/usr/bin/systemctl.real")
	for fake, path := range map[string]string{"systemctl": "/usr/bin/systemctl", "ironvip": "/usr/sbin/ironvip"} {
		text := must.Get(os.ReadFile(filepath.Join("testdata", fake)))(t)
		r.write(path, string(text))
		r.must("chmod", "755", path)
	}
	if systemd {
		r.must("mkdir", "-p", "/run/systemd/system")
	}
	return r
}

// command is a command in the namespaces, and below the root.
func (r *root) command(args ...string) *exec.Cmd {
	return r.outside(append([]string{"chroot", r.dir, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive"}, args...)...)
}

// outside is a command of this host in the namespaces.
func (r *root) outside(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), "nsenter", append([]string{"--target", strconv.Itoa(r.hold.Process.Pid), "--mount", "--net"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// must runs a command below the root and returns its output.
func (r *root) must(args ...string) string {
	r.t.Helper()
	out, err := r.command(args...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// path is a path below the root, for this process.
func (r *root) path(path string) string {
	return filepath.Join("/proc", strconv.Itoa(r.hold.Process.Pid), "root", r.dir, path)
}

func (r *root) exists(path string) bool {
	_, err := os.Lstat(r.path(path))
	return err == nil
}

func (r *root) write(path, text string) {
	r.t.Helper()
	cmd := r.command("sh", "-ec", `mkdir -p "$(dirname "$1")"; cat >"$1"`, "sh", path)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	must.Succeed(r.t, err, "%s: %v\n%s", path, err, out)
}

// start starts a program that runs until the test or the returned function ends it.
func (r *root) start(args ...string) (pid int, stop func()) {
	r.t.Helper()
	cmd := r.command(args...)
	log := must.Get(os.Create(filepath.Join(r.t.TempDir(), "log")))(r.t)
	cmd.Stdout, cmd.Stderr = log, log
	must.Succeed(r.t, cmd.Start())
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			r.t.Logf("%s:\n%s", strings.Join(args, " "), text)
		}
	}
	r.t.Cleanup(stop)
	return cmd.Process.Pid, stop // nsenter, chroot and env execute each other
}

// calls are the calls of systemctl since the last time.
func (r *root) calls() []string {
	r.t.Helper()
	text, err := os.ReadFile(r.path("/run/calls"))
	if err != nil && !os.IsNotExist(err) {
		r.t.Fatal(err)
	}
	r.must("rm", "-f", "/run/calls")
	return strings.FieldsFunc(string(text), func(c rune) bool { return c == '\n' })
}

// kernelState makes a table that ironvip dataplane clean removes, and kernelStateStays reports whether it is there.
func (r *root) kernelState() {
	r.t.Helper()
	out, err := r.outside(need.Program(r.t, "nft"), "add", "table", "inet", "ironvip").CombinedOutput()
	must.Succeed(r.t, err, "nft: %v\n%s", err, out)
}

func (r *root) kernelStateStays() bool {
	r.t.Helper()
	out, err := r.outside(need.Program(r.t, "nft"), "list", "tables").CombinedOutput()
	must.Succeed(r.t, err, "nft: %v\n%s", err, out)
	return strings.Contains(string(out), "table inet ironvip")
}

// tree lists the files of the root, except logs and what dpkg and systemctl of the test know.
func (r *root) tree() string {
	r.t.Helper()
	return r.must("sh", "-c", `find / -xdev \( -path /proc -o -path /packages -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/rpm -o -path /run \) -prune -o ! -name '*-' ! -name .pwd.lock -print | sort; cut -d: -f1 /etc/passwd /etc/group`)
}
