package dataplane

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/configs"
)

func (a *app) dataplaneSwitchCommand() *cobra.Command {
	var plan, force, noWait bool
	cmd := &cobra.Command{
		Use:   "switch " + strings.Join(configs.Modes(), "|"),
		Short: "move this host to another dataplane",
		Long: `Lets another dataplane serve while the agent goes on, and waits until it serves all clients; until
then, the present one does. dataplane.mode must be "auto", which keeps the dataplane after a
restart, or the new one. A switch that is refused has exit code 5, one that fails 1.

With --plan, the exit code is 10 if the dataplane would change, and 1 if it can't, or if the host
runs this one but dataplane.mode names another one for the next start.`,
		Example:   "  ironvip dataplane switch nft --plan",
		Args:      cobra.ExactArgs(1),
		ValidArgs: configs.Modes(),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			p, err := c.Switch(ctx, args[0], force, plan)
			if err != nil {
				return err
			}
			if !plan && p.Changes && !noWait {
				if err := a.awaitSwitch(ctx, c, p.To); err != nil {
					return err
				}
			}
			if err := a.Show(switchView(p)); err != nil {
				return err
			}
			if len(p.Problems) == 0 && !plan && p.Changes && !noWait {
				a.Say("%s serves; connections that are left: ironvip status", p.To)
			}
			return cmp.Or(command.ExitIf(len(p.Problems) > 0, command.ExitError), command.ExitIf(plan && p.Changes, command.ExitChanges))
		}),
	}
	cmd.Flags().BoolVar(&plan, "plan", false, "change nothing; show what happens to open connections and what services would lose")
	cmd.Flags().BoolVar(&force, "force", false, "switch although the new dataplane does not support what services use")
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "don't wait until the new dataplane serves")
	return cmd
}

// switchPoll is the interval at which the progress of a switch is asked for.
const switchPoll = 200 * time.Millisecond

// awaitSwitch waits until a dataplane serves, or the agent goes on with the one before. It fails if nobody answers for
// --timeout.
func (a *app) awaitSwitch(ctx context.Context, c *client.Client, to string) error {
	answered := time.Now()
	return command.Poll(ctx, switchPoll, func() (done bool, err error) {
		now, err := c.Dataplane(ctx)
		if err == nil {
			answered = time.Now()
		}
		switch {
		case command.IsRefused(err):
			return false, fmt.Errorf("not known whether %s serves: %w", to, err)
		case err != nil && time.Since(answered) > a.Timeout:
			return false, fmt.Errorf("%s does not serve, and no agent has answered for %s: %w", to, a.Timeout, err)
		case err != nil || now.Switching != "": // between both processes, nobody may answer
		case now.Mode == to && now.Ready:
			return true, nil
		case now.Mode != to:
			why := "see the agent's log"
			if status, err := c.Status(ctx); err == nil {
				for _, check := range status.Checks {
					if check.Name == "switch" {
						why = check.Message
					}
				}
			}
			return false, fmt.Errorf("not moved to %s, %s goes on: %s", to, now.Mode, why)
		}
		return false, nil
	})
}

func switchView(s v1.SwitchPlan) output.View {
	return output.View{
		Data:   s,
		Names:  []string{s.To},
		Errors: output.Texts(s.Problems, render.Problem),
		Text: func(p *output.Printer) string {
			if !s.Changes && len(s.Problems) > 0 {
				return fmt.Sprintf("this host runs %s, but the configuration does not keep it:\n%s", s.To, render.Problems("  ", s.Problems))
			}
			if !s.Changes {
				return fmt.Sprintf("this host runs %s\n", s.To)
			}
			var b strings.Builder
			fmt.Fprintf(&b, "%s -> %s\n", s.From, s.To)
			grid := &output.Grid{}
			for _, c := range s.Connections {
				then := map[string]string{
					v1.SwitchContinues: fmt.Sprintf("continue until they end, for %s at most", time.Duration(s.HardStopAfter)*time.Second),
					v1.SwitchMoves:     "move with their next datagram",
					v1.SwitchEnds:      "end at once",
				}[c.Then]
				style := output.Plain
				if c.Then == v1.SwitchEnds {
					style = output.Bad
				}
				grid.Add(output.Plural(c.Connections, "connection"), c.Protocol, c.State, output.Cell{Text: then, Style: style})
			}
			b.WriteString(grid.Text(p))
			switch {
			case !s.Counted:
				b.WriteString("the open connections are not known yet\n")
			case len(s.Connections) == 0:
				fmt.Fprintf(&b, "%s has no open connections\n", s.From)
			}
			if len(s.Refused) > 0 {
				fmt.Fprintf(&b, "%s does not support what services use:\n%s", s.To, render.Problems("  ", s.Refused))
			}
			if len(s.Problems) > 0 {
				b.WriteString("not possible:\n" + render.Problems("  ", s.Problems))
			}
			return b.String()
		},
	}
}
