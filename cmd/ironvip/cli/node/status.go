package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

// pollEvery is the polling interval of "status --wait".
const pollEvery = 250 * time.Millisecond

func (a *app) statusCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "show node health: config, sources, pools, services, dataplane",
		Long: `Shows the health of this node: configuration, sources, pools, services and dataplane. The exit code
is 3 unless all checks are ok.`,
		Example: "  ironvip status --wait --timeout 60s",
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			var status v1.NodeStatus
			var err error
			if wait {
				status, err = a.awaitHealthy(ctx, c)
			} else {
				status, err = c.Status(ctx)
			}
			if err != nil {
				return err
			}
			return cmp.Or(a.Show(statusView(status)), command.ExitIf(status.Level != v1.LevelOK, command.ExitDegraded))
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the agent answers and the node is healthy, at most --timeout")
	return cmd
}

// awaitHealthy polls until the node is healthy or the timeout has passed, and returns the last
// status. It returns an error only if there was no response.
func (a *app) awaitHealthy(ctx context.Context, c *client.Client) (v1.NodeStatus, error) {
	deadline, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	var last v1.NodeStatus
	var lastErr error
	answered := false
	err := command.Poll(deadline, pollEvery, func() (bool, error) {
		status, err := c.Status(deadline)
		switch {
		case err == nil:
			last, answered = status, true
			return status.Level == v1.LevelOK && status.Ready, nil
		case command.IsRefused(err):
			return false, err
		case lastErr == nil || !errors.Is(err, context.DeadlineExceeded): // an earlier error explains more than a timeout
			lastErr = err
		}
		return false, nil
	})
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
		return last, err
	case answered:
		return last, nil
	}
	return last, lastErr
}

func statusView(s v1.NodeStatus) output.View {
	return output.View{
		Data:  s,
		Names: []string{s.Node},
		Text: func(p *output.Printer) string {
			return fmt.Sprintf("node  %s   ironvip %s   up %s\n", output.Clean(s.Node), output.Clean(s.Version),
				output.Span(time.Duration(s.Uptime)*time.Second)) + checksText(p, s.Checks) + levelCounts(s)
		},
	}
}

// checksText returns a node's checks: one line per check, followed by one line for each of its
// problems.
func checksText(p *output.Printer, checks []v1.Check) string {
	grid := output.Grid{Indent: strings.Repeat(" ", 6)}
	for _, c := range checks {
		grid.AddSparse(render.Level(c.Level), c.Name+" ", output.Join("     hint: ", c.Message, c.Hint))
		for _, problem := range render.FurtherProblems(c) {
			grid.AddSparse("", "", "- "+render.Problem(problem))
		}
		if c.More > 0 {
			grid.AddSparse("", "", fmt.Sprintf("- and %d more", c.More))
		}
	}
	return grid.Text(p)
}

// levelCounts counts the warnings and failures and names the command that shows details.
func levelCounts(s v1.NodeStatus) string {
	n := map[string]int{}
	for _, c := range s.Checks {
		n[c.Level]++
	}
	counts := output.Join(", ", output.When(n[v1.LevelFail] > 0, output.Plural(n[v1.LevelFail], "failure")), output.When(n[v1.LevelWarn] > 0, output.Plural(n[v1.LevelWarn], "warning")))
	return output.When(counts != "", counts+"."+output.When(s.Next != "", " Next: "+output.Clean(s.Next))+"\n")
}

// versionDoc is the document of "version".
type versionDoc struct {
	Version string        `json:"version"`
	Go      string        `json:"go"`
	OS      string        `json:"os"`
	Arch    string        `json:"arch"`
	Agent   *agentVersion `json:"agent,omitempty"` // if one answers
}

type agentVersion struct {
	Node    string `json:"node"`
	Version string `json:"version"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "show the version of this program and of the running agent",
		RunE: func(cmd *cobra.Command, _ []string) error {
			doc := versionDoc{Version: a.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			c, err := a.ClientWithin(min(a.Timeout, time.Second))
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
			defer cancel()
			if status, err := c.Status(ctx); err == nil {
				doc.Agent = &agentVersion{Node: status.Node, Version: status.Version}
			} else if a.Verbose {
				a.Say("%v", err)
			}
			return a.Show(versionView(doc))
		},
	}
}

func versionView(doc versionDoc) output.View {
	return output.View{
		Data:  doc,
		Names: []string{doc.Version},
		Text: func(*output.Printer) string {
			text := fmt.Sprintf("ironvip %s (%s, %s/%s)\n", doc.Version, doc.Go, doc.OS, doc.Arch)
			if doc.Agent != nil {
				text += output.Clean(fmt.Sprintf("agent   %s on %s", doc.Agent.Version, doc.Agent.Node)) + "\n"
			}
			return text
		},
	}
}
