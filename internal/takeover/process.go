package takeover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	endTime  = 5 * time.Second // for a process that was told to end
	killTime = 5 * time.Second // for the kernel to end one
)

// Process is another process. Its descriptor names no other process, also when the number is used
// again.
type Process struct {
	PID int
	fd  int // -1: not known
}

// OpenProcess returns the process that has a number now. The caller closes it.
func OpenProcess(pid int) Process {
	if pid <= 0 || pid == os.Getpid() {
		return Process{pid, -1}
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		fd = -1
	}
	return Process{pid, fd}
}

// Close forgets the process.
func (p Process) Close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// end returns when the process has ended. After most it kills the process.
func (p Process) end(ctx context.Context, most time.Duration) error {
	if p.fd >= 0 && p.awaitEnd(ctx, most) {
		return nil
	}
	return p.Kill(ctx)
}

// Kill ends the process, and returns when it has ended.
func (p Process) Kill(ctx context.Context) error {
	if p.fd < 0 {
		return fmt.Errorf("process %d can't be ended: it isn't known", p.PID)
	}
	if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d can't be ended: %w", p.PID, os.NewSyscallError("pidfd_send_signal", err))
	}
	if p.awaitEnd(ctx, killTime) {
		return nil
	}
	return fmt.Errorf("process %d does not end after SIGKILL", p.PID)
}

// awaitEnd reports whether the process ends within a time and before the end of ctx.
func (p Process) awaitEnd(ctx context.Context, most time.Duration) bool {
	for deadline := time.Now().Add(most); ctx.Err() == nil; {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(min(max(left, 0), 100*time.Millisecond).Milliseconds()))
		if err == nil && n > 0 {
			return true
		}
		if left <= 0 {
			return false
		}
	}
	return false
}
