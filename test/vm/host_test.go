//go:build linux && system

// These tests boot VMs, so they need what setup.sh prepares: go test -tags system ./test/vm
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
			{"build", "-cover", "-o", "victim.cover", "./testdata/victim"},
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
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
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

// awaitOutput waits until the guest has printed text, for as long as TestRunnersTimeout gives a VM to boot.
func awaitOutput(t *testing.T, b *syncBuffer, text string) {
	t.Helper()
	wait.Within(t, 3*time.Minute, fmt.Sprintf("output %q", text), func() error {
		if got := b.String(); !strings.Contains(got, text) {
			return fmt.Errorf("the output is %q", got)
		}
		return nil
	})
}

type syncBuffer struct{ tail }

func TestExitStatus(t *testing.T) {
	victim := filepath.Join(bin, "victim")
	large := filepath.Join(t.TempDir(), "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 300<<20)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		want int
		out  string // what stdout must contain
		err  string // what stderr must contain
	}{
		{"zero", []string{victim, "exit", "0"}, 0, "to stdout\nto stderr\n", ""},
		{"seven, after --", []string{"--", victim, "exit", "7"}, 7, "to stdout\nto stderr\n", ""},
		{"two processors", []string{"-cpus", "2", victim, "exit", "3"}, 3, "to stdout", ""},
		{"signal", []string{victim, "signal"}, 128 + 9, "", "ended by a signal: killed"},
		{"passing test", []string{victim + ".test", "-test.run=TestPass"}, 0, "PASS\n", ""},
		{"failing test", []string{victim + ".test", "-test.run=TestFail"}, 1, "as asked", ""},
		{"the test's own timeout", []string{victim + ".test", "-test.run=TestHang", "-test.timeout=1s"}, 2, "panic: test timed out after 1s", ""},
		{"kernel panic", []string{victim, "crash"}, exitRunner, "crashing\n", "Kernel panic - not syncing: sysrq triggered crash"},
		{"too little time to boot", []string{"-timeout", "50ms", victim, "hang"}, exitTimeout, "", "the program had not started"},
		{"not a program", []string{filepath.Join(bin, "current", "modules", "modules.dep"), "x"}, 126, "modules.dep: permission denied", ""},
		{"no such program", []string{"/nowhere/prog"}, exitRunner, "", "/nowhere/prog: no such file"},
		{"unknown module", []string{"-modules", "ip_sv", victim, "exit", "0"}, exitRunner, "", `no module "ip_sv"`},
		{"no kernel", []string{"-cache", "/nowhere", victim, "exit", "0"}, exitRunner, "", "run test/vm/setup.sh"},
		{"little memory", []string{"-mem", "192M", victim, "exit", "0"}, 0, "to stdout", ""},
		{"too little memory", []string{"-mem", "256M", "-files", large + ":/large", victim, "exit", "0"}, exitRunner, "", "-mem 256M is too little"},
		{"large image", []string{"-files", large + ":/large", victim, "exit", "0"}, 0, "to stdout", ""},
		{"bad flag", []string{"-memory", "1G", victim}, exitRunner, "", "-memory"},
		{"more modules", []string{"-modules", "ipip,tun,bridge,sch_netem,8021q,vxlan,macvlan,sctp", victim, "modules"}, 0, "ipip ", ""},
		{"more programs", []string{"-programs", "tc", victim, "run", "tc", "-V"}, 0, "tc utility", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newVmrun(t, tc.args...)
			if got := v.code(t); got != tc.want || !strings.Contains(v.out.String(), tc.out) || !strings.Contains(v.err.String(), tc.err) {
				t.Errorf("got %d, want %d\nstdout, want %q: %q\nstderr, want %q: %s", got, tc.want, tc.out, v.out.String(), tc.err, v.err.String())
			}
		})
	}
}

// A program that hangs is ended at the runner's timeout, with a message that it ran. On a busy
// machine the VM may need more than the first timeout to boot.
func TestRunnersTimeout(t *testing.T) {
	for _, timeout := range []string{"20s", "1m0s", "3m0s"} {
		v := newVmrun(t, "-timeout", timeout, filepath.Join(bin, "victim"), "hang")
		code := v.code(t)
		if strings.Contains(v.err.String(), "the program had not started") && timeout != "3m0s" {
			continue
		}
		if want := "timeout: killed the VM after " + timeout + ": the program was running"; code != exitTimeout || v.out.String() != "hanging\n" || !strings.Contains(v.err.String(), want) {
			t.Errorf("got %d, want %d\nstdout %q\nstderr, want %q: %s", code, exitTimeout, v.out.String(), want, v.err.String())
		}
		return
	}
}

