package address

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

func (a *app) vipListCommand() *cobra.Command {
	var kind string
	read := func(c *client.Client, ctx context.Context) (v1.VIPList, error) {
		return c.VIPs(ctx, strings.ReplaceAll(kind, "-", "_"))
	}
	cmd := command.List(a.App, "list the addresses and node ports that are held, in cooldown or reserved", "", read, a.vipListView)
	command.ChoiceFlag(cmd, &kind, "kind", "list only this kind: address or node-port", "address", "node-port")
	return cmd
}

func (a *app) vipGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "get ADDRESS",
		Short:             "show who holds an address",
		Example:           "  ironvip vip get 192.0.2.10 -o json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(command.Addresses)),
		PreRunE:           checkAddress,
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			v, err := c.VIP(ctx, args[0])
			if err != nil {
				return command.NotFound(err, "run ironvip vip list")
			}
			view := a.vipListView(v1.VIPList{Items: []v1.VIP{v}})
			view.Data = v
			return a.Show(view)
		}),
	}
}

// checkAddress refuses a first argument that is no address.
func checkAddress(cmd *cobra.Command, args []string) error {
	if _, err := netip.ParseAddr(args[0]); err != nil {
		return command.Usage(cmd, "invalid address %q", args[0])
	}
	return nil
}

func (a *app) vipListView(list v1.VIPList) output.View {
	grid := output.NewGrid("VIP", "POOL", "STATE", "SERVICE", "SINCE", "+SOURCE", "+SHARE KEY", "+REVISION")
	for _, v := range list.Items {
		var holders, sources []string
		for _, h := range v.Holders {
			holders = append(holders, output.Join(":", h.Service, h.Port))
			sources = append(sources, h.Source)
		}
		state := output.Cell{Text: v.State, Style: output.Good}
		if v.State != "held" {
			state.Style = output.Faint
			if v.Until != nil {
				state.Text += ", free " + a.Ago(v.Until)
			}
		}
		if r := v.Reservation; r != nil && v.State == "held" {
			state.Text += ", reserved"
			if r.For != "" && !slices.ContainsFunc(v.Holders, func(h v1.VIPHolder) bool { return h.Service == r.For }) {
				state.Text += " for " + r.For
			}
		} else if r != nil && r.For != "" {
			holders = append(holders, "for "+r.For)
		}
		grid.Add(leaseName(v), v.Pool, state, strings.Join(holders, ","), output.Since(v.Since, a.Now()),
			strings.Join(slices.Compact(sources), ","), v.ShareKey, v.Revision)
	}
	return output.List(list, grid, "no addresses or node ports allocated")
}

// leaseName returns "192.0.2.10", or "30080/tcp" for a node port.
func leaseName(v v1.VIP) string {
	if v.Kind == v1.KindNodePort {
		return fmt.Sprintf("%d/%s", v.NodePort, v.Protocol)
	}
	return v.Address
}

func (a *app) poolListCommand() *cobra.Command {
	return command.List(a.App, "list pools and their free addresses", "", (*client.Client).Pools, a.poolListView)
}

func (a *app) poolListView(list v1.PoolList) output.View {
	grid := output.NewGrid("NAME", "CIDRS", "USED", "FREE", "COOLING", "RESERVED", "HELD OUT", "AUTO", "+NAMESPACES", "+USED BY", "+SIZE", "+EXCLUDE", "+HELD OUT FOR")
	for _, p := range list.Items {
		used := output.Cell{Text: fmt.Sprintf("%s of %s", render.Count(p.Used), render.Count(p.Size)), Style: output.Caution.If(p.Free == 0)}
		grid.Add(p.Name, render.CommaList(p.CIDRs), used, render.Count(p.Free), render.Count(p.Cooling), render.Count(p.Reserved), render.Count(p.HeldOut), yesNo(p.AutoAssign),
			strings.Join(p.Namespaces, ","), strings.Join(output.Texts(p.UsedBy, func(u v1.NamespaceUse) string { return u.Namespace + " " + render.Count(u.Addresses) }), ", "), render.Count(p.Size), render.CommaList(p.Exclude), strings.Join(reasonsOf(p.HeldRanges), ","))
		for _, alarm := range p.Alarms {
			grid.Footer += a.Paint("WARN", output.Caution) + "  pool " + output.Clean(p.Name+": "+render.Problem(alarm)) + "\n"
		}
	}
	return output.List(list, grid, "no pools: services get no addresses; add a [[pool]] to the configuration")
}

