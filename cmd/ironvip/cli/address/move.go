package address

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

func (a *app) announceMoveCommand() *cobra.Command {
	var pin, wait bool
	cmd := &cobra.Command{
		Use:   "move VIP NODE",
		Short: "move a VIP to a host at layer 2",
		Long: `Lets a host announce a VIP at layer 2, before all else that ranks hosts. The present owner stops
when that host announces the VIP, so no new connection is lost. Without a fleet, run the command on
the host that is to have the VIP. With BGP and routes, there is nothing to move.

The move ends when the host fails, drains or is not eligible any more, with "announce unpin", with
a later move, or when no service holds the VIP any more. With --pin, it survives failures and
restarts: another host has the VIP only while the host can't.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.Complete(vipAndNode),
	}
	cmd.Flags().BoolVar(&pin, "pin", false, "keep the move when the host fails and returns")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the host announces the VIP (exit code 3 after --timeout)")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		n, err := c.MoveVIP(ctx, args[0], args[1], pin)
		if err != nil {
			return command.NotFound(err, "run ironvip announce list, and ironvip node list; without a fleet, run this command on the host that is to have the VIP")
		}
		a.Say("%s moves to %s%s", n.VIP, args[1], output.When(pin, ", and is pinned there"))
		if wait {
			if n, err = a.waitMoved(ctx, c, args[0], args[1]); err != nil {
				return err
			}
		}
		return command.ShowChange(a.App, []v1.Announcement{n}, []string{n.VIP.String()})
	})
	return cmd
}

// movePoll is the interval between looks at a VIP that moves.
const movePoll = 100 * time.Millisecond

// waitMoved waits until a host announces a VIP, at most for --timeout.
func (a *app) waitMoved(ctx context.Context, c *client.Client, vip, node string) (n v1.Announcement, err error) {
	begun := time.Now()
	err = command.Poll(ctx, movePoll, func() (done bool, err error) {
		switch n, err = c.Announcement(ctx, vip); {
		case err != nil:
			return false, err
		case n.Move == nil || n.Move.Node != node:
			return false, &command.Failure{Code: command.ExitDegraded, Err: errors.New("the move has ended: " + n.Why), Hint: "run ironvip announce explain " + vip}
		case n.Owner == node && (!n.Here || n.State == v1.AnnouncedHere):
			a.Say("%s announces %s", node, vip)
			return true, nil
		case time.Since(begun) >= a.Timeout:
			return false, &command.Failure{Code: command.ExitDegraded, Err: fmt.Errorf("%s does not announce %s after %s: %s", node, vip, a.Timeout, n.Why), Hint: "run ironvip announce explain " + vip}
		}
		return false, nil
	})
	return n, err
}

func (a *app) announceUnpinCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unpin VIP",
		Short: "end the move of a VIP",
		Long: `Ends the move of a VIP, also with --pin. After announce.settle, the VIP goes to the first host that
"announce explain" lists. Without a fleet, run the command on the host to which the VIP was moved.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(announcedVIPs)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := c.EndMove(ctx, args[0])
			if err != nil {
				return command.NotFound(err, "run ironvip announce list; without a fleet, run this command on the host to which the VIP was moved")
			}
			a.Say("the move of %s has ended", n.VIP)
			return command.ShowChange(a.App, []v1.Announcement{n}, []string{n.VIP.String()})
		}),
	}
}

// vipAndNode proposes a VIP, and then a host for it.
func vipAndNode(ctx context.Context, c *client.Client, args []string) ([]cobra.Completion, error) {
	if len(args) == 0 {
		return announcedVIPs(ctx, c, args)
	}
	list, err := c.Nodes(ctx)
	return output.Texts(list.Items, func(n v1.Node) cobra.Completion { return n.Name }), err
}
