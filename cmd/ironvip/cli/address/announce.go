package address

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) announceListCommand() *cobra.Command {
	return command.List(a.App, "list VIPs with the host that announces each", `Lists the VIPs that are announced to the network, as this host sees them. OWNER is the host that
answers for the VIP at layer 2. With BGP and routes, every eligible host announces the VIP, and
OWNER is this host or empty.`, (*client.Client).Announcements, a.announceListView)
}

func (a *app) announceListView(list v1.AnnouncementList) output.View {
	grid := output.NewGrid("VIP", "MODE", "OWNER", "STATE", "SINCE", "WHY", "+POLICY", "+ROUTES", "+SERVICES", "+REVISION")
	for _, n := range list.Items {
		grid.Add(n.VIP, n.Mode, a.owner(n), announcementState(n), output.Since(n.Since, a.Now()), n.Why, n.Policy, routesText(n.Places), n.Services, n.Revision)
	}
	grid.Footer = a.staleFooter(list.Stale)
	return output.List(list, grid, "no announcements: announce.mode is off, or no service has a VIP in an announced pool")
}

// owner returns who announces a VIP, as far as this host knows.
func (a *app) owner(n v1.Announcement) string {
	if n.Owner == "" && n.Here {
		return "this host"
	}
	return n.Owner
}

// routesText returns what the routers get, each kind of it once: "10.0.0.254, 10.0.0.253: 10.0.0.200/32 with med 7".
func routesText(places []v1.AnnouncementPlace) string {
	var order []string
	at := map[string][]string{}
	for _, p := range places {
		if len(p.Routes) == 0 {
			continue
		}
		text := strings.Join(output.Texts(p.Routes, routeText), " and ")
		if at[text] == nil {
			order = append(order, text)
		}
		at[text] = append(at[text], p.At)
	}
	return strings.Join(output.Texts(order, func(text string) string { return strings.Join(at[text], ", ") + ": " + text }), "; ")
}

// routeText returns a route and what it carries: "10.0.0.200/32 with communities 65010:100 no-export, med 7".
func routeText(r v1.AnnouncementRoute) string {
	var with []string
	if len(r.Communities) > 0 {
		with = append(with, "communities "+strings.Join(r.Communities, " "))
	}
	for _, n := range []struct {
		name  string
		value uint64
	}{{"med", uint64(r.MED)}, {"local_pref", uint64(r.LocalPref)}, {"prepend", uint64(r.Prepend)}} {
		if n.value > 0 {
			with = append(with, fmt.Sprintf("%s %d", n.name, n.value))
		}
	}
	if r.LinkBandwidth > 0 {
		with = append(with, fmt.Sprintf("link bandwidth %g Mbit/s", float64(r.LinkBandwidth)*8/1e6))
	}
	if with == nil {
		return r.Prefix.String()
	}
	return r.Prefix.String() + " with " + strings.Join(with, ", ")
}

func announcementState(n v1.Announcement) output.Cell {
	if n.State == v1.AnnouncedHere {
		return output.Cell{Text: n.State, Style: output.Good}
	}
	return output.Cell{Text: n.State, Style: output.Caution.If(n.State != v1.AnnouncedElsewhere)}
}

func (a *app) staleFooter(why string) string {
	if why == "" {
		return ""
	}
	return a.Paint("WARN", output.Caution) + "  possibly outdated: the announcer is not reachable: " + output.Clean(why) + "\n"
}

func (a *app) announcePeersCommand() *cobra.Command {
	cmd := command.List(a.App, "list the hosts and routers that VIPs are announced with", "", (*client.Client).AnnouncePeers, a.announcePeersView)
	cmd.Use, cmd.Aliases = "peers", nil
	cmd.Long = `Lists the other hosts that exchange heartbeats with this one, and the BGP and BFD sessions with
routers. WHY is the reason why one is not up, or what to change.`
	return cmd
}