// A VM that hangs while it boots is replaced by another one. The first QEMU is a script that hangs.
func TestHungBootIsRepeated(t *testing.T) {
	real, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hung := filepath.Join(dir, "hung")
	script := fmt.Sprintf("#!/bin/sh\n[ -e %[1]s ] && exec %[2]s \"$@\"\ntouch %[1]s\nexec sleep 1000\n", hung, real)
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	v := newVmrun(t, "-boot-timeout", "10s", filepath.Join(bin, "victim"), "exit", "7")
	v.Env = append(v.Env, "PATH="+dir+":"+os.Getenv("PATH"))
	if code := v.code(t); code != 7 || v.out.String() != "to stdout\nto stderr\n" || !strings.Contains(v.err.String(), "the VM did not boot within 10s") {
		t.Errorf("status %d, want 7\nstdout %q\nstderr %s", code, v.out.String(), v.err.String())
	}
}

func TestOutputArrivesWhole(t *testing.T) {
	const n = 1<<20 + 7
	v := newVmrun(t, filepath.Join(bin, "victim"), "flood", fmt.Sprint(n))
	if code := v.code(t); code != 0 || v.out.Len() != n {
		t.Fatalf("status %d, %d bytes of %d: %s", code, v.out.Len(), n, v.err.String())
	}
	for i, b := range v.out.Bytes() {
		if b != byte(i%251) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
}

func TestOutputIsLive(t *testing.T) {
	v := newVmrun(t, filepath.Join(bin, "victim"), "hang")
	var out syncBuffer
	v.Stdout = &out
	if err := v.Start(); err != nil {
		t.Fatal(err)
	}
	awaitOutput(t, &out, "hanging")
	if len(marked(t, "qemu", v.mark)) != 1 { // verifies that the checks below can find QEMU
		t.Error("QEMU isn't found by its mark")
	}
	v.Process.Signal(syscall.SIGTERM)
	v.Wait()
	if code := v.ProcessState.ExitCode(); code != 128+15 {
		t.Errorf("after SIGTERM: status %d: %s", code, v.err.String())
	}
}

// Every end of the runner also ends QEMU; markVmrun checks that.
func TestNoQEMUIsLeft(t *testing.T) {
	victim := filepath.Join(bin, "victim")
	t.Run("SIGINT", func(t *testing.T) {
		v := newVmrun(t, victim, "hang")
		var out syncBuffer
		v.Stdout = &out
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		awaitOutput(t, &out, "hanging")
		v.Process.Signal(syscall.SIGINT)
		v.Wait()
	})
	t.Run("SIGKILL", func(t *testing.T) {
		v := newVmrun(t, victim, "hang")
		var out syncBuffer
		v.Stdout = &out
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		awaitOutput(t, &out, "hanging")
		v.Process.Kill()
		v.Wait()
	})
	t.Run("parent's death", func(t *testing.T) {
		v := markVmrun(t, exec.Command("sh", "-c", `"$@" & wait`, "sh", filepath.Join(bin, "vmrun"), victim, "hang"))
		var out syncBuffer
		v.Stdout = &out
		v.WaitDelay = 10 * time.Second // the runner holds the pipe until it ends
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		awaitOutput(t, &out, "hanging")
		v.Process.Kill()
		v.Wait()
		noQEMU(t, v.mark)
	})
	t.Run("while it boots", func(t *testing.T) {
		v := newVmrun(t, victim, "hang")
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "qemu runs", func() bool { return len(marked(t, "qemu", v.mark)) > 0 })
		v.Process.Signal(syscall.SIGTERM)
		v.Wait()
	})
}

// goTest runs go test with the runner on the packages.
func goTest(t *testing.T, env []string, args ...string) *vmrun {
	t.Helper()
	v := markVmrun(t, exec.Command("go", append([]string{"test", "-exec", filepath.Join(bin, "vmrun")}, args...)...))
	v.Env = append(v.Env, env...)
	return v
}

func TestGoTestExec(t *testing.T) {
	dir := t.TempDir()
	cover, cpu := filepath.Join(dir, "c.out"), filepath.Join(dir, "cpu.out")
	for range 2 {
		v := goTest(t, nil, "-run=TestPass", "-coverprofile="+cover, "-cpuprofile="+cpu, "-o="+filepath.Join(dir, "x.test"), "./testdata/victim")
		if code := v.code(t); code != 0 || !strings.Contains(v.out.String(), "coverage: ") || strings.Contains(v.out.String(), "(cached)") {
			t.Fatalf("status %d\n%s%s", code, v.out.String(), v.err.String())
		}
	}
	if b, err := os.ReadFile(cover); err != nil || !bytes.HasPrefix(b, []byte("mode: set\n")) || !bytes.Contains(b, []byte(" 1\n")) {
		t.Errorf("coverage profile: %v\n%s", err, b)
	}
	if st, err := os.Stat(cpu); err != nil || st.Size() == 0 {
		t.Errorf("CPU profile: %v, %v", st, err)
	}
	v := goTest(t, nil, "-run=TestFail", "./testdata/victim")
	if code := v.code(t); code != 1 || !strings.Contains(v.out.String(), "--- FAIL: TestFail") {
		t.Errorf("failing: status %d\n%s%s", code, v.out.String(), v.err.String())
	}
}

