package service

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) serviceStatsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats [NAME]...",
		Short: "show connections and traffic by service, or by backend of some services",
		Long: `Shows the dataplane's counters of services, or of the frontends and backends of named ones: open
connections (CONN), connections (TOTAL), bytes and rates. A counter starts at 0 with its frontend or
backend. "-" is a counter that this dataplane does not have.`,
		Example:           "  ironvip service stats web -o wide",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.Complete(command.Services),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				list, err := c.Stats(ctx)
				if err != nil {
					return err
				}
				return a.Show(statsListView(list))
			}
			all, err := command.ForEach(args, func(key vip.ServiceKey) (v1.ServiceStats, error) {
				return c.ServiceStats(ctx, key.Namespace, key.Name)
			})
			if err != nil {
				return err
			}
			return a.Show(statsView(all))
		}),
	}
}

// openConnections returns the open connections of every service by name, for display in other output.
// An agent without counters has none.
func openConnections(ctx context.Context, c *client.Client) (map[string]uint64, error) {
	list, err := c.Stats(ctx)
	if client.IsNotFound(err) {
		err = nil
	}
	out := make(map[string]uint64, len(list.Items))
	for _, s := range list.Items {
		out[s.Service] = s.Traffic.Active
	}
	return out, err
}

func statsListView(list v1.StatsList) output.View {
	grid := trafficGrid("NAME")
	for _, s := range list.Items {
		addTraffic(grid, s.Service, &s.Traffic)
	}
	return output.List(list, grid, "no services in the dataplane")
}

func statsView(all []v1.ServiceStats) output.View {
	return output.View{
		Data:  command.OneOrList(all),
		Names: output.Texts(all, func(s v1.ServiceStats) string { return s.Service }),
		Text: func(p *output.Printer) string {
			return strings.Join(output.Texts(all, func(s v1.ServiceStats) string { return statsText(p, s) }), "\n")
		},
	}
}

// statsText returns a service's frontends, each followed by its backends.
func statsText(p *output.Printer, s v1.ServiceStats) string {
	grid := trafficGrid("FRONTEND")
	grid.Indent = "  "
	for _, f := range s.Frontends {
		addTraffic(grid, f.Frontend, f.Traffic)
		for _, b := range f.Backends {
			addTraffic(grid, "  "+b.Address, &b.Traffic)
		}
	}
	open := output.Plural(int(min(s.Traffic.Active, math.MaxInt)), "connection")
	return fmt.Sprintf("%s: %s open, %s in all\n", p.Paint(s.Service, output.Strong), open, render.Count(s.Traffic.Connections)) + grid.Text(p)
}

func trafficGrid(first string) *output.Grid {
	return output.NewGrid(first, "CONN", "TOTAL", "IN", "OUT", "CONN/S", "IN/S", "OUT/S",
		"+INACTIVE", "+PACKETS IN", "+PACKETS OUT", "+PACKETS IN/S", "+PACKETS OUT/S")
}

// addTraffic adds a line. A nil t means that the dataplane doesn't have the object.
func addTraffic(grid *output.Grid, name string, t *v1.Traffic) {
	cells := []any{name, "", "", "", "", "", "", "", "", "", "", "", ""}
	if t != nil {
		copy(cells[1:], []any{render.Count(t.Active), render.Count(t.Connections), output.Bytes(t.In.Bytes), output.Bytes(t.Out.Bytes)})
		copy(cells[8:], []any{counted(t.Inactive), counted(t.In.Packets), counted(t.Out.Packets)})
		if r := t.Rates; r != nil {
			copy(cells[5:], []any{render.Count(r.Connections), output.Bytes(r.In.Bytes), output.Bytes(r.Out.Bytes)})
			copy(cells[11:], []any{counted(r.In.Packets), counted(r.Out.Packets)})
		}
	}
	grid.Add(cells...)
}

// counted returns the text of a value that some dataplanes don't count.
func counted(n *uint64) string {
	if n == nil {
		return ""
	}
	return render.Count(*n)
}
