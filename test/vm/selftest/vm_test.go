//go:build vm

package selftest

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

func TestMain(m *testing.M) {
	if os.Getenv("IRONVIP_VM") != "1" {
		fmt.Fprintln(os.Stderr, "not in the VM: run go test -tags vm -exec .cache/vm/vmrun")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestSurroundings(t *testing.T) {
	if b, err := os.ReadFile("testdata/hello.txt"); err != nil || string(b) != "shipped\n" {
		t.Errorf("testdata: %q, %v", b, err)
	}
	if wd, err := os.Getwd(); err != nil || filepath.Base(wd) != "selftest" {
		t.Errorf("working directory: %s, %v", wd, err)
	}
	// Callers set both variables to the same value.
	if a, b := os.Getenv("IRONVIP_SELFTEST_A"), os.Getenv("IRONVIP_SELFTEST_B"); a != b {
		t.Errorf("environment: %q and %q", a, b)
	}
	if os.Getpid() == 1 || os.Getuid() != 0 {
		t.Errorf("pid %d, uid %d", os.Getpid(), os.Getuid())
	}
	expect.Succeed(t, os.WriteFile("/tmp/x", nil, 0o600))
	expect.Empty(t, must.Get(io.ReadAll(os.Stdin))(t), "stdin")
	expect.AtLeast(t, time.Now().Year(), 2024, "the clock says")
	for _, host := range []string{"localhost", "127.0.0.1"} {
		l, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Error(err)
			continue
		}
		l.Close()
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max < 65536 {
		t.Errorf("open files: %+v, %v", limit, err)
	}
	if b, err := os.ReadFile("/proc/sys/kernel/randomize_va_space"); err != nil || string(b) != "0\n" {
		t.Errorf("libraries are at other addresses in each process, and QEMU translates them again: %q, %v", b, err)
	}
	for _, dir := range []string{"/proc/self", "/sys/class/net/lo", "/dev/pts", "/run/netns", "/var/run/netns"} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// A child whose parent ended belongs to pid 1, which must not keep it as a zombie.
func TestOrphansAreReaped(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], 0); err != nil { // inherited: it ends when the last descendant does
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestOrphanHelper$")
	cmd.Env = append(os.Environ(), "SELFTEST_ORPHAN=parent")
	out, err := cmd.Output()
	unix.Close(fds[1])
	must.Succeed(t, err, "%s", out)
	if n, err := unix.Read(fds[0], make([]byte, 1)); n != 0 || err != nil {
		t.Fatalf("pipe: %d, %v", n, err)
	}
	var pid int
	if _, err := fmt.Sscanf(string(out), "orphan %d", &pid); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wait.Until(t, fmt.Sprintf("process %d is gone", pid), func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		return os.IsNotExist(err)
	})
}

func TestOrphanHelper(t *testing.T) {
	switch os.Getenv("SELFTEST_ORPHAN") {
	case "parent":
		cmd := exec.Command(os.Args[0], "-test.run=^TestOrphanHelper$")
		cmd.Env = append(os.Environ(), "SELFTEST_ORPHAN=child")
		must.Succeed(t, cmd.Start())
		fmt.Printf("orphan %d\n", cmd.Process.Pid)
		os.Exit(0)
	case "child":
		time.Sleep(50 * time.Millisecond)
		os.Exit(0)
	}
}
