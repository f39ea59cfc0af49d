package node

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// fleetStatus is the document of "fleet status".
type fleetStatus struct {
	Store v1.Check  `json:"store" doc:"the shared store, as this node sees it"`
	Nodes []v1.Node `json:"nodes"`
}

func (a *app) fleetStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show the fleet's store and its members, as this node sees them",
		Long: `Shows whether this node is in touch with the shared store (ipam.store), what is wrong with the
store's content, and the members of the fleet. INDEX is the last write of the store that a member
had read at its last report. The exit code is 3 if the store has a problem, a member is lost, or no
member is elected.`,
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			status, err := c.Status(ctx)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(status.Checks, func(c v1.Check) bool { return c.Name == "store" })
			if i < 0 {
				return &command.Failure{Code: command.ExitNotFound, Err: errors.New("this node has no shared store"),
					Hint: "see the nodes that it knows: ironvip node list; a fleet has ipam.store = \"consul\" or \"etcd\""}
			}
			doc := fleetStatus{Store: status.Checks[i]}
			list, err := c.Nodes(ctx)
			if err != nil && doc.Store.Level == v1.LevelOK {
				return err
			}
			doc.Nodes = list.Items
			lost := func(n v1.Node) bool { return n.State == v1.NodeLost }
			degraded := doc.Store.Level != v1.LevelOK || slices.ContainsFunc(doc.Nodes, lost) || !slices.ContainsFunc(doc.Nodes, func(n v1.Node) bool { return n.Elected })
			return cmp.Or(a.Show(a.fleetView(doc)), command.ExitIf(degraded, command.ExitDegraded))
		}),
	}
}

func (a *app) fleetView(f fleetStatus) output.View {
	grid := output.NewGrid("NAME", "STATE", "ELECTED", "VERSION", "INDEX", "PROBLEMS", "SEEN")
	for _, n := range f.Nodes {
		grid.Add(n.Name, stateOfNode(n), output.When(n.Elected, "yes"), n.Version, output.When(n.Index > 0, strconv.FormatUint(n.Index, 10)),
			output.When(n.Version != "", strconv.Itoa(n.Problems)), a.seen(n))
	}
	return output.View{
		Data:  f,
		Names: output.Texts(f.Nodes, func(n v1.Node) string { return n.Name }),
		Text: func(p *output.Printer) string {
			text := checksText(p, []v1.Check{f.Store})
			if len(f.Nodes) > 0 {
				text += "\n" + grid.Text(p)
			}
			return text
		},
	}
}
