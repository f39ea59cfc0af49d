//go:build system && long

package consultest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// TestNothingOutlivesTheTest runs this binary again, which starts a server and is then killed.
func TestNothingOutlivesTheTest(t *testing.T) {
	t.Parallel()
	need.Server(t, "consul")
	if os.Getenv("CONSULTEST_VICTIM") != "" {
		s := Start(t, Options{Memory: true})
		fmt.Printf("pid=%d dir=%s\n", s.Pid(), s.dir)
		os.Stdout.Sync()
		s.Pause() // stopped processes must die, too
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesTheTest$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), "CONSULTEST_VICTIM=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var pid int
	var dir string
	if _, err := fmt.Fscanf(out, "pid=%d dir=%s\n", &pid, &dir); err != nil {
		t.Fatalf("the child said nothing: %v", err)
	}
	defer os.RemoveAll(dir)
	cmd.Process.Kill()
	wait.Until(t, "the server ends with its test", func() bool { return process.Gone(pid) })
}
