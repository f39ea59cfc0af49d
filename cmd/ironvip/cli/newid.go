package cli

import (
	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/agent"
)

func (a *app) nodeNewIDCommand() *cobra.Command {
	var req agent.StoreRequest
	cmd := &cobra.Command{
		Use:   "new-id",
		Short: "give this host a new host id, after it was copied from another host",
		Long: `Replaces the host id in this host's state file. In a fleet (ipam.store = "consul") an agent
refuses to start while another live host has the same id, which happens after a disk, a
virtual machine or a state file was copied. Run this on the copy.

This host's agent must be stopped (exit code 5). Consul is not needed, and nothing but the
id changes: if the other host has the same node.name too, set another one in ironvip.toml.`,
		Example: "  systemctl stop ironvip && ironvip node new-id && systemctl start ironvip",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			change, err := a.NewIdentity(req)
			if err != nil {
				return err
			}
			return a.show(output.View{
				Data:  change,
				Names: func() []string { return []string{change.New} },
				Text: func(bool) string {
					grid := output.Grid{Header: []string{"OLD ID", "NEW ID"}}
					grid.Add(output.Row(change.Old, change.New)...)
					return grid.Text(a.printer().ColorOut)
				},
			})
		},
	}
	storeFlags(cmd, &req, "the configuration: a file, or a directory that holds ironvip.toml")
	return cmd
}
