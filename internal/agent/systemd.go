package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// systemd tells the service manager how the agent fares. Without one
// (NOTIFY_SOCKET unset) every method does nothing.
type systemd struct{ log *slog.Logger }

func (s systemd) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("tell systemd", "state", state, "err", err)
	}
}

// ready says that the first full reconcile is done.
func (s systemd) ready(status string) { s.send(daemon.SdNotifyReady + "\nSTATUS=" + status) }

func (s systemd) status(status string) { s.send("STATUS=" + status) }

func (s systemd) stopping() { s.send(daemon.SdNotifyStopping) }

// reloading must be followed by ready. MONOTONIC_USEC is what Type=notify-reload
// of newer versions asks for; older ones pass over it.
func (s systemd) reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		s.send(daemon.SdNotifyReloading)
		return
	}
	s.send(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

// watch feeds the watchdog for as long as the reconcile loop goes round: a loop
// that hangs lets the service manager restart the agent, while the kernel goes
// on forwarding. lastTurn says when the loop last went round.
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
