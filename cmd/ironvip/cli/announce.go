package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) announceListCommand() *cobra.Command {
	cmd := listCommand(a, "list VIPs with the host that announces each", (*client.Client).Announcements, a.announceListView)
	cmd.Long = `Lists the VIPs of pools that are announced to the network (announce.mode), as this host sees
them. OWNER is the host that answers for the VIP at layer 2. With BGP and routes, every
eligible host announces the VIP, and OWNER is this host or empty.`
	return cmd
}

func (a *app) announceListView(list v1.AnnouncementList) output.View {
	grid := output.NewGrid("VIP", "MODE", "OWNER", "STATE", "SINCE", "WHY", "+SERVICES", "+REVISION")
	for _, n := range list.Items {
		grid.Add(n.VIP, n.Mode, a.owner(n), announcementState(n), output.Since(n.Since, a.Now()), n.Why, n.Services, n.Revision)
	}
	grid.Footer = a.staleFooter(list.Stale)
	view := output.List(list, grid, "no announcements: announce.mode is off, or no service has a VIP in an announced pool")
	view.Names = output.Texts(list.Items, func(n v1.Announcement) string { return n.VIP.String() })
	return view
}

// owner returns who announces a VIP, as far as this host knows.
func (a *app) owner(n v1.Announcement) string {
	if n.Owner == "" && n.Here {
		return "this host"
	}
	return n.Owner
}

func announcementState(n v1.Announcement) output.Cell {
	c := output.Cell{Text: n.State}
	switch n.State {
	case v1.AnnouncedHere:
		c.Style = output.Good
	case v1.AnnouncedElsewhere:
	default:
		c.Style = output.Caution
	}
	return c
}

func (a *app) staleFooter(why string) string {
	if why == "" {
		return ""
	}
	return a.printer().Paint("WARN", output.Caution) + "  possibly outdated: the announcer is not reachable: " + output.Clean(why) + "\n"
}

func (a *app) announcePeersCommand() *cobra.Command {
	cmd := listCommand(a, "list the hosts and routers that VIPs are announced with", (*client.Client).AnnouncePeers, a.announcePeersView)
	cmd.Use, cmd.Aliases = "peers", nil
	cmd.Long = `Lists the other hosts that exchange heartbeats with this one, and the BGP and BFD sessions
with routers. WHY says why one is not up, or what should be changed. A hint below the
table says what to do about it.`
	return cmd
}

func (a *app) announcePeersView(list v1.AnnouncePeerList) output.View {
	grid := output.NewGrid("KIND", "NAME", "ADDRESS", "STATE", "SINCE", "VIPS", "WHY", "+ELIGIBLE", "+WEIGHT", "+LOST")
	var hints string
	for _, p := range list.Items {
		state := output.Cell{Text: p.State, Style: output.Caution}
		if p.Up && p.Reason == "" {
			state.Style = output.Good
		}
		if p.Draining {
			state.Text += ", draining"
		}
		grid.Add(p.Kind, p.Name, p.Address, state, output.Since(p.Since, a.Now()), p.Owned, p.Reason, p.Eligible, p.Weight, p.Lost)
		if p.Hint != "" {
			hints += a.printer().Paint("hint", output.Faint) + "  " + output.Clean(p.Name+": "+p.Hint) + "\n"
		}
	}
	grid.Footer = a.staleFooter(list.Stale) + hints
	view := output.List(list, grid, "no peers")
	view.Names = output.Texts(list.Items, func(p v1.AnnouncePeer) string { return p.Name })
	return view
}

func (a *app) announceExplainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "explain VIP",
		Short:             "explain which host announces a VIP and why",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.complete(onlyFirst(announcedVIPs)),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := c.Announcement(ctx, args[0])
			if err != nil {
				return notFound(err, "run ironvip announce list")
			}
			return a.show(output.View{Data: n, Names: []string{n.VIP.String()}, Text: func(*output.Printer) string { return a.announcementText(n) }})
		}),
	}
}

