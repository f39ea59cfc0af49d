// Package address has the commands about the addresses of services: vip, pool, dns and announce.
//
// The commands send requests to a running agent and show its answers: which addresses pools have, which service holds one,
// which names it has, and which host announces it. The package decides nothing about addresses.
package address

import (
	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
)

// app has the commands as methods.
type app struct{ *command.App }

// Commands returns the commands.
func Commands(frame *command.App) []*cobra.Command {
	a := &app{frame}
	return []*cobra.Command{
		command.Group("vip", "show allocated addresses and node ports, and reserve addresses", a.vipListCommand(), a.vipGetCommand(),
			a.vipReserveCommand(), a.vipReleaseCommand()),
		command.Group("pool", "show address pools", a.poolListCommand(), a.poolGetCommand()),
		command.Group("announce", "show how VIPs are announced to the network, and move them", a.announceListCommand(), a.announcePeersCommand(), a.announceExplainCommand(), a.announceMoveCommand(), a.announceUnpinCommand()),
		command.Group("dns", "show the DNS names of services", a.dnsListCommand(), a.dnsQueryCommand()),
	}
}
