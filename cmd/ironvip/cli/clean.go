package cli

import (
	"context"
	"strings"

	"github.com/ironvip/ironvip/internal/agent"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) dataplaneCleanCommand() *cobra.Command {
	var req agent.CleanRequest
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "remove everything that an agent left in the kernel; needs no agent",
		Long: `Removes what an agent left in this host's kernel: its IPVS services, the device with
the virtual addresses and the nftables table, and nothing else. It needs no agent and
refuses to run beside one (exit code 5).

An IPVS service belongs to ironvip if the nftables table records it, or if its address is on
ironvip's device or leased. Other services with addresses of a pool are shown and kept,
unless --pools is given. If the state file is missing or damaged, the table and the device
are enough. Sysctls, the state file and the configuration stay.

With --dry-run nothing is changed, and the exit code is 10 if there is anything to remove.`,
		Example: "  ironvip dataplane clean --dry-run\n  systemctl stop ironvip && ironvip dataplane clean",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			result, err := a.Clean(ctx, req)
			if err != nil {
				return err
			}
			return a.showClean(result)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&req.DryRun, "dry-run", false, "change nothing and show what would be removed (exit code 10 if anything would)")
	flags.BoolVar(&req.Pools, "pools", false, "also remove other IPVS services with addresses of the pools")
	flags.BoolVar(&req.Force, "force", false, "run beside an agent; with the ipvs dataplane it restores everything at its next resync")
	flags.StringVar(&req.Config, "config", DefaultConfig, "the configuration: a file, or a directory with ironvip.toml")
	flags.StringVar(&req.StateDir, "state-dir", "", "directory of the state file (default: node.state_dir of the configuration)")
	must(cmd.MarkFlagFilename("config", "toml"))
	must(cmd.MarkFlagDirname("state-dir"))
	return cmd
}

func (a *app) showClean(r agent.CleanResult) error {
	p := a.printer()
	if p.People() {
		for _, note := range r.Notes {
			p.Label("note", output.Faint, note)
		}
	}
	if p.People() && len(r.Items)+len(r.Left) == 0 {
		p.Say("nothing to remove")
		return nil
	}
	if err := a.show(a.cleanView(r)); err != nil {
		return err
	}
	switch {
	case r.Removed:
		p.Say("removed %s", output.Plural(len(r.Items), "object"))
	case len(r.Items) > 0:
		return exit(ExitChanges)
	}
	return nil
}

func (a *app) cleanView(r agent.CleanResult) output.View {
	return output.View{
		Data:  r,
		Names: output.NamesOf(r.Items, func(x agent.CleanItem) string { return x.Name }),
		Text: func(bool) string {
			grid := output.Grid{}
			rows := func(sign output.Cell, items []agent.CleanItem) {
				for _, x := range items {
					grid.Rows = append(grid.Rows, []output.Cell{sign, {Text: x.Kind}, {Text: x.Name}, {Text: x.Detail, Style: output.Faint}})
				}
			}
			rows(output.Cell{Text: "-", Style: output.Bad}, r.Items)
			rows(output.Cell{Text: "left", Style: output.Caution}, r.Left)
			return strings.TrimLeft(grid.Text(a.printer().ColorOut), "\n")
		},
	}
}
