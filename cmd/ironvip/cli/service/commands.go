// Package service has the commands about services and their backends: service, backend, override, top and search.
//
// Each file has one command, or a few that share a table; view.go has the text of a service. The commands send requests to a
// running agent and show its answers. The package decides nothing about services.
package service

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
		command.Group("service", "manage services",
			a.serviceListCommand(), a.serviceGetCommand(), a.serviceApplyCommand(), a.serviceDeleteCommand(), a.serviceExplainCommand(),
			a.serviceEditCommand(), a.serviceWatchCommand(), a.serviceStatsCommand(), a.serviceWeightCommand()),
		command.Group("backend", "manage backends",
			a.backendListCommand(),
			a.backendStateCommand("ready", "end drain or maint, so that the backend gets new connections again"),
			a.backendStateCommand("drain", "stop new connections to a backend; open ones continue"),
			a.backendStateCommand("maint", "like drain, but marks maintenance"),
			a.backendWeightCommand()),
		command.Group("override", "manage operator overrides of backends and groups", a.overrideListCommand(), a.overrideClearCommand()),
		a.topCommand(),
		a.searchCommand(),
	}
}
