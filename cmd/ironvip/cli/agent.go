package cli

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent"
)

func (a *app) agentCommand() *cobra.Command {
	o := agent.Options{Version: a.Version, Stdout: a.Stdout}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run the daemon",
		Long: `Runs the daemon in the foreground. It reads services from the configured sources, assigns
their VIPs and programs this host's dataplane. SIGHUP reloads the configuration. SIGTERM
ends the daemon; a kernel dataplane continues to forward. With --take-over, it replaces the
running daemon of the same state directory, which gives it its listeners and ends with its
last connection. SIGUSR2 starts a daemon that does so.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return a.RunAgent(ctx, o)
		},
	}
	storeFlags(cmd, &o.Config, &o.StateDir, theConfig)
	cmd.Flags().BoolVar(&o.TakeOver, "take-over", false, "replace the running daemon of the same state directory, if there is one")
	cmd.Flags().BoolVar(&o.Demo, "demo", false, "run with demo backends and two services in 127.0.0.0/8; needs no root, leaves nothing behind")
	cmd.MarkFlagsMutuallyExclusive("demo", "config")
	cmd.MarkFlagsMutuallyExclusive("demo", "take-over")
	return cmd
}
