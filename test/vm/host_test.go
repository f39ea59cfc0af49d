//go:build linux && system

// These tests boot VMs, so they need what setup.sh prepares: go test -tags system ./test/vm
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// bin holds a runner and victims built from the present sources.
var bin string

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		root, err := filepath.Abs("../..")
		if err != nil {
			return 0, err
		}
		cache := filepath.Join(root, ".cache/vm/current")
		if _, err := os.Stat(cache); err != nil {
			return 0, fmt.Errorf("no kernel to boot: run test/vm/setup.sh first: %w", err)
		}
		if bin, err = os.MkdirTemp("", "vmrun-test"); err != nil {
			return 0, err
		}
		defer os.RemoveAll(bin)
		if err := os.Symlink(cache, filepath.Join(bin, "current")); err != nil {
			return 0, err
		}
		for _, args := range [][]string{
			{"build", "-o", "vmrun", "./"},
			{"build", "-o", "victim", "./testdata/victim"},
			{"test", "-c", "-o", "victim.test", "./testdata/victim"},
		} {
			args[len(args)-2] = filepath.Join(bin, args[len(args)-2])
			cmd := exec.Command("go", args...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return 0, fmt.Errorf("go %v: %w\n%s", args, err, out)
			}
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

// vmrun is a runner to start. Its QEMU can be found by the mark in its environment.
type vmrun struct {
	*exec.Cmd
	out, err bytes.Buffer
	mark     string
}

func newVmrun(t *testing.T, args ...string) *vmrun {
	t.Helper()
	return markVmrun(t, exec.Command(filepath.Join(bin, "vmrun"), args...))
}

func markVmrun(t *testing.T, cmd *exec.Cmd) *vmrun {
	v := &vmrun{Cmd: cmd, mark: fmt.Sprintf("VMRUN_TEST_MARK=%d-%s", os.Getpid(), t.Name())}
	v.Env = append(os.Environ(), v.mark)
	v.Stdout, v.Stderr = &v.out, &v.err
	t.Cleanup(func() { noQEMU(t, v.mark) })
	return v
}

// code runs it to its end and returns its exit status.
func (v *vmrun) code(t *testing.T) int {
	t.Helper()
	err := v.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return v.ProcessState.ExitCode()
}

// marked returns the processes with this program and mark.
func marked(t *testing.T, program, mark string) (pids []string) {
	t.Helper()
	dirs := must.Get(filepath.Glob("/proc/[0-9]*"))(t)
	for _, d := range dirs {
		exe, _ := os.Readlink(d + "/exe") // an error means that it ended, or belongs to another user
		env, _ := os.ReadFile(d + "/environ")
		if strings.Contains(exe, program) && bytes.Contains(env, []byte(mark+"\x00")) {
			pids = append(pids, filepath.Base(d))
		}
	}
	return pids
}

func noQEMU(t *testing.T, mark string) {
	t.Helper()
	wait.For(t, "no processes left behind", func() error {
		if left := append(marked(t, "qemu", mark), marked(t, "vmrun", mark)...); len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
}

// status is the expected end of a runner.
type status struct {
	name string
	args []string
	want int
	out  string // what stdout must contain
	err  string // what stderr must contain
}

func (s *status) check(t *testing.T) {
	t.Run(s.name, func(t *testing.T) {
		v := newVmrun(t, s.args...)
		if got := v.code(t); got != s.want || !strings.Contains(v.out.String(), s.out) || !strings.Contains(v.err.String(), s.err) {
			t.Errorf("got %d, want %d\nstdout, want %q: %q\nstderr, want %q: %s", got, s.want, s.out, v.out.String(), s.err, v.err.String())
		}
	})
}

// large returns a file of 300 MiB.
func large(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "large")
	must.Succeed(t, errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 300<<20)))
	return name
}

// Each kind of end has its exit status.
//
// Slow: five of these boot a VM.
func TestExitStatus(t *testing.T) {
	victim := filepath.Join(bin, "victim")
	for _, tc := range []status{
		{"seven, after --", []string{"-cpus", "2", "--", victim, "exit", "7"}, 7, "to stdout\nto stderr\n", ""},
		{"signal", []string{victim, "signal"}, 128 + 9, "", "ended by a signal: killed"},
		{"failing test", []string{victim + ".test", "-test.run=TestFail"}, 1, "as asked", ""},
		{"the test's own timeout", []string{victim + ".test", "-test.run=TestHang", "-test.timeout=1s"}, 2, "panic: test timed out after 1s", ""},
		{"kernel panic", []string{victim, "crash"}, exitRunner, "crashing\n", "Kernel panic - not syncing: sysrq triggered crash"},
		{"too little time to boot", []string{"-timeout", "50ms", victim, "hang"}, exitTimeout, "", "the program had not started"},
		{"no such program", []string{"/nowhere/prog"}, exitRunner, "", "/nowhere/prog: no such file"},
		{"unknown module", []string{"-modules", "ip_sv", victim, "exit", "0"}, exitRunner, "", `no module "ip_sv"`},
		{"no kernel", []string{"-cache", "/nowhere", victim, "exit", "0"}, exitRunner, "", "run test/vm/setup.sh"},
		{"too little memory", []string{"-mem", "256M", "-files", large(t) + ":/large", victim, "exit", "0"}, exitRunner, "", "-mem 256M is too little"},
		{"bad flag", []string{"-memory", "1G", victim}, exitRunner, "", "-memory"},
	} {
		tc.check(t)
	}
}

// Every end of the runner also ends QEMU; markVmrun checks that.
func TestNoQEMUIsLeft(t *testing.T) {
	victim := filepath.Join(bin, "victim")
	booting := func(t *testing.T, v *vmrun) {
		t.Helper()
		must.Succeed(t, v.Start())
		wait.Until(t, "qemu runs", func() bool { return len(marked(t, "qemu", v.mark)) > 0 })
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			v := newVmrun(t, victim, "hang")
			booting(t, v)
			v.Process.Signal(sig)
			v.Wait()
		})
	}
	t.Run("parent's death", func(t *testing.T) {
		v := markVmrun(t, exec.Command("sh", "-c", `"$@" & wait`, "sh", filepath.Join(bin, "vmrun"), victim, "hang"))
		v.WaitDelay = 10 * time.Second // the runner holds the pipe until it ends
		booting(t, v)
		v.Process.Kill()
		v.Wait()
		noQEMU(t, v.mark)
	})
}
