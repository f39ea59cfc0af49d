// Package node has the commands about the agent of a host, what it keeps, and the other hosts of its fleet: status, version,
// node, fleet, source, token, snapshot, events and debug.
//
// The commands send requests to a running agent and show its answers. Commands that need a stopped agent call package
// agent through Store. The package decides nothing about hosts.
package node

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
)

// Store has the functions of package agent for the store of a host whose agent is stopped. Tests replace them.
type Store struct {
	Save        func(context.Context, offline.StoreRequest, io.Writer) error
	Restore     func(context.Context, offline.RestoreRequest) (offline.RestoreResult, error)
	NewIdentity func(offline.StoreRequest) (offline.IdentityChange, error)
}

// app has the commands as methods.
type app struct {
	*command.App
	Store
}

// Commands returns the commands.
func Commands(frame *command.App, s Store) []*cobra.Command {
	a := &app{frame, s}
	return []*cobra.Command{
		a.statusCommand(),
		a.versionCommand(),
		command.Group("node", "manage the hosts of the fleet", a.nodeListCommand(), a.nodeDrainCommand(), a.nodeUndrainCommand(), a.nodeForgetCommand(), a.nodeNewIDCommand()),
		command.Group("fleet", "inspect the fleet of this node", a.fleetStatusCommand()),
		command.Group("source", "manage sources of services", a.sourceListCommand(), a.sourceResyncCommand()),
		command.Group("token", "manage tokens of callers of the API", a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand()),
		command.Group("snapshot", "save and restore all leases, registrations and overrides",
			a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotCompareCommand()),
		command.Group("debug", "inspect the agent's internals", a.debugTableCommand()),
		a.eventsCommand(),
	}
}