// announcementText explains one announcement.
func (a *app) announcementText(n v1.Announcement) string {
	var b strings.Builder
	since := output.Since(n.Since, a.Now())
	switch {
	case n.Here && n.State != v1.AnnouncedHere:
		fmt.Fprintf(&b, "%s is to be announced by this host (%s) since %s: %s.\nIt is not: %s: %s.\n", n.VIP, n.Mode, since, output.Clean(n.Why), n.State, output.Clean(cmp.Or(n.Reason, "no reason is known")))
	case n.Here:
		fmt.Fprintf(&b, "%s is announced by this host (%s) since %s: %s.\n", n.VIP, n.Mode, since, output.Clean(n.Why))
	case n.Owner != "":
		fmt.Fprintf(&b, "%s is announced by %s (%s) since %s: %s.\n", n.VIP, n.Owner, n.Mode, since, output.Clean(n.Why))
	default:
		fmt.Fprintf(&b, "%s is not announced (%s) since %s: %s.\n", n.VIP, n.Mode, since, output.Clean(n.Why))
	}
	if n.Services > 0 {
		fmt.Fprintf(&b, "This host serves %s of the VIP.\n", output.Plural(n.Services, "service"))
	} else {
		fmt.Fprintln(&b, "This host serves no service of the VIP.")
	}
	for _, p := range n.Places {
		fmt.Fprintf(&b, "%s: %s since %s", p.At, p.State, output.Since(p.Since, a.Now()))
		if p.Reason != "" {
			fmt.Fprintf(&b, ": %s", output.Clean(p.Reason))
		}
		fmt.Fprintln(&b)
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

func (a *app) nodeDrainCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "drain [NODE]",
		Short: "let other hosts announce the VIPs of a node",
		Long: `Moves the VIPs of a node to other hosts, before maintenance. Without NODE, it drains the host
of the agent. At layer 2, each VIP moves when its next host has announced it. With BGP,
routers are asked to use other paths, and the routes are withdrawn 2 s later. Clients that
still send to the node are served.

The drain survives restarts, of the node as well. It ends with "node undrain". A VIP that no
other host can announce is withdrawn.

With --wait, the command returns when the node announces nothing. If it still announces
something after --timeout, it exits with 3, and the drain continues.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete(onlyFirst(nodeNames)),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the node announces nothing")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		node, err := a.nodeOf(ctx, c, args)
		if err != nil {
			return err
		}
		d, err := c.SetNodeDrain(ctx, node, true)
		if err != nil {
			return notFound(err, "run ironvip node list")
		}
		a.printer().Say("node %s drains%s", node, stillAnnounced(d))
		if wait {
			if d, err = a.waitDrained(ctx, c, node); err != nil {
				return err
			}
		}
		return showChange(a, []v1.NodeDrain{d}, []string{node})
	})
	return cmd
}

func stillAnnounced(d v1.NodeDrain) string {
	switch {
	case d.VIPs == nil:
		return ""
	case *d.VIPs == 0:
		return ", and announces nothing"
	}
	return ", and still announces " + output.Plural(*d.VIPs, "VIP")
}

func (a *app) nodeUndrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "undrain [NODE]",
		Short:             "end the drain of a node",
		Long:              "Ends the drain of a node; without NODE, of the host of the agent. At layer 2, it takes its\nshare of the VIPs back after announce.settle.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete(onlyFirst(nodeNames)),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			node, err := a.nodeOf(ctx, c, args)
			if err != nil {
				return err
			}
			d, err := c.SetNodeDrain(ctx, node, false)
			if err != nil {
				return notFound(err, "run ironvip node list")
			}
			a.printer().Say("node %s is no longer drained", node)
			return showChange(a, []v1.NodeDrain{d}, []string{node})
		}),
	}
}

// nodeOf returns the node that a command names, or the agent's.
func (a *app) nodeOf(ctx context.Context, c *client.Client, args []string) (string, error) {
	if len(args) > 0 {
		return args[0], nil
	}
	s, err := c.Status(ctx)
	return s.Node, err
}

// drainPoll is the interval between looks at a draining node.
const drainPoll = 100 * time.Millisecond

// waitDrained waits until a node announces nothing, at most for --timeout.
func (a *app) waitDrained(ctx context.Context, c *client.Client, node string) (d v1.NodeDrain, err error) {
	begun := time.Now()
	err = poll(ctx, drainPoll, func() (done bool, err error) {
		d, err = c.NodeDrain(ctx, node)
		switch {
		case err != nil:
			return false, err
		case !d.Draining:
			return false, &failure{code: ExitDegraded, err: fmt.Errorf("the drain of node %s was ended meanwhile", node), hint: "run ironvip events"}
		case d.VIPs == nil:
			return false, &failure{code: ExitDegraded, err: errors.New("this host does not know what node " + node + " announces"), hint: "run the command on that node"}
		case *d.VIPs == 0:
			a.printer().Say("node %s announces nothing", node)
			return true, nil
		case time.Since(begun) >= a.timeout:
			return false, &failure{code: ExitDegraded, err: fmt.Errorf("node %s still announces %s after %s", node, output.Plural(*d.VIPs, "VIP"), a.timeout), hint: "run ironvip announce list on that node"}
		}
		return false, nil
	})
	return d, err
}

// nodeNames proposes the nodes of the fleet.
func nodeNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.Nodes(ctx)
	return output.Texts(list.Items, func(n v1.Node) cobra.Completion { return n.Name }), err
}
