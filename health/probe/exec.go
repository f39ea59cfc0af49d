package probe

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxOutput bounds the output of a command that is kept, in bytes. The rest is read and discarded,
// because a command that can't write would hang.
const maxOutput = 4 << 10

// outputTime is how long the output of a command is read after its end. A process that has left the
// command's group can hold it open.
const outputTime = 100 * time.Millisecond

// runCommand runs a command without a shell. Exit status 0 passes; otherwise the first line of the
// output is the reason. The command gets the target in IRONVIP_ADDRESS and IRONVIP_PORT, and nothing
// else of this process's environment, which can have secrets. It runs in a process group of its own.
// The whole group is killed when the timeout has passed or the command has ended.
func runCommand(ctx context.Context, j *job) (Outcome, string) {
	t, c := j.t.Target, &j.check
	words := strings.Split(c.Command, "\x00")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"IRONVIP_ADDRESS=" + t.Addr.Addr().String(),
		"IRONVIP_PORT=" + strconv.Itoa(int(t.Addr.Port())),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var output beginning
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = outputTime
	if err := cmd.Start(); err != nil {
		return judgeOwn("run command", err)
	}
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		close(killed)
	})
	waitForExit(cmd.Process.Pid)
	late := !stop()
	if late {
		<-killed
	}
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // what the command started and left
	err := cmd.Wait()

	switch line := firstLine(output.String()); {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return OK, ""
	case late:
		return TimedOut, "command killed after " + c.Timeout.String()
	case line == "":
		return Exited, err.Error()
	default:
		return Exited, err.Error() + ": " + line
	}
}

// beginning keeps the first maxOutput bytes that are written.
type beginning struct{ bytes.Buffer }

func (b *beginning) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), maxOutput-b.Len())])
	return len(p), nil
}

// waitForExit blocks until a child process has ended, and leaves it as a zombie: while it is one,
// its number and that of its group can't be those of other processes.
func waitForExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		continue
	}
}

// firstLine returns the first line of a text that is not empty.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
