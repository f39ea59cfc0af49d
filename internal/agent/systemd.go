package agent

import (
	"context"
	"fmt"
	"log/slog"
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

// watch notifies the watchdog for as long as the reconcile loop makes progress. If the loop hangs,
// the service manager restarts the agent, while the kernel continues to forward. lastTurn returns
// the time of the loop's last iteration.
func (s systemd) watch(ctx context.Context, lastTurn func() time.Time) {
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
			if time.Since(lastTurn()) < limit {
				s.send(daemon.SdNotifyWatchdog)
			}
		}
	}
}
