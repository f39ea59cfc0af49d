package cli

import (
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

// pollEvery is the polling interval of "status --wait".
const pollEvery = 250 * time.Millisecond

func (a *app) statusCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show node health: config, sources, pools, services, dataplane",
		Long: `Shows the health of this node: configuration, sources, pools, services and dataplane. The
exit code is 0 if all checks are ok and 3 otherwise.`,
		Example: "  ironvip status\n  ironvip status --wait --timeout 60s",
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			var status v1.NodeStatus
			var err error
			if wait {
				status, err = a.awaitWell(ctx, c)
			} else {
				status, err = c.Status(ctx)
			}
			if err != nil {
				return err
			}
			if err := a.show(a.statusView(status)); err != nil {
				return err
			}
			if status.Level != v1.LevelOK {
				return exit(ExitDegraded)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the agent answers and the node is healthy, at most --timeout")
	return cmd
}

// awaitWell polls until the node is healthy or the timeout has passed, and returns the last status.
// It returns an error only if there was no response.
func (a *app) awaitWell(ctx context.Context, c *client.Client) (v1.NodeStatus, error) {
	deadline, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last v1.NodeStatus
	var lastErr error
	answered := false
	for {
		status, err := c.Status(deadline)
		switch {
		case err == nil && status.Level == v1.LevelOK && status.Ready:
			return status, nil
		case err == nil:
			last, answered = status, true
		case client.IsCode(err, client.CodeNotPermitted):
			return last, err // waiting doesn't fix that
		case lastErr == nil || !errors.Is(err, context.DeadlineExceeded): // an earlier error explains more than a timeout
			lastErr = err
		}
		select {
		case <-deadline.Done():
			if ctx.Err() != nil {
				return last, context.Canceled
			}
			if answered {
				return last, nil
			}
			return last, lastErr
		case <-tick.C:
		}
	}
}

func (a *app) statusView(s v1.NodeStatus) output.View {
	return output.View{
		Data:  s,
		Names: func() []string { return []string{s.Node} },
		Text: func(bool) string {
			var b strings.Builder
			fmt.Fprintf(&b, "node  %s   ironvip %s   up %s\n", output.Clean(s.Node), output.Clean(s.Version),
				output.Span(time.Duration(s.Uptime)*time.Second))
			b.WriteString(a.checksText(s.Checks))
			b.WriteString(worries(s))
			return b.String()
		},
	}
}

// checksText returns a node's checks in the form of "status" and "doctor": one line per check,
// followed by one line for each of its problems.
func (a *app) checksText(checks []v1.Check) string {
	grid := output.Grid{Indent: strings.Repeat(" ", 6)}
	blank := output.Cell{Text: " "} // an empty one is shown as "-"
	for _, c := range checks {
		text := c.Message
		if c.Hint != "" {
			text += "     hint: " + c.Hint
		}
		grid.Add(levelCell(c.Level), output.Cell{Text: c.Name + " "}, output.Cell{Text: text})
		for _, p := range c.Problems {
			grid.Add(blank, blank, output.Cell{Text: "- " + problemLine(p)})
		}
		if c.More > 0 {
			grid.Add(blank, blank, output.Cell{Text: fmt.Sprintf("- and %d more", c.More)})
		}
	}
	return grid.Text(a.printer().ColorOut)
}

// worries counts the warnings and failures and names the command that shows details.
func worries(s v1.NodeStatus) string {
	warnings, failures := 0, 0
	for _, c := range s.Checks {
		switch c.Level {
		case v1.LevelWarn:
			warnings++
		case v1.LevelFail:
			failures++
		}
	}
	var parts []string
	if failures > 0 {
		parts = append(parts, output.Plural(failures, "failure"))
	}
	if warnings > 0 {
		parts = append(parts, output.Plural(warnings, "warning"))
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Join(parts, ", ") + "."
	if s.Next != "" {
		text += " Next: " + output.Clean(s.Next)
	}
	return text + "\n"
}

// levelCell returns the word for a level, padded to the widest.
func levelCell(level string) output.Cell {
	switch level {
	case v1.LevelOK:
		return output.Cell{Text: "OK  ", Style: output.Good}
	case v1.LevelWarn:
		return output.Cell{Text: "WARN", Style: output.Caution}
	case v1.LevelFail:
		return output.Cell{Text: "FAIL", Style: output.Bad}
	}
	return output.Cell{Text: level}
}

// show writes a view in the selected format.
func (a *app) show(v output.View) error { return a.printer().Show(v) }
