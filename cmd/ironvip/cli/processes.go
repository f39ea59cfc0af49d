package cli

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent"
	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/control"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/proxy/process"
)

func (with *Options) agentCommand() *cobra.Command {
	o := agent.Options{Version: with.Version, Stdout: with.Stdout}
	check := false
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run the daemon",
		Long: `Runs the daemon in the foreground. It reads services from the sources, assigns their VIPs and
programs this host's dataplane. SIGHUP reloads the configuration. SIGTERM ends the daemon; a
kernel dataplane and the process of dataplane.proxy_socket continue to forward.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return with.CheckAgent(o)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return with.RunAgent(ctx, o)
		},
	}
	command.StoreFlags(cmd, &o.Config, &o.StateDir, command.TheConfig)
	cmd.Flags().StringVar(&o.ProxySocket, "proxy-socket", "", "dataplane.proxy_socket, if the configuration has none")
	cmd.Flags().BoolVar(&o.Demo, "demo", false, "run demo backends and two services in 127.0.0.0/8; needs no root, leaves nothing behind")
	cmd.Flags().BoolVar(&check, "check", false, "start nothing, and fail with the reason if the daemon could not start here")
	cmd.MarkFlagsMutuallyExclusive("demo", "config")
	cmd.MarkFlagsMutuallyExclusive("demo", "check")
	return cmd
}

func (with *Options) announcerCommand() *cobra.Command {
	o := announcer.Options{Version: with.Version}
	cmd := &cobra.Command{
		Use:   "announcer",
		Short: "run the process that announces VIPs to the network",
		Long: `Runs the announcer in the foreground. It gets its settings from the agent of this host, announces
VIPs with ARP, NDP and BGP, and goes on while the agent restarts. SIGTERM lets other hosts take
over, and ends it. The program ironvip-announcer is the same in a third of the memory.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return with.RunAnnouncer(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.Socket, "socket", control.DefaultSocket, "the socket for the agent, which must run as the same user")
	return cmd
}

func (with *Options) proxyCommand() *cobra.Command {
	o := process.MainOptions{Version: with.Version}
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "run the process that forwards connections in userspace",
		Long: `Runs the userspace proxy in the foreground. It gets its frontends from the agent of this host with
dataplane.mode "proxy", and goes on while the agent restarts. SIGHUP replaces it by the installed
version, and no client is refused. SIGTERM ends it with its connections. The program ironvip-proxy
is the same without the rest of ironvip.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return with.RunProxy(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.Socket, "socket", process.DefaultSocket, "the socket for the agent, which must run as the same user")
	return cmd
}
