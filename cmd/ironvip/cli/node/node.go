package node

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// nodeIsSilent is how long a node may be silent before it is highlighted.
const nodeIsSilent = 3 * time.Minute

func (a *app) nodeListCommand() *cobra.Command {
	return command.List(a.App, "list the nodes of the fleet with dataplane and lag", `Lists the nodes that share a store. Without a shared store, it lists the node that answers and the
peers of its announcer. A lost node was present and is silent; it stays listed for 72 h, or until
"node forget".

VIPS counts the announced VIPs, or names the last ones of a lost node. ELECTED is the leader, which
allocates addresses for new services. REVISION is the newest revision of the node's tables that its
dataplane has applied, and LAG the age of the oldest change not applied yet. Nodes with the same
INDEX (wide) have read the same state of the store.`, (*client.Client).Nodes, a.nodeListView)
}

func (a *app) nodeListView(list v1.NodeList) output.View {
	grid := output.NewGrid("NAME", "STATE", "ELECTED", "VERSION", "DATAPLANE", "REVISION", "LAG", "SERVICES", "PROBLEMS", "VIPS", "SEEN", "+FRONTENDS", "+INDEX", "+UP")
	for _, n := range list.Items {
		if n.Version == "" { // lost, or a peer without a shared store
			grid.Add(n.Name, stateOfNode(n), "", "", "", "", "", "", "", vipsOfNode(n), a.seen(n), "", "", "")
			continue
		}
		lag := output.Cell{Text: "none", Style: output.Good}
		if n.Lag > 0 {
			lag = output.Cell{Text: (time.Duration(n.Lag) * time.Millisecond).String(), Style: output.Caution}
		}
		problems := output.Cell{Text: strconv.Itoa(n.Problems), Style: output.Caution.If(n.Problems > 0)}
		grid.Add(n.Name, stateOfNode(n), output.When(n.Elected, "yes"), n.Version, n.Dataplane, n.Revision, lag, output.Count(int64(n.Services)), problems, vipsOfNode(n), a.seen(n),
			output.Count(int64(n.Frontends)), output.When(n.Index > 0, strconv.FormatUint(n.Index, 10)), a.Age(n.Started))
	}
	return output.List(list, grid, "")
}

func stateOfNode(n v1.Node) output.Cell {
	switch {
	case n.State == v1.NodeLost && n.Draining:
		return output.Cell{Text: "lost, draining", Style: output.Caution}
	case n.State == v1.NodeLost:
		return output.Cell{Text: n.State, Style: output.Bad}
	case n.Draining:
		return output.Cell{Text: "draining", Style: output.Caution}
	}
	return output.Cell{Text: n.State, Style: output.Good}
}

// shownVIPs bounds the VIPs of a lost node in the table.
const shownVIPs = 2

// vipsOfNode counts the VIPs that a node announces, and names those that a lost one announced.
func vipsOfNode(n v1.Node) string {
	switch {
	case n.VIPCount == nil:
		return ""
	case len(n.VIPs) == 0:
		return strconv.Itoa(*n.VIPCount)
	}
	shown := n.VIPs[:min(len(n.VIPs), shownVIPs)]
	more := *n.VIPCount - len(shown)
	return strings.Join(output.Texts(shown, netip.Addr.String), ", ") + output.When(more > 0, " and "+strconv.Itoa(more)+" more")
}

// seen returns when a node last reported.
func (a *app) seen(n v1.Node) output.Cell {
	switch {
	case n.Self:
		return output.Cell{Text: "this node"}
	case n.State == v1.NodeLost:
		return output.Cell{Text: a.Ago(n.Since), Style: output.Caution}
	}
	return output.Cell{Text: a.Ago(n.Seen), Style: output.Caution.If(n.Seen != nil && a.Now().Sub(*n.Seen) > nodeIsSilent)}
}

func (a *app) nodeForgetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "forget NODE",
		Short: "remove a lost node from the list",
		Long: `Removes a lost node that will not return, with its drain and its address for heartbeats. This
happens by itself after 72 h. A node that is present can't be forgotten (exit code 5). One that
returns is listed again.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(lostNodeNames)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			gone, err := c.ForgetNode(ctx, args[0])
			if err != nil {
				return command.NotFound(err, "run ironvip node list")
			}
			a.Say("node %s is forgotten", gone.Node)
			return command.ShowChange(a.App, []v1.NodeForgotten{gone}, []string{gone.Node})
		}),
	}
}

// lostNodeNames proposes the nodes that are lost.
func lostNodeNames(ctx context.Context, c *client.Client, _ []string) (out []cobra.Completion, err error) {
	list, err := c.Nodes(ctx)
	for _, n := range list.Items {
		if n.State == v1.NodeLost {
			out = append(out, n.Name)
		}
	}
	return out, err
}

func (a *app) nodeNewIDCommand() *cobra.Command {
	var req offline.StoreRequest
	cmd := &cobra.Command{
		Use:   "new-id",
		Short: "give this host a new host id, after it was copied from another host",
		Long: `Replaces the host id in this host's state file. In a fleet, an agent refuses to start while another
live host has the same id, as after the copy of a disk, a virtual machine or a state file. Run this
on the copy, with its agent stopped (exit code 5). If the other host has the same node.name, change
it in ironvip.toml too.`,
		Example: "  systemctl stop ironvip && ironvip node new-id && systemctl start ironvip",
		RunE: func(*cobra.Command, []string) error {
			change, err := a.NewIdentity(req)
			if err != nil {
				return err
			}
			grid := output.NewGrid("OLD ID", "NEW ID")
			grid.Add(change.Old, change.New)
			return a.Show(output.View{Data: change, Names: []string{change.New}, Text: grid.Text})
		},
	}
	command.StoreFlags(cmd, &req.Config, &req.StateDir, command.TheConfig)
	return cmd
}
