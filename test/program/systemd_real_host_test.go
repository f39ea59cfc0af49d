//go:build system

package program

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// keysOfUnits are the settings of the units that matter for starts and ends. The others restrict the processes, and a manager
// without the whole system can't apply them.
var keysOfUnits = []string{"StartLimitIntervalSec", "Wants", "Requires", "After", "Type", "NotifyAccess", "ExecStart", "ExecReload", "KillMode", "TimeoutStopSec", "Restart", "RestartSec", "WatchdogSec",
	"FileDescriptorStoreMax", "LimitNOFILE", "ListenStream", "SocketMode", "DirectoryMode", "RemoveOnStop", "TriggerLimitIntervalSec"}

// The units of the agent and the proxy.
const (
	agentUnit   = "ironvip.service"
	proxyUnit   = "ironvip-proxy.service"
	proxySocket = "ironvip-proxy.socket"
)

// realSystemd is a service manager of the real systemd, for the units of one test. It is a user's manager in its own
// process namespace and control groups, and knows nothing of this machine's systemd.
type realSystemd struct {
	h   *host
	env []string
	pid int // of the parent of the first process of its namespace
}

// newRealSystemd starts systemd with the units of the agent of h and its proxy.
func newRealSystemd(t *testing.T, h *host) *realSystemd {
	t.Helper()
	need.Root(t)
	dir, err := os.MkdirTemp("", "sd") // short, because the name of a unix socket is
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	paths := strings.NewReplacer("/usr/local/bin/ironvip", bin(t), "/usr/local/libexec/ironvip/ironvip-proxy", filepath.Join(filepath.Dir(bin(t)), "ironvip-proxy"),
		"/etc/ironvip", h.dir, "/run/ironvip-proxy", filepath.Join(dir, "proxy"))
	for _, name := range []string{agentUnit, proxyUnit, proxySocket} {
		unit := must.Get(os.ReadFile(filepath.Join("../../configs/systemd", name)))(t)
		text := ""
		for line := range strings.Lines(string(unit)) {
			key, _, _ := strings.Cut(line, "=")
			if line[0] == '[' || slices.Contains(keysOfUnits, key) {
				text += paths.Replace(line)
			}
			if line == "[Service]\n" {
				text += fmt.Sprintf("StandardError=append:%s/log\n", dir)
			}
		}
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
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
	group := fmt.Sprintf("ironvip-test-%d-%s", os.Getpid(), t.Name())
	for _, top := range groupHierarchies {
		if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err == nil {
			need.ControlGroup(t, top, group)
		}
	}
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", script, group)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	start := func() { err = cmd.Start() }
	if h.inside != nil {
		h.inside(start)
	} else {
		start()
	}
	must.Succeed(t, err)
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		removeGroups(t, group)
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("systemd:\n%s\nthe log of its services:\n%s", &out, log)
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

// command is a command in the namespaces of systemd, which refuses clients that have no process number there.
func (s *realSystemd) command(args ...string) (*exec.Cmd, error) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.pid))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(s.h.t.Context(), "nsenter", append([]string{"--target", strings.TrimSpace(string(children)), "--mount", "--pid", "--"}, args...)...)
	cmd.Env = s.env
	return cmd, nil
}

