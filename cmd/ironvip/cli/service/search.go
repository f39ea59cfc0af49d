package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) searchCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "search TEXT",
		Short: "find services, VIPs, backends, nodes, pools and DNS names by a part of a name or address",
		Long: `Finds services, VIPs, backends (also by their node), nodes, pools and DNS names by any part of a
name or address, without regard to case. Exact matches come first. TEXT may be ADDRESS:PORT.`,
		Example:           "  ironvip search 10.1.0.11:8080",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "results to show, at most 100")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		if limit < 1 || limit > 100 {
			return command.Usage(cmd, "invalid --limit %d: must be 1 to 100", limit)
		}
		found, err := c.Search(ctx, args[0], limit)
		if err != nil {
			return err
		}
		if len(found.Missing) > 0 {
			a.Say("not searched, because it could not be read: %s", strings.Join(found.Missing, ", "))
		}
		return a.Show(searchView(found, args[0]))
	})
	return cmd
}

func searchView(found v1.SearchResult, text string) output.View {
	grid := output.NewGrid("KIND", "NAME", "SERVICE", "STATE", "DETAIL")
	for _, m := range found.Matches {
		grid.Add(m.Kind, m.Name, m.Service, output.Cell{Text: m.State, Style: stateStyles[m.State]}, m.Detail)
	}
	return output.List(found, grid, fmt.Sprintf("nothing matches %q", text), 1)
}
