package probe

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/parallel"
)

// maxOutput bounds the output of a command that is kept, in bytes. The rest is read and discarded,
// because a command that can't write would hang.
const maxOutput = 4 << 10

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
	read, write, err := os.Pipe()
	if err != nil {
		return judgeOwn("run command", err)
	}
	defer read.Close()
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	write.Close()
	if err != nil {
		return judgeOwn("run command", err)
	}

	var output bytes.Buffer
	reading, _ := parallel.NewGroup(ctx)
	reading.Go(func() error {
		io.CopyN(&output, read, maxOutput)
		io.Copy(io.Discard, read)
		return nil
	})
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
	err = cmd.Wait()
	read.SetReadDeadline(time.Now()) // a process that left the group can hold the pipe
	_ = reading.Wait()
	readWritten(read, &output)

	switch line := firstLine(output.String()); {
	case err == nil:
		return OK, ""
	case late:
		return TimedOut, "command killed after " + c.Timeout.String()
	case line == "":
		return Exited, err.Error()
	default:
		return Exited, err.Error() + ": " + line
	}
}

// readWritten reads what is in a pipe, without waiting for more: a command that has ended has written all of its output.
func readWritten(pipe *os.File, output *bytes.Buffer) {
	pipe.SetReadDeadline(time.Time{})
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	rest := make([]byte, maxOutput)
	_ = raw.Read(func(fd uintptr) bool {
		for output.Len() < maxOutput {
			n, err := unix.Read(int(fd), rest[:maxOutput-output.Len()])
			if err == unix.EINTR {
				continue
			} else if n <= 0 {
				break
			}
			output.Write(rest[:n])
		}
		return true
	})
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
