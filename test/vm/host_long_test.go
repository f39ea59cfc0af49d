//go:build linux && system && long

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

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
	real := must.Get(exec.LookPath("qemu-system-x86_64"))(t)
	dir := t.TempDir()
	hung := filepath.Join(dir, "hung")
	script := fmt.Sprintf("#!/bin/sh\n[ -e %[1]s ] && exec %[2]s \"$@\"\ntouch %[1]s\nexec sleep 1000\n", hung, real)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755))
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
		must.Equal(t, b, byte(i%251), "byte %d", i)
	}
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
	code := v.code(t)
	expect.Equal(t, code, 0, "status %d\n%s%s", code, v.out.String(), v.err.String())
}
