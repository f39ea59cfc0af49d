package cli

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// nodeIsSilent is how long a node may be silent before it is highlighted.
const nodeIsSilent = 30 * time.Second

func (a *app) nodeListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the nodes of the fleet with dataplane and lag",
		Long: `Lists the nodes that share a store (ipam.store = "consul"). Without a shared store it lists
only the node that answers.

ELECTED is the leader, which allocates addresses for new services; another node takes over
if it fails. REVISION is the newest revision of the node's own tables that its dataplane has
applied. LAG is the age of the oldest change not applied yet. INDEX (wide) is the last write
of the shared store that the node has read: nodes with the same index have the same state.`,
		Args: cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Nodes(ctx)
			if err != nil {
				return err
			}
			return a.show(a.nodeListView(list))
		}),
	}
}

func (a *app) nodeListView(list v1.NodeList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, func(n v1.Node) string { return n.Name }),
		Text: func(wide bool) string {
			grid := output.Grid{Header: []string{"NAME", "ELECTED", "VERSION", "DATAPLANE", "REVISION", "LAG", "SERVICES", "PROBLEMS", "SEEN"}}
			if wide {
				grid.Header = append(grid.Header, "FRONTENDS", "INDEX", "UP")
			}
			for _, n := range list.Items {
				elected := ""
				if n.Elected {
					elected = "yes"
				}
				lag := output.Cell{Text: "none", Style: output.Good}
				if n.Lag > 0 {
					lag = output.Cell{Text: (time.Duration(n.Lag) * time.Millisecond).String(), Style: output.Caution}
				}
				problems := output.Cell{Text: strconv.Itoa(n.Problems)}
				if n.Problems > 0 {
					problems.Style = output.Caution
				}
				row := []output.Cell{{Text: n.Name}, {Text: elected}, {Text: n.Version}, {Text: n.Dataplane}, {Text: strconv.FormatUint(n.Revision, 10)}, lag,
					{Text: output.Count(int64(n.Services))}, problems, a.seen(n)}
				if wide {
					up, index := "", ""
					if n.Started != nil {
						up = output.Since(*n.Started, a.Now())
					}
					if n.Index > 0 {
						index = strconv.FormatUint(n.Index, 10)
					}
					row = append(row, output.Row(output.Count(int64(n.Frontends)), index, up)...)
				}
				grid.Add(row...)
			}
			return grid.Text(a.printer().ColorOut)
		},
	}
}

// seen returns when a node last reported.
func (a *app) seen(n v1.Node) output.Cell {
	switch {
	case n.Self:
		return output.Cell{Text: "this node"}
	case n.Seen == nil:
		return output.Cell{}
	case a.Now().Sub(*n.Seen) > nodeIsSilent:
		return output.Cell{Text: output.Ago(*n.Seen, a.Now()), Style: output.Caution}
	}
	return output.Cell{Text: output.Ago(*n.Seen, a.Now())}
}
