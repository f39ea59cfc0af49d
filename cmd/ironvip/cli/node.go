package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) vipListCommand() *cobra.Command {
	var kind string
	var cmd *cobra.Command
	kinds := []cobra.Completion{"address", "node-port"}
	cmd = &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the addresses and node ports that are held or in cooldown",
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			if err := oneOf(cmd, "kind", kind, kinds); err != nil {
				return err
			}
			list, err := allVIPs(ctx, c, strings.ReplaceAll(kind, "-", "_"))
			if err != nil {
				return err
			}
			if len(list.Items) == 0 && a.printer().People() {
				a.printer().Say("no addresses or node ports allocated")
				return nil
			}
			return a.show(a.vipListView(list))
		}),
	}
	cmd.Flags().StringVar(&kind, "kind", "", "list only this kind: address or node-port")
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func allVIPs(ctx context.Context, c *client.Client, kind string) (v1.VIPList, error) {
	out, cursor := v1.VIPList{Items: []v1.VIP{}}, ""
	for {
		page, err := c.VIPs(ctx, kind, cursor, 0)
		if err != nil {
			return out, err
		}
		if cursor == "" {
			out.Revision = page.Revision
		}
		out.Items = append(out.Items, page.Items...)
		if cursor = page.Next; cursor == "" {
			return out, nil
		}
	}
}

func (a *app) vipListView(list v1.VIPList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, leaseName),
		Text: func(wide bool) string {
			grid := output.Grid{Header: []string{"VIP", "POOL", "STATE", "SERVICE", "SINCE"}}
			if wide {
				grid.Header = append(grid.Header, "SOURCE", "SHARE KEY", "REVISION")
			}
			for _, v := range list.Items {
				var holders, sources []string
				for _, h := range v.Holders {
					holders = append(holders, joinNonEmpty(":", h.Service, h.Port))
					sources = append(sources, h.Source)
				}
				state := output.Cell{Text: v.State, Style: output.Good}
				if v.State != "held" {
					state.Style = output.Faint
					if v.Until != nil {
						state.Text += ", free " + output.Ago(*v.Until, a.Now())
					}
				}
				row := []output.Cell{{Text: leaseName(v)}, {Text: v.Pool}, state, {Text: strings.Join(holders, ",")},
					{Text: output.Since(v.Since, a.Now())}}
				if wide {
					row = append(row, output.Row(strings.Join(slices.Compact(sources), ","), v.ShareKey, strconv.FormatUint(v.Revision, 10))...)
				}
				grid.Add(row...)
			}
			return grid.Text(a.printer().ColorOut)
		},
	}
}

// leaseName returns "192.0.2.10", or "30080/tcp" for a node port.
func leaseName(v v1.VIP) string {
	if v.Kind == v1.KindNodePort {
		return fmt.Sprintf("%d/%s", v.NodePort, v.Protocol)
	}
	return v.Address
}

func (a *app) poolListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list pools and their free addresses",
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Pools(ctx)
			if err != nil {
				return err
			}
			if len(list.Items) == 0 && a.printer().People() {
				a.printer().Say("no pools: services get no addresses; add a [[pool]] to the configuration")
				return nil
			}
			return a.show(a.poolListView(list))
		}),
	}
}

func (a *app) poolListView(list v1.PoolList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, func(p v1.Pool) string { return p.Name }),
		Text: func(wide bool) string {
			grid := output.Grid{Header: []string{"NAME", "CIDRS", "USED", "FREE", "COOLING", "HELD OUT", "AUTO"}}
			if wide {
				grid.Header = append(grid.Header, "SIZE", "EXCLUDE")
			}
			var alarms strings.Builder
			for _, p := range list.Items {
				used := output.Cell{Text: fmt.Sprintf("%s of %s", count(p.Used), count(p.Size))}
				if p.Free == 0 {
					used.Style = output.Caution
				}
				row := []output.Cell{{Text: p.Name}, {Text: prefixes(p.CIDRs)}, used, {Text: count(p.Free)}, {Text: count(p.Cooling)},
					{Text: count(p.HeldOut)}, {Text: yesNo(p.AutoAssign)}}
				if wide {
					row = append(row, output.Row(count(p.Size), prefixes(p.Exclude))...)
				}
				grid.Add(row...)
				for _, alarm := range p.Alarms {
					alarms.WriteString(a.printer().Paint("WARN", output.Caution) + "  pool " + output.Clean(p.Name+": "+problemLine(alarm)) + "\n")
				}
			}
			return grid.Text(a.printer().ColorOut) + alarms.String()
		},
	}
}

func count(n uint64) string {
	const most = 1<<53 - 1 // the upper limit of the API's counts
	if n >= most {
		return "many"
	}
	return output.Count(int64(n))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func prefixes(in []netip.Prefix) string {
	texts := make([]string, len(in))
	for i, p := range in {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

func (a *app) sourceListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list sources, their sync state and problems",
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := c.Sources(ctx)
			if err != nil {
				return err
			}
			return a.show(a.sourceListView(list))
		}),
	}
}

func (a *app) sourceListView(list v1.SourceList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, func(s v1.Source) string { return s.Name }),
		Text: func(wide bool) string {
			grid := output.Grid{Header: []string{"NAME", "TYPE", "STATE", "SERVICES", "LAST SYNC", "PROBLEMS"}}
			if wide {
				grid.Header = append(grid.Header, "RESTARTS", "REVISION")
			}
			var details strings.Builder
			for _, s := range list.Items {
				lastSync := "never"
				if s.LastSync != nil {
					lastSync = output.Ago(*s.LastSync, a.Now())
				}
				row := []output.Cell{{Text: s.Name}, {Text: s.Type}, sourceState(s), {Text: output.Count(int64(s.Services))},
					{Text: lastSync}, {Text: strconv.Itoa(len(s.Problems))}}
				if wide {
					row = append(row, output.Row(strconv.Itoa(s.Restarts), strconv.FormatUint(s.Revision, 10))...)
				}
				grid.Add(row...)
				if s.Stale != "" {
					details.WriteString(output.Clean(fmt.Sprintf("%s is stale: %s", s.Name, s.Stale)) + "\n")
				}
				for _, p := range s.Problems {
					details.WriteString(output.Clean(fmt.Sprintf("%s: %s", s.Name, problemLine(p))) + "\n")
				}
			}
			return grid.Text(a.printer().ColorOut) + details.String()
		},
	}
}

func sourceState(s v1.Source) output.Cell {
	switch {
	case s.Stale != "":
		return output.Cell{Text: "stale", Style: output.Caution}
	case !s.Synced:
		return output.Cell{Text: "syncing", Style: output.Caution}
	case s.Level == v1.LevelFail:
		return output.Cell{Text: "failed", Style: output.Bad}
	}
	return output.Cell{Text: "in sync", Style: output.Good}
}

func (a *app) sourceResyncCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resync NAME",
		Short: "resync a source",
		Long: `Makes a source of this host read everything again. It does not affect other hosts of the
fleet: run it on each of them, or use --addr.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete(first(1, sourceNames)),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			s, err := c.Resync(ctx, args[0])
			if err != nil {
				return err
			}
			a.printer().Say("source %s resyncs (revision %d)", s.Name, s.Revision)
			return showChange(a, []v1.Source{s}, []string{s.Name})
		}),
	}
}
