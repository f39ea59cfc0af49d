package cli

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent"
)

func (a *app) agentCommand() *cobra.Command {
	o := agent.Options{Version: a.Version, Stdout: a.Stdout}
	check := false
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run the daemon",
		Long: `Runs the daemon in the foreground. It reads services from the configured sources, assigns
their VIPs and programs this host's dataplane. SIGHUP reloads the configuration. SIGTERM
ends the daemon; a kernel dataplane continues to forward, and so does the process that
--proxy-socket or dataplane.proxy_socket names (ironvip proxy). With --check, it starts
nothing: it fails if a daemon could not start here, with the reason.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return a.CheckAgent(o)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return a.RunAgent(ctx, o)
		},
	}
	storeFlags(cmd, &o.Config, &o.StateDir, theConfig)
	cmd.Flags().StringVar(&o.ProxySocket, "proxy-socket", "", "dataplane.proxy_socket, if the configuration has none")
	cmd.Flags().BoolVar(&o.Demo, "demo", false, "run with demo backends and two services in 127.0.0.0/8; needs no root, leaves nothing behind")
	cmd.Flags().BoolVar(&check, "check", false, "only read the configuration, the state and what the kernel can do, as a start does, and change nothing")
	cmd.MarkFlagsMutuallyExclusive("demo", "config")
	cmd.MarkFlagsMutuallyExclusive("demo", "check")
	return cmd
}
