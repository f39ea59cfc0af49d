package cli

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) serviceStatsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats [NAME]...",
		Short: "show connections and traffic by service, or by backend of some services",
		Long: `Shows the dataplane's counters: open connections (CONN), connections since the counter
started (TOTAL), bytes and rates. Without names it prints one line per service; with names,
their frontends and backends. A counter starts at 0 with its frontend or backend. "-" means
that this dataplane has no such counter.`,
		Example:           "  ironvip service stats\n  ironvip service stats web -o wide",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.complete(services),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				list, err := c.Stats(ctx)
				if err != nil {
					return err
				}
				if len(list.Items) == 0 && a.printer().People() {
					a.printer().Say("no services in the dataplane")
					return nil
				}
				return a.show(a.statsListView(list))
			}
			keys, err := parseKeys(args)
			if err != nil {
				return err
			}
			all := make([]v1.ServiceStats, len(keys))
			for i, key := range keys {
				if all[i], err = c.ServiceStats(ctx, key.Namespace, key.Name); err != nil {
					return notFound(err, seeServices)
				}
			}
			return a.show(a.statsView(all))
		}),
	}
}

// connections returns the open connections of every service by name, for display in other output.
// If they are unavailable, it returns none and prints the reason to stderr.
func (a *app) connections(ctx context.Context, c *client.Client) map[string]uint64 {
	list, err := c.Stats(ctx)
	if err != nil {
		if !client.IsNotFound(err) {
			a.printer().Say("connections unknown: %v", err)
		}
		return nil
	}
	out := make(map[string]uint64, len(list.Items))
	for _, s := range list.Items {
		out[s.Service] = s.Traffic.Active
	}
	return out
}

// connectionsCell returns the cell with the connections of one service.
func connectionsCell(of map[string]uint64, service string) string {
	n, known := of[service]
	if !known {
		return ""
	}
	return count(n)
}

func (a *app) statsListView(list v1.StatsList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, func(s v1.ServiceTotal) string { return s.Service }),
		Text: func(wide bool) string {
			grid := trafficGrid("NAME", wide)
			for _, s := range list.Items {
				addTraffic(grid, s.Service, &s.Traffic, wide)
			}
			return grid.Text(a.printer().ColorOut)
		},
	}
}

func (a *app) statsView(all []v1.ServiceStats) output.View {
	v := output.View{
		Data:  itemsOf[v1.ServiceStats]{all},
		Names: output.NamesOf(all, func(s v1.ServiceStats) string { return s.Service }),
		Text: func(wide bool) string {
			texts := make([]string, len(all))
			for i, s := range all {
				texts[i] = a.statsText(s, wide)
			}
			return strings.Join(texts, "\n")
		},
	}
	if len(all) == 1 {
		v.Data = all[0]
	}
	return v
}

// statsText returns a service's frontends, each followed by its backends.
func (a *app) statsText(s v1.ServiceStats, wide bool) string {
	p := a.printer()
	grid := trafficGrid("FRONTEND", wide)
	grid.Indent = "  "
	for _, f := range s.Frontends {
		addTraffic(grid, f.Frontend, f.Traffic, wide)
		for _, b := range f.Backends {
			addTraffic(grid, "  "+b.Address, &b.Traffic, wide)
		}
	}
	text := fmt.Sprintf("%s: %s open, %s in all\n", p.Paint(s.Service, output.Strong), output.Plural(shownInt(s.Traffic.Active), "connection"), count(s.Traffic.Connections))
	return text + grid.Text(p.ColorOut)
}

func trafficGrid(first string, wide bool) *output.Grid {
	grid := &output.Grid{Header: []string{first, "CONN", "TOTAL", "IN", "OUT", "CONN/S", "IN/S", "OUT/S"}}
	if wide {
		grid.Header = append(grid.Header, "INACTIVE", "PACKETS IN", "PACKETS OUT", "PACKETS IN/S", "PACKETS OUT/S")
	}
	return grid
}

// addTraffic adds a line. A nil t means that the dataplane doesn't have the object.
func addTraffic(grid *output.Grid, name string, t *v1.Traffic, wide bool) {
	cells := make([]string, len(grid.Header))
	cells[0] = name
	if t != nil {
		copy(cells[1:], []string{count(t.Active), count(t.Connections), output.Bytes(t.In.Bytes), output.Bytes(t.Out.Bytes)})
		if r := t.Rates; r != nil {
			copy(cells[5:], []string{count(r.Connections), output.Bytes(r.In.Bytes), output.Bytes(r.Out.Bytes)})
		}
		if wide {
			copy(cells[8:], []string{counted(t.Inactive), counted(t.In.Packets), counted(t.Out.Packets)})
			if r := t.Rates; r != nil {
				copy(cells[11:], []string{counted(r.In.Packets), counted(r.Out.Packets)})
			}
		}
	}
	grid.Add(output.Row(cells...)...)
}

// counted returns the text of a value that some dataplanes don't count.
func counted(n *uint64) string {
	if n == nil {
		return ""
	}
	return count(*n)
}

func shownInt(n uint64) int { return int(min(n, math.MaxInt)) }
