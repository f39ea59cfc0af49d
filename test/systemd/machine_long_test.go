//go:build vm && long

package systemd

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if name, err := os.ReadFile("/proc/1/comm"); err != nil || string(name) != "systemd\n" {
		fmt.Fprintln(os.Stderr, "pid 1 is not systemd: see vm_systemd in test/run")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// command runs a program, and returns everything that it prints.
func command(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	return string(out), err
}

// commandOut is command without what the program prints on stderr.
func commandOut(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).Output()
	return string(out), err
}

// run is command for a program that must succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
