// Package command runs programs of operators, such as health checks and hooks: without a shell, with an environment of
// their own, for a bounded time and with bounded output.
package command

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxOutput bounds the output of a program that is kept, in bytes. The rest is read and discarded, because a program
// that can't write would hang.
const MaxOutput = 4 << 10

// outputTime is how long the pipes of a program are served after its end. A process that has left the program's group can
// hold them open.
const outputTime = 100 * time.Millisecond

// StartError is the error of a program that could not be started.
type StartError struct{ Err error }

func (e *StartError) Error() string { return "run command: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Run runs a program, words[0], and returns the beginning of its output. The program gets a PATH and env, and nothing else
// of this process's environment, which can have secrets. Its directory is "/". It runs in a process group of its own. The
// whole group is killed when the context ends or the program has ended. The error is nil after exit status 0, a *StartError,
// the error of a context that ended before the program, or an *exec.ExitError.
func Run(ctx context.Context, words, env []string, stdin []byte) (output string, err error) {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out beginning
	cmd.Stdout, cmd.Stderr = &out, &out
	if stdin != nil { // otherwise /dev/null
		cmd.Stdin = bytes.NewReader(stdin)
	}
	cmd.WaitDelay = outputTime
	if err := cmd.Start(); err != nil {
		return "", &StartError{err}
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
	switch err = cmd.Wait(); {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return out.String(), nil
	case late:
		return out.String(), ctx.Err()
	}
	return out.String(), err
}

// beginning keeps the first MaxOutput bytes that are written.
type beginning struct{ bytes.Buffer }

func (b *beginning) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), MaxOutput-b.Len())])
	return len(p), nil
}

// waitForExit blocks until a child process has ended, and leaves it as a zombie: while it is one,
// its number and that of its group can't be those of other processes.
func waitForExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		continue
	}
}
