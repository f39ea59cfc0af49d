package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) configPlanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plan",
		Short: "show what a reload would change, without changing it",
		Long: `Asks the running agent what a reload of its configuration would change. The exit code is 0
without changes, 10 with changes, and 1 if the configuration is invalid.`,
		Args: cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			plan, err := c.Plan(ctx)
			if err != nil {
				return err
			}
			if err := a.show(a.planView(plan)); err != nil {
				return err
			}
			return planCode(plan)
		}),
	}
}

// planCode returns the exit code of a command that shows a plan.
func planCode(p v1.Plan) error {
	switch {
	case len(p.Problems) > 0:
		return exit(ExitError)
	case len(p.Changes) > 0:
		return exit(ExitChanges)
	}
	return nil
}

func (a *app) planView(plan v1.Plan) output.View {
	return output.View{
		Data:  plan,
		Names: output.NamesOf(plan.Changes, func(c v1.PlanChange) string { return c.Name }),
		Text: func(bool) string {
			var b strings.Builder
			b.WriteString(problemsText("", plan.Problems))
			grid := output.Grid{}
			for _, c := range plan.Changes {
				sign := actionCell(c.Action)
				// One cell, so that the name directly follows its kind.
				what := output.Cell{Text: fmt.Sprintf("%-7s %s", c.Kind, c.Name)}
				grid.Rows = append(grid.Rows, []output.Cell{sign, what, {Text: c.Detail}, {Text: c.Impact, Style: output.Faint}})
			}
			b.WriteString(grid.Text(a.printer().ColorOut))
			if len(plan.Changes) == 0 {
				b.WriteString("Plan: no changes\n")
			} else {
				fmt.Fprintf(&b, "Plan: %d add, %d change, %d remove\n", plan.Add, plan.Change, plan.Remove)
			}
			return b.String()
		},
	}
}

func (a *app) reloadCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "reload the configuration of the agent",
		Long: `Makes the agent reload its configuration. If it is invalid, nothing changes, the last good
configuration stays in effect and the errors are printed.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Bool("wait", true, "accepted for unit files; reload always waits until the agent has applied the configuration")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "the same as config plan")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		if dryRun {
			plan, err := c.Plan(ctx)
			if err != nil {
				return err
			}
			if err := a.show(a.planView(plan)); err != nil {
				return err
			}
			return planCode(plan)
		}
		result, err := c.Reload(ctx)
		if err != nil {
			return err
		}
		p := a.printer()
		p.Say("reloaded, revision %d%s", result.Revision, joinNonEmpty("", ": ", result.Message))
		for _, w := range result.Warnings {
			p.Label("warning", output.Caution, problemLine(w))
		}
		return showChange(a, []v1.ReloadResult{result}, nil)
	})
	return cmd
}