func TestGuest(t *testing.T) {
	v := goTest(t, []string{"IRONVIP_SELFTEST_A=x=y z", "IRONVIP_SELFTEST_B=x=y z"}, "-tags=vm", "-v", "./selftest")
	if code := v.code(t); code != 0 {
		t.Errorf("status %d\n%s%s", code, v.out.String(), v.err.String())
	}
}

// A -race binary is dynamic and larger. The runner adds its libraries and memory automatically.
func TestGuestWithRaceDetector(t *testing.T) {
	v := goTest(t, []string{"CGO_ENABLED=1"}, "-race", "-tags=vm", "./selftest")
	if code := v.code(t); code != 0 {
		t.Errorf("status %d\n%s%s", code, v.out.String(), v.err.String())
	}
}

func TestCoverageFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cov") // not there yet
	v := newVmrun(t, filepath.Join(bin, "victim.cover"), "exit", "0")
	v.Env = append(v.Env, "GOCOVERDIR="+dir)
	if code := v.code(t); code != 0 {
		t.Fatalf("status %d: %s", code, v.err.String())
	}
	out, err := exec.Command("go", "tool", "covdata", "percent", "-i="+dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "victim") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestFilesAreShipped(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "sub/two"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name+" "), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	v := newVmrun(t, filepath.Join(bin, "victim"), "cat", "/etc/ironvip/sub/two", "/srv/one", "/etc/passwd")
	v.Env = append(v.Env, "IRONVIP_VM_FILES="+dir+":/etc/ironvip,"+dir+"/one:/srv/one")
	if code := v.code(t); code != 0 || !strings.HasPrefix(v.out.String(), "sub/two one root:") {
		t.Errorf("status %d: %q %s", code, v.out.String(), v.err.String())
	}
}

func TestVerbose(t *testing.T) {
	v := newVmrun(t, "-v", filepath.Join(bin, "victim"), "exit", "0")
	if code := v.code(t); code != 0 || !strings.Contains(v.err.String(), "IPVS: ipvs loaded") || !strings.Contains(v.err.String(), "vmrun: image ") {
		t.Errorf("status %d: %s", code, v.err.String())
	}
}

// echo answers each line on a port of the host's loopback with the same line, and keeps every
// connection open until the end of the test.
func echo(t *testing.T) (port string, ended func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	var gone atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
				gone.Add(1)
			}()
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), func() int { return int(gone.Load()) }
}

// The guest reaches the given ports, over many connections at once, and no others. The connections
// end with the VM.
func TestReach(t *testing.T) {
	port, ended := echo(t)
	other, _ := echo(t)
	victim := filepath.Join(bin, "victim")
	// A path that needs quoting for QEMU and its shell.
	dir := filepath.Join(t.TempDir(), "it's, here")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	runner := filepath.Join(dir, "vmrun")
	if err := os.Link(filepath.Join(bin, "vmrun"), runner); err != nil {
		t.Fatal(err)
	}
	v := markVmrun(t, exec.Command(runner, "-cache", filepath.Join(bin, "current"), "-reach", port, victim, "ask", reachAddr+":"+port, "4"))
	var out syncBuffer
	v.Stdout = &out
	if err := v.Start(); err != nil {
		t.Fatal(err)
	}
	awaitOutput(t, &out, "question 0\n<nil>\nquestion 1\n<nil>\nquestion 2\n<nil>\n")
	v.Process.Kill()
	v.Wait()
	wait.Until(t, "the 4 connections end with the VM", func() bool { return ended() == 4 }, func() any { return ended() })

	for reach, want := range map[string]string{
		port: fmt.Sprintf("dial tcp %[1]s:%[2]s: connect: connection refused\ndial tcp 10.0.2.2:%[3]s: connect: connection refused\n", reachAddr, other, port),
		"":   fmt.Sprintf("dial tcp %[1]s:%[2]s: connect: network is unreachable\ndial tcp 10.0.2.2:%[3]s: connect: network is unreachable\n", reachAddr, other, port),
	} {
		v := newVmrun(t, "-reach", reach, victim, "connect", reachAddr+":"+other, "10.0.2.2:"+port)
		if code := v.code(t); code != 0 || v.out.String() != want {
			t.Errorf("-reach %q: status %d, %q, want %q: %s", reach, code, v.out.String(), want, v.err.String())
		}
	}
}
