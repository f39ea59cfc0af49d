package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// systemd reports the agent's state to the service manager. Without a service manager
// (NOTIFY_SOCKET unset) every method does nothing.
type systemd struct{ log *slog.Logger }

func (s systemd) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("notify systemd", "state", state, "err", err)
	}
}

// ready reports that the first full reconcile is done.
func (s systemd) ready(status string) { s.send(daemon.SdNotifyReady + "\nSTATUS=" + status) }

func (s systemd) status(status string) { s.send("STATUS=" + status) }

func (s systemd) stopping() { s.send(daemon.SdNotifyStopping) }

// present reports whether there is a service manager.
func (s systemd) present() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// mainPID reports that another process is the service from now on.
func (s systemd) mainPID(pid int) { s.send(fmt.Sprintf("MAINPID=%d", pid)) }

// storedName is the name of every stored descriptor. What it contains identifies it.
const storedName = "vip"

// keep adds descriptors to the service manager's store (FileDescriptorStoreMax=), up to 253 at
// once. It passes them to the next process of the service. It polls them, and drops a socket that
// was shut down.
func (s systemd) keep(fds []int) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	// Not WriteMsgUnix, which refuses connected datagram sockets.
	if err := raw.Write(func(fd uintptr) bool {
		failed = unix.Sendmsg(int(fd), []byte("FDSTORE=1\nFDNAME="+storedName), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return !errors.Is(failed, unix.EAGAIN)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("sendmsg", failed)
}

// reloading must be followed by ready. Newer versions require MONOTONIC_USEC for
// Type=notify-reload; older ones ignore it.
func (s systemd) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.send(daemon.SdNotifyReloading)
		return
	}
	s.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

// watch notifies the watchdog for as long as the agent's main work makes progress. If it hangs, the
// service manager restarts the agent, while the kernel continues to forward. lastProgress returns the
// time of the last progress.
func (s systemd) watch(ctx context.Context, lastProgress func() time.Time) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return
	}
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if time.Since(lastProgress()) < limit {
				s.send(daemon.SdNotifyWatchdog)
			}
		}
	}
}
