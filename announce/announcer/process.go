package announcer

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/ironvip/ironvip/internal/logwriter"
	"github.com/ironvip/ironvip/internal/sockets"
)

// gcPercent is Go's GOGC: the announcer allocates little once it has its VIPs, and runs on each host
// beside the agent. docs/decisions/18 has the measurements.
const gcPercent = 25

// Main runs an announcer that logs to stderr until SIGINT or SIGTERM, which lets other hosts take over.
// It sets every option but Socket and Version. It is what "ironvip announcer" and ironvip-announcer do.
func Main(ctx context.Context, o Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	log, flush := logwriter.OfProcess()
	defer flush()
	o.Log = log
	slog.SetDefault(o.Log) // for what has no log of its own, such as parallel.Recovered
	o.ShuttingDown = shuttingDown
	if sockets.HasStore() {
		o.store = sockets.Store
	}
	fds, err := sockets.Passed()
	if len(fds) > 0 {
		err = sockets.Unstore(storedConnection) // otherwise the end of a session would not end its connection
	}
	if err != nil {
		log.Warn("sockets of the service manager", "error", err)
	}
	o.inherited = Inherit(o.Socket, fds, log)
	return New(o).Run(ctx)
}

// shuttingDown reports whether systemd is shutting the host down.
func shuttingDown() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // its exit code is not 0 then
	return strings.TrimSpace(string(out)) == "stopping"
}
