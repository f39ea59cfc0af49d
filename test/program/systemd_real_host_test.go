//go:build system

package program

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/need"
)

// keysOfUnit are the settings of ironvip.service that matter for a restart. The others restrict the
// process, and a manager without the whole system can't apply them.
var keysOfUnit = []string{"Type", "NotifyAccess", "KillMode", "TimeoutStopSec", "Restart", "RestartSec", "WatchdogSec", "FileDescriptorStoreMax", "LimitNOFILE"}

// service manager of the real systemd, for the units of one test. It is a user's manager in its own
// process namespace and control groups, and knows nothing of this machine's systemd.
type realSystemd struct {
	h   *host
	env []string
	pid int // of the parent of the first process of its namespace
}

// newRealSystemd starts systemd with the agent of h as ironvip.service.
func newRealSystemd(t *testing.T, h *host) *realSystemd {
	t.Helper()
	need.Root(t)
	dir, err := os.MkdirTemp("", "sd") // short, because the name of a unix socket is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	unit, err := os.ReadFile("../../configs/systemd/ironvip.service")
	if err != nil {
		t.Fatal(err)
	}
	text := "[Unit]\nStartLimitIntervalSec=0\n[Service]\n"
	for line := range strings.Lines(string(unit)) {
		if key, _, ok := strings.Cut(line, "="); ok && slices.Contains(keysOfUnit, key) {
			text += line
		}
	}
	text += fmt.Sprintf("ExecStart=%s agent --config %s\nStandardError=append:%s/log\n", bin(t), h.dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "ironvip.service"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &realSystemd{h: h, env: append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "HOME="+dir, "SYSTEMD_UNIT_PATH="+dir+":")}
	// systemd moves its processes to control groups below its own, so it gets one of its own. It
	// refuses to run unless /run/systemd/system exists.
	const script = `
set -e
for top in $(awk '$3 == "cgroup2" || $3 == "cgroup" && $4 ~ /name=systemd/ { print $2 }' /proc/mounts); do
	mkdir "$top/$0"
	echo $$ > "$top/$0/cgroup.procs"
done
exec unshare --mount --pid --fork --kill-child --cgroup --mount-proc sh -c '
	mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system
	/lib/systemd/systemd --user --log-target=console & wait'`
	group := "ironvip-test-" + strconv.Itoa(os.Getpid())
	for _, top := range groupHierarchies {
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err == nil {
			need.ControlGroup(t, top, group)
		}
	}
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", script, group)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		removeGroups(t, group)
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("systemd:\n%s\nthe agent's log:\n%s", &out, log)
		}
	})
	h.eventually("systemd runs", func() error { _, err := s.try("start", "basic.target"); return err })
	return s
}

// groupHierarchies are where the hierarchies that systemd uses are mounted, in any of its modes.
var groupHierarchies = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}

// removeGroups removes the control groups of a test, with those below, once their processes have
// ended.
func removeGroups(t *testing.T, group string) {
	for _, top := range groupHierarchies {
		var dirs []string
		filepath.WalkDir(filepath.Join(top, group), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil {
				t.Logf("left behind: %v", err)
			}
		}
	}
}

func (s *realSystemd) try(args ...string) (string, error) {
	// systemd refuses clients that have no process number in its namespace.
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.pid))
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(s.h.t.Context(), "nsenter", append([]string{"--target", strings.TrimSpace(string(children)), "--mount", "--pid", "--",
		need.Program(s.h.t, "systemctl"), "--user"}, args...)...)
	cmd.Env = s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("systemctl %v: %w\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func (s *realSystemd) do(args ...string) string {
	s.h.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.h.t.Fatal(err)
	}
	return out
}

// property waits for the value of a property of the service.
func (s *realSystemd) property(name, want string) {
	s.h.t.Helper()
	s.h.eventually(fmt.Sprintf("%s=%s", name, want), func() error {
		if got := s.do("show", "ironvip", "--value", "--property="+name); got != want {
			return errors.New(got)
		}
		return nil
	})
}

// With the real systemd: `systemctl restart` refuses no client and cuts off none, nor does SIGUSR2,
// which keeps open connections. A crash of the new process refuses none, a removed service leaves the store, and a stopped agent has no listeners.
//
// Slow: three processes start, and systemd restarts a unit after a second.
func TestRestartWithSystemd(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	s := newRealSystemd(t, h)
	s.do("start", "ironvip") // returns when the agent is ready
	s.property("NFileDescriptorStore", "2")
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	c := newClients(t, web, dns)
	c.more(h, 20)
	s.do("restart", "ironvip")
	c.more(h, 20)
	c.check("systemctl restart", false)
	s.property("NFileDescriptorStore", "2")

	// SIGUSR2 starts a process that takes over and becomes the service.
	old := s.do("show", "ironvip", "--value", "--property=MainPID")
	open := dial(t, web, "a")
	c = newClients(t, web, dns)
	c.more(h, 20)
	s.do("kill", "--kill-whom=main", "--signal=USR2", "ironvip")
	h.eventually("another process is the service", func() error {
		if now := s.do("show", "ironvip", "--value", "--property=MainPID"); now == old || now == "0" {
			return errors.New(now)
		}
		return nil
	})
	c.more(h, 20)
	c.check("SIGUSR2", false)
	open.lives("in the replaced process")
	s.property("NFileDescriptorStore", "2")
	s.property("SubState", "running")
	h.write("services.d/new.toml", service("new", "", newBackend(t, "new")))
	newVIP := h.vip("new") + ":8080"
	h.serves(newVIP, "new")
	s.property("NFileDescriptorStore", "2") // one shelf, of the new process
	h.remove("services.d/new.toml")
	h.eventually("the port of a removed service is free", func() error {
		l, err := net.Listen("tcp", newVIP)
		if err == nil {
			l.Close()
		}
		return err
	})
	s.property("NFileDescriptorStore", "2")

	c = newClients(t, web, dns)
	c.more(h, 20)
	s.do("kill", "--kill-whom=main", "--signal=KILL", "ironvip")
	s.property("NRestarts", "1")
	s.property("SubState", "running")
	c.more(h, 20)
	c.check("kill -9", true)
	s.property("NFileDescriptorStore", "2")

	h.write("services.d/web.toml", service("web", "", newBackend(t, "b")))
	h.remove("services.d/dns.toml")
	s.property("NFileDescriptorStore", "2")
	h.serves(web, "b")
	s.do("stop", "ironvip")
	if _, err := who(web); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client of the stopped agent: %v, want a refusal", err)
	}
}
