package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/proxy/process"
)

func (a *app) proxyCommand() *cobra.Command {
	o := process.MainOptions{Version: a.Version}
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "run the process that forwards connections in userspace",
		Long: `Runs the userspace proxy in the foreground. It gets its frontends from the agent of this host
with dataplane.mode "proxy", and is a separate process so that connections stay while the
agent restarts. SIGTERM ends it with its connections. SIGHUP replaces it by the installed
version, and no client is refused. The program ironvip-proxy is the same process without the
rest of ironvip.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.RunProxy(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.Socket, "socket", process.DefaultSocket, "the socket for the agent, which must run as the same user")
	return cmd
}
