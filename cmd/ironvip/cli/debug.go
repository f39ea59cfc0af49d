package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) debugTableCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "table [NAME]",
		Short: "print a table of the pipeline, or list the tables",
		Long: `Prints the rows of one table of the agent's pipeline, sorted. The same state always gives
the same text: the cells hold no revisions and no times. Without NAME it lists the tables.
The columns may change between versions.`,
		Example:           "  ironvip debug table\n  ironvip debug table frontends",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete(first(1, tableNames)),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				list, err := c.DebugTables(ctx)
				if err != nil {
					return err
				}
				return a.show(a.debugTablesView(list))
			}
			t, err := c.DebugTable(ctx, args[0])
			if err != nil {
				return err
			}
			return a.show(a.debugTableView(t))
		}),
	}
}

func tableNames(ctx context.Context, c *client.Client, _ []string) (out []cobra.Completion, err error) {
	list, err := c.DebugTables(ctx)
	for _, t := range list.Items {
		out = append(out, t.Name)
	}
	return out, err
}

func (a *app) debugTablesView(list v1.DebugTableList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, func(t v1.DebugTableInfo) string { return t.Name }),
		Text: func(bool) string {
			grid := output.Grid{Header: []string{"TABLE", "ROWS", "REVISION"}}
			for _, t := range list.Items {
				grid.Add(output.Row(t.Name, strconv.Itoa(t.Rows), strconv.FormatUint(t.Revision, 10))...)
			}
			return grid.Text(a.printer().ColorOut)
		},
	}
}

func (a *app) debugTableView(t v1.DebugTable) output.View {
	return output.View{
		Data:  t,
		Names: output.NamesOf(t.Rows, func(row []string) string { return row[0] }),
		Text: func(bool) string {
			grid := output.Grid{}
			for _, c := range t.Columns {
				grid.Header = append(grid.Header, strings.ToUpper(strings.ReplaceAll(c, "_", " ")))
			}
			for _, row := range t.Rows {
				grid.Add(output.Row(row...)...)
			}
			return grid.Text(a.printer().ColorOut)
		},
	}
}