func (a *app) poolGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME...",
		Short: "show pools in full: ranges, use, and what is wrong with them",
		Long: `Shows pools in full. COOLING addresses were released lately and are given to others later. RESERVED
addresses are kept for a service that does not hold them. HELD OUT are addresses of this host, of
its gateways and of Kubernetes' ranges. EXCLUDE are the ranges that the configuration excludes.`,
		Example:           "  ironvip pool get public-v4 -o json",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.Complete(poolNames),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			list, err := c.Pools(ctx)
			if err != nil {
				return err
			}
			pools := make([]v1.Pool, len(args))
			for i, name := range args {
				at := slices.IndexFunc(list.Items, func(p v1.Pool) bool { return p.Name == name })
				if at < 0 {
					return &command.Failure{Code: command.ExitNotFound, Err: fmt.Errorf("pool %q does not exist", name), Hint: "run ironvip pool list"}
				}
				pools[i] = list.Items[at]
			}
			return a.Show(poolView(pools))
		}),
	}
}

func poolView(pools []v1.Pool) output.View {
	return output.View{
		Data:  command.OneOrList(pools),
		Names: output.Texts(pools, func(p v1.Pool) string { return p.Name }),
		Text: func(p *output.Printer) string {
			return strings.Join(output.Texts(pools, func(pool v1.Pool) string { return poolText(p, pool) }), "\n")
		},
	}
}

// reasonsOf returns the reasons of ranges that are held out, each once.
func reasonsOf(ranges []v1.HeldOut) []string {
	reasons := output.Texts(ranges, func(r v1.HeldOut) string { return r.Reason })
	slices.Sort(reasons)
	return slices.Compact(reasons)
}

func poolText(p *output.Printer, pool v1.Pool) string {
	facts := output.Grid{Indent: "  "}
	facts.Fact("cidrs", render.CommaList(pool.CIDRs))
	facts.Fact("exclude", render.CommaList(pool.Exclude))
	facts.Fact("auto assign", yesNo(pool.AutoAssign))
	if len(pool.Namespaces) > 0 {
		facts.Fact("namespaces", strings.Join(pool.Namespaces, ", "))
	}
	facts.Fact("used", fmt.Sprintf("%s of %s", render.Count(pool.Used), render.Count(pool.Size)))
	for _, use := range pool.UsedBy {
		facts.Fact("  "+use.Namespace, render.Count(use.Addresses))
	}
	facts.Fact("free", render.Count(pool.Free))
	facts.Fact("cooling", render.Count(pool.Cooling))
	facts.Fact("reserved", render.Count(pool.Reserved))
	facts.Fact("held out", render.Count(pool.HeldOut))
	for _, r := range pool.HeldRanges {
		facts.Fact("  "+r.Prefix.String(), r.Message)
	}
	text := p.Paint(pool.Name, output.Strong) +
		output.When(pool.Removed, " is removed from the configuration, and some of its addresses are held or kept") + "\n" + facts.Text(p)
	for _, alarm := range pool.Alarms {
		text += p.Paint("WARN", output.Caution) + "  " + output.Clean(render.Problem(alarm)) + "\n"
	}
	return text
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// poolNames proposes the names of pools.
func poolNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Pools(ctx)
	return output.Texts(list.Items, func(p v1.Pool) cobra.Completion { return cobra.CompletionWithDesc(p.Name, render.CommaList(p.CIDRs)) }), err
}
