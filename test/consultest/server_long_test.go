//go:build system && long

package consultest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/ironvip/ironvip/test/must"
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
	out := must.Get(cmd.StdoutPipe())(t)
	must.Succeed(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var pid int
	var dir string
	_, err := fmt.Fscanf(out, "pid=%d dir=%s\n", &pid, &dir)
	must.Succeed(t, err, "the child said nothing")
	defer os.RemoveAll(dir)
	cmd.Process.Kill()
	wait.Until(t, "the server ends with its test", func() bool { return process.Gone(pid) })
}
