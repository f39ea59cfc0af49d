package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/announce/control"
)

func (a *app) announcerCommand() *cobra.Command {
	o := announcer.Options{Version: a.Version}
	cmd := &cobra.Command{
		Use:   "announcer",
		Short: "run the process that announces VIPs to the network",
		Long: `Runs the announcer in the foreground. It gets all settings from the agent of this host, and
announces VIPs with ARP, NDP and BGP. It is a separate process so that announcements stay
while the agent restarts. SIGTERM lets other hosts take over, and ends it. The program
ironvip-announcer is the same process without the rest of ironvip, in a third of the memory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.RunAnnouncer(cmd.Context(), o) },
	}
	cmd.Flags().StringVar(&o.Socket, "socket", control.DefaultSocket, "the socket for the agent, which must run as the same user")
	return cmd
}
