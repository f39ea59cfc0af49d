package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) nodeDrainCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "drain [NODE]",
		Short: "let other hosts announce the VIPs of a node",
		Long: `Moves the VIPs of a node to other hosts before maintenance; without NODE, those of the agent's host.
At layer 2, each VIP moves when its next host has announced it. With BGP, routers are asked to use
other paths, and the routes are withdrawn 2 s later. Clients that still send to the node are served.
A VIP that no other host can announce is withdrawn. The drain survives restarts.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(nodeNames)),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the node announces nothing (exit code 3 after --timeout; the drain continues)")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		node, err := a.nodeOf(ctx, c, args)
		if err != nil {
			return err
		}
		d, err := c.SetNodeDrain(ctx, node, true)
		if err != nil {
			return command.NotFound(err, "run ironvip node list")
		}
		a.Say("node %s drains%s", node, stillAnnounced(d))
		if wait {
			if d, err = a.waitDrained(ctx, c, node); err != nil {
				return err
			}
		}
		return command.ShowChange(a.App, []v1.NodeDrain{d}, []string{node})
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
		Long:              "Ends the drain of a node; without NODE, of the agent's host. At layer 2, the node takes its share\nof the VIPs back after announce.settle.",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(nodeNames)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			node, err := a.nodeOf(ctx, c, args)
			if err != nil {
				return err
			}
			d, err := c.SetNodeDrain(ctx, node, false)
			if err != nil {
				return command.NotFound(err, "run ironvip node list")
			}
			a.Say("node %s is no longer drained", node)
			return command.ShowChange(a.App, []v1.NodeDrain{d}, []string{node})
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
	err = command.Poll(ctx, drainPoll, func() (done bool, err error) {
		d, err = c.NodeDrain(ctx, node)
		switch {
		case err != nil:
			return false, err
		case !d.Draining:
			return false, &command.Failure{Code: command.ExitDegraded, Err: fmt.Errorf("the drain of node %s was ended meanwhile", node), Hint: "run ironvip events"}
		case d.VIPs == nil:
			return false, &command.Failure{Code: command.ExitDegraded, Err: errors.New("this host does not know what node " + node + " announces"), Hint: "run the command on that node"}
		case *d.VIPs == 0:
			a.Say("node %s announces nothing", node)
			return true, nil
		case time.Since(begun) >= a.Timeout:
			return false, &command.Failure{Code: command.ExitDegraded, Err: fmt.Errorf("node %s still announces %s after %s", node, output.Plural(*d.VIPs, "VIP"), a.Timeout), Hint: "run ironvip announce list on that node"}
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