func (a *app) announcePeersView(list v1.AnnouncePeerList) output.View {
	grid := output.NewGrid("KIND", "NAME", "ADDRESS", "STATE", "SINCE", "VIPS", "WHY", "+ELIGIBLE", "+WEIGHT", "+LOST", "+NEGOTIATED")
	var hints string
	for _, p := range list.Items {
		state := output.Cell{Text: p.State + output.When(p.Draining, ", draining"), Style: output.Caution}
		if p.Up && p.Reason == "" {
			state.Style = output.Good
		}
		grid.Add(p.Kind, p.Name, p.Address, state, output.Since(p.Since, a.Now()), p.Owned, p.Reason, p.Eligible, p.Weight, p.Lost, p.Negotiated)
		if p.Hint != "" {
			hints += a.Paint("hint", output.Faint) + "  " + output.Clean(p.Name+": "+p.Hint) + "\n"
		}
	}
	grid.Footer = a.staleFooter(list.Stale) + hints
	return output.List(list, grid, "no peers", 1)
}

func (a *app) announceExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "explain VIP",
		Short:             "explain which host announces a VIP and why",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(announcedVIPs)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := c.Announcement(ctx, args[0])
			if err != nil {
				return command.NotFound(err, "run ironvip announce list")
			}
			return a.Show(output.View{Data: n, Names: []string{n.VIP.String()}, Text: func(*output.Printer) string { return a.announcementText(n) }})
		}),
	}
}

// announcementText explains one announcement.
func (a *app) announcementText(n v1.Announcement) string {
	var b strings.Builder
	since := output.Since(n.Since, a.Now())
	how := "not announced"
	switch {
	case n.Here && n.State != v1.AnnouncedHere:
		fmt.Fprintf(&b, "%s is to be announced by this host (%s) since %s: %s.\nIt is not: %s: %s.\n", n.VIP, n.Mode, since, output.Clean(n.Why), n.State, output.Clean(cmp.Or(n.Reason, "no reason is known")))
	case n.Here:
		how = "announced by this host"
	case n.Owner != "":
		how = "announced by " + n.Owner
	}
	serves := "no service"
	if n.Services > 0 {
		serves = output.Plural(n.Services, "service")
	}
	fmt.Fprintf(&b, "%s is %s (%s) since %s: %s.\nThis host serves %s of the VIP.\n", n.VIP, how, n.Mode, since, output.Clean(n.Why), serves)
	if m := n.Move; m != nil {
		how, until := "moved", "the host fails, drains or is not eligible"
		if m.Pin {
			how, until = "pinned", "ironvip announce unpin"
		}
		fmt.Fprintf(&b, "It is %s to %s by %s since %s, until %s.\n", how, m.Node, output.Clean(cmp.Or(m.Author, "an operator")), output.Since(m.Since, a.Now()), until)
	}
	for i, host := range n.Ranking {
		fmt.Fprintf(&b, "%d. %s\n", i+1, output.Clean(host))
	}
	for _, p := range n.Places {
		fmt.Fprintf(&b, "%s: %s since %s%s\n", p.At, p.State, output.Since(p.Since, a.Now()), output.When(p.Reason != "", ": "+output.Clean(p.Reason)))
		for _, r := range p.Routes {
			fmt.Fprintf(&b, "  %s%s\n", output.Clean(routeText(r)), output.When(r.Policy != "", ", from "+output.Clean(r.Policy)))
		}
		if p.Negotiated != "" {
			fmt.Fprintf(&b, "  %s\n", output.Clean(p.Negotiated))
		}
	}
	if n.Mode == "l2" {
		fmt.Fprintln(&b, "When the VIP moves, connections of services with forward \"dr\" or \"tunnel\" and scheduler \"mh\" continue. Connections with \"nat\" end.")
	}
	return b.String()
}

// announcedVIPs proposes the VIPs that are announced.
func announcedVIPs(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Announcements(ctx)
	return output.Texts(list.Items, func(n v1.Announcement) cobra.Completion {
		return cobra.CompletionWithDesc(n.VIP.String(), n.State)
	}), err
}
