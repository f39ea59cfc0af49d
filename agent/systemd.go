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

	"github.com/ironvip/ironvip/internal/sockets"
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

// storedName is the name of every stored socket. Its address identifies it. BPF objects, which can't be shut down, have a name
// of their own by which they are removed.
const (
	storedName = "vip"
	storedBPF  = "connect"
)

// forgetBPF removes the BPF objects from the service manager's store.
func (s systemd) forgetBPF() { s.send("FDSTOREREMOVE=1\nFDNAME=" + storedBPF) }

// keep adds a socket to the service manager's store (FileDescriptorStoreMax=). It passes it to the next process of the
// service. It polls it, and drops it once it was shut down.
func (s systemd) keep(l sockets.Socket) error {
	of, err := l.SyscallConn()
	if err != nil {
		return err
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	name := storedName
	if _, is := l.(*os.File); is {
		name = storedBPF
	}
	var failed error
	err = of.Control(func(stored uintptr) {
		// Not WriteMsgUnix, which refuses connected datagram sockets.
		if err := raw.Write(func(fd uintptr) bool {
			failed = unix.Sendmsg(int(fd), []byte("FDSTORE=1\nFDNAME="+name), unix.UnixRights(int(stored)), nil, unix.MSG_NOSIGNAL)
			return !errors.Is(failed, unix.EAGAIN)
		}); err != nil {
			failed = err
		}
	})
	if errors.Is(err, net.ErrClosed) { // meanwhile
		return nil
	}
	return errors.Join(err, os.NewSyscallError("sendmsg", failed))
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
