package cli

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

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/control"
)

func (a *app) announcerCommand() *cobra.Command {
	o := announcer.Options{Version: a.Version, ShuttingDown: shuttingDown}
	cmd := &cobra.Command{
		Use:   "announcer",
		Short: "run the process that announces VIPs to the network",
		Long: `Runs the announcer in the foreground. It gets all settings from the agent of this host, and
announces VIPs with ARP, NDP and BGP. It is a separate process so that announcements stay
while the agent restarts. SIGTERM lets other hosts take over, and ends it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return a.RunAnnouncer(ctx, o)
		},
	}
	cmd.Flags().StringVar(&o.Socket, "socket", control.DefaultSocket, "the socket for the agent, which must run as the same user")
	return cmd
}

// shuttingDown reports whether systemd is shutting the host down.
func shuttingDown() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // its exit code is not 0 then
	return strings.TrimSpace(string(out)) == "stopping"
}

// announcerGC is Go's GOGC for the announcer: it allocates little once it has its VIPs, and runs on
// each host beside the agent. Decision 48 has the measurements.
const announcerGC = 25

// runAnnouncer runs an announcer that logs to stderr.
func runAnnouncer(ctx context.Context, o announcer.Options) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(announcerGC)
	}
	options := &slog.HandlerOptions{}
	if os.Getenv("JOURNAL_STREAM") != "" { // systemd adds the time
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, options))
	o.Started = debug.FreeOSMemory // of messages and lists with all VIPs
	return announcer.New(o).Run(ctx)
}