func (s *realSystemd) try(args ...string) (string, error) {
	cmd, err := s.command(append([]string{need.Program(s.h.t, "systemctl"), "--user"}, args...)...)
	if err != nil {
		return "", err
	}
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

// property returns a property of a unit.
func (s *realSystemd) property(unit, name string) string {
	s.h.t.Helper()
	return s.do("show", unit, "--value", "--property="+name)
}

// becomes waits for the value of a property of a unit.
func (s *realSystemd) becomes(unit, name, want string) {
	s.h.t.Helper()
	s.h.eventually(fmt.Sprintf("%s=%s of %s", name, want, unit), func() error {
		if got := s.property(unit, name); got != want {
			return errors.New(got)
		}
		return nil
	})
}

// replaced waits until the unit has another main process than the one before, and returns that.
func (s *realSystemd) replaced(unit, before string) (pid string) {
	s.h.t.Helper()
	s.h.eventually("another process is "+unit, func() error {
		if pid = s.property(unit, "MainPID"); pid == before || pid == "0" || s.property(unit, "SubState") != "running" {
			return errors.New(pid)
		}
		return nil
	})
	return pid
}

// runs reports whether a process of the units runs.
func (s *realSystemd) runs(pid string) bool {
	s.h.t.Helper()
	cmd, err := s.command("test", "-d", "/proc/"+pid)
	if err != nil {
		s.h.t.Fatal(err)
	}
	return cmd.Run() == nil
}

// With the real systemd and the units of a package: neither a restart nor a crash of the agent refuses a client or ends a
// connection, and nor does a reload of the proxy, which goes on with its open connections in the former process. A stop of the
// proxy ends both.
//
// Slow: five processes start, and systemd restarts the agent after a second.
func TestRestartWithSystemd(t *testing.T) {
	parallel(t)
	h := newHost(t)
	newServices(t, h)
	s := newRealSystemd(t, h)
	s.do("start", "ironvip") // returns when the agent is ready
	agent, proxy := s.property(agentUnit, "MainPID"), s.property(proxyUnit, "MainPID")
	s.becomes(agentUnit, "NFileDescriptorStore", "1") // the socket of the API
	web, dns := h.vip("web")+":8080", h.vip("dns")+":53"
	open := dial(t, web, "a")
	follows := func(when, name string) {
		t.Helper()
		h.write("services.d/"+name+".toml", service(name, "", newBackend(t, name)))
		h.serves(h.vip(name)+":8080", name)
		open.lives(when)
	}
	for i, step := range []struct {
		what string
		args []string
	}{{"systemctl restart of the agent", []string{"restart", agentUnit}}, {"kill -9 of the agent", []string{"kill", "--kill-whom=main", "--signal=KILL", agentUnit}}} {
		c := newClients(t, web, dns)
		c.more(h, 20)
		s.do(step.args...)
		agent = s.replaced(agentUnit, agent)
		c.more(h, 20)
		c.check(step.what, false)
		follows(step.what, fmt.Sprintf("new%d", i))
		if now := s.property(proxyUnit, "MainPID"); now != proxy {
			t.Errorf("%s: the proxy is process %s, and was %s", step.what, now, proxy)
		}
		s.becomes(agentUnit, "NFileDescriptorStore", "1")
	}

	c := newClients(t, web, dns)
	c.more(h, 20)
	s.do("reload", proxyUnit)
	former := proxy
	proxy = s.replaced(proxyUnit, former)
	c.more(h, 20)
	c.check("systemctl reload of the proxy", false)
	follows("systemctl reload of the proxy", "newer")
	expect.True(t, s.runs(former), "the former process %s does not run, although it has a connection", former)
	if now := s.property(agentUnit, "MainPID"); now != agent {
		t.Errorf("the agent is process %s, and was %s", now, agent)
	}
	open.conn.Close()
	h.eventually("the former process ends with its last connection", func() error {
		if s.runs(former) {
			return errors.New("it runs")
		}
		return nil
	})
	if now := s.property(proxyUnit, "MainPID"); now != proxy {
		t.Errorf("after the end of the former process, the proxy is process %s, and was %s", now, proxy)
	}

	// A crash of the proxy ends its connections. The next process gets the frontends from the agent.
	s.do("kill", "--kill-whom=main", "--signal=KILL", proxyUnit)
	s.replaced(proxyUnit, proxy)
	h.serves(web, "a")

	s.do("stop", agentUnit)
	if _, err := who(web); err != nil {
		t.Errorf("a client while the agent is stopped: %v", err)
	}
	s.do("stop", proxySocket, proxyUnit)
	if _, err := who(web); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a client of the stopped proxy: %v, want a refusal", err)
	}
}

// A host with another dataplane never starts the proxy.
func TestOtherModeStartsNoProxy(t *testing.T) {
	h, _, _, _ := newNFTLab(t)
	h.edit("ironvip.toml", `mode = "proxy"`, `mode = "nft"`)
	s := newRealSystemd(t, h)
	s.do("start", "ironvip")
	s.do("restart", "ironvip")
	mentions(t, "dataplane show", h.ok("dataplane", "show"), "nft")
	at := s.property(proxyUnit, "InactiveExitTimestampMonotonic")
	expect.Equal(t, at, "0", "the proxy was started at %s us", at)
	expect.Equal(t, s.property(proxySocket, "SubState"), "listening", "the proxy's socket")
}
