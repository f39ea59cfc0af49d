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
		Short: "take everything that an agent left out of the kernel; no agent needed",
		Long: `Removes what an agent left in this host's kernel: its IPVS services, the device with
the virtual addresses and the nftables table, and nothing else. It needs no agent and
refuses while one runs (exit code 5).

Ours is what the nftables table has on record, what is on an address of our device, and
what is on an address that is leased. A service in a pool that none of these know is shown
and left alone, unless --pools is given. Where the state file is missing or damaged, the
table and the device tell. Sysctls, the state file and the configuration stay.

With --dry-run nothing is changed, and the exit code is 10 when there is anything to
remove.`,
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
	flags.BoolVar(&req.DryRun, "dry-run", false, "change nothing and show what would be removed (exit code 10 when anything would)")
	flags.BoolVar(&req.Pools, "pools", false, "also remove the IPVS services in our pools that nothing else says are ours")
	flags.BoolVar(&req.Force, "force", false, "also while an agent runs; one with the ipvs dataplane puts everything back at its next resync")
	flags.StringVar(&req.Config, "config", DefaultConfig, "the configuration: a file, or a directory that holds ironvip.toml")
	flags.StringVar(&req.StateDir, "state-dir", "", "where the state file is (default: node.state_dir of the configuration)")
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
		p.Say("nothing of ours is in the kernel")
		return nil
	}
	if err := a.show(a.cleanView(r)); err != nil {
		return err
	}
	switch {
	case r.Removed:
		p.Say("removed %s", output.Plural(len(r.Items), "thing"))
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
