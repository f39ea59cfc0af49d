package agent

import (
	"context"
	"fmt"
	"log/slog"
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
func (s systemd) forgetBPF() {
	if err := sockets.Unstore(storedBPF); err != nil {
		s.log.Warn("remove BPF objects from the store of systemd", "err", err)
	}
}

// keep adds a socket to the service manager's store (FileDescriptorStoreMax=). It passes it to the next process of the
// service. It polls it, and drops it once it was shut down.
func (s systemd) keep(l sockets.Socket) error {
	name := storedName
	if _, is := l.(*os.File); is {
		name = storedBPF
	}
	return sockets.Store(name, l)
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
