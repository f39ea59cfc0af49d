package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// dataplaneDoc is the document of "dataplane show". It combines two API responses.
type dataplaneDoc struct {
	Dataplane v1.Dataplane  `json:"dataplane"`
	Frontends []v1.Frontend `json:"frontends"`
}

func (a *app) dataplaneShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show [SERVICE]",
		Short:             "show the dataplane and all desired frontends",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.complete(first(1, services)),
		RunE: a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
			service := ""
			if len(args) == 1 {
				key, err := parseKey(args[0])
				if err != nil {
					return err
				}
				service = key.String()
			}
			plane, err := c.Dataplane(ctx)
			if err != nil {
				return err
			}
			doc := dataplaneDoc{Dataplane: plane, Frontends: []v1.Frontend{}}
			for cursor := ""; ; {
				page, err := c.Frontends(ctx, service, cursor, 0)
				if err != nil {
					return err
				}
				doc.Frontends = append(doc.Frontends, page.Items...)
				if cursor = page.Next; cursor == "" {
					break
				}
			}
			return a.show(a.dataplaneView(doc))
		}),
	}
	return cmd
}

func (a *app) dataplaneView(d dataplaneDoc) output.View {
	return output.View{
		Data:  d,
		Names: output.NamesOf(d.Frontends, frontendName),
		Text: func(wide bool) string {
			p, plane := a.printer(), d.Dataplane
			var b strings.Builder
			level := levelCell(plane.Level)
			fmt.Fprintf(&b, "%s  %s: %s\n", p.Paint(level.Text, level.Style), output.Clean(plane.Mode), output.Clean(plane.Summary))
			facts := output.Grid{Indent: "      "}
			facts.Add(output.Row("chosen", plane.Reason)...)
			facts.Add(output.Row("revision", fmt.Sprintf("%d applied of %d", plane.AppliedRevision, plane.DesiredRevision))...)
			resync := fmt.Sprintf("%s since the start", output.Plural(int(plane.Repairs), "repair"))
			if plane.LastResync != nil {
				resync += ", last read " + output.Ago(*plane.LastResync, a.Now())
			}
			facts.Add(output.Row("drift", resync)...)
			b.WriteString(facts.Text(p.ColorOut))
			for _, f := range plane.Findings {
				c := levelCell(f.Level)
				fmt.Fprintf(&b, "%s  %s\n", p.Paint(c.Text, c.Style), output.Clean(joinNonEmpty("    fix: ", f.Message, f.Fix)))
			}
			b.WriteString(problemsText("      ", plane.Problems))
			if len(d.Frontends) == 0 {
				return b.String()
			}
			b.WriteString("\n" + a.frontendsText(d.Frontends, wide))
			return b.String()
		},
	}
}

// fewBackends is the number of backends per frontend in a table; -o wide shows all.
const fewBackends = 3

func (a *app) frontendsText(frontends []v1.Frontend, wide bool) string {
	grid := output.Grid{Header: []string{"FRONTEND", "SERVICE", "KIND", "SCHEDULER", "BACKENDS"}}
	if wide {
		grid.Header = append(grid.Header, "FORWARD", "AFFINITY", "MASQUERADE", "REVISION")
	}
	grid.Header = append(grid.Header, "STATE") // last: a problem's text is long
	for _, f := range frontends {
		backends := make([]string, len(f.Backends))
		for i, e := range f.Backends {
			backends[i] = e.Address + "=" + strconv.FormatUint(uint64(e.Weight), 10)
			if e.LeavingAt != nil {
				backends[i] = e.Address + "=leaving"
			}
		}
		state := output.Cell{Text: "pending", Style: output.Caution}
		switch {
		case f.Problem != nil:
			state = output.Cell{Text: "failed: " + problemLine(*f.Problem), Style: output.Bad}
		case f.Applied && f.Warning != nil:
			state = output.Cell{Text: "applied, contested: " + problemLine(*f.Warning), Style: output.Caution}
		case f.Applied:
			state = output.Cell{Text: "applied", Style: output.Good}
		}
		shown := strings.Join(backends, " ")
		if !wide && len(backends) > fewBackends {
			shown = strings.Join(backends[:fewBackends], " ") + fmt.Sprintf(" and %d more", len(backends)-fewBackends)
		}
		row := []output.Cell{{Text: frontendName(f)}, {Text: f.Service}, {Text: f.Kind},
			{Text: joinNonEmpty(" ", f.Scheduler, strings.Join(f.Flags, " "))}, {Text: shown}}
		if wide {
			row = append(row, output.Row(f.Forward, f.Affinity, f.Masquerade, strconv.FormatUint(f.Revision, 10))...)
		}
		grid.Add(append(row, state)...)
	}
	return grid.Text(a.printer().ColorOut)
}

func frontendName(f v1.Frontend) string {
	return joinNonEmpty("+", f.Address+"/"+f.Protocol, f.Audience)
}

func (a *app) dataplaneDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff",
		Short: "compare the dataplane with the desired state",
		Long: `Reads the kernel (or the userspace dataplane) and compares it with the desired state. The
exit code is 0 without differences and 10 with differences.`,
		Args: cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			diff, err := c.Diff(ctx)
			if err != nil {
				return err
			}
			if diff.InSync && a.printer().People() {
				a.printer().Say("no differences")
				return nil
			}
			if err := a.show(a.diffView(diff)); err != nil {
				return err
			}
			if !diff.InSync {
				return exit(ExitChanges)
			}
			return nil
		}),
	}
}

func (a *app) diffView(d v1.DataplaneDiff) output.View {
	return output.View{
		Data:  d,
		Names: output.NamesOf(d.Items, func(e v1.DiffEntry) string { return e.Frontend }),
		Text: func(bool) string {
			grid := output.Grid{}
			for _, e := range d.Items {
				details := strings.Join(e.Details, "; ")
				grid.Add(actionCell(e.Action), output.Cell{Text: e.Frontend}, output.Cell{Text: e.Service}, output.Cell{Text: details})
			}
			return grid.Text(a.printer().ColorOut) + output.Plural(len(d.Items), "difference") + ". They are repaired at the next resync.\n"
		},
	}
}

// actionCell returns the sign of a change, as in a plan.
func actionCell(action string) output.Cell {
	switch action {
	case v1.ActionAdd:
		return output.Cell{Text: "+", Style: output.Good}
	case v1.ActionRemove:
		return output.Cell{Text: "-", Style: output.Bad}
	case v1.ActionChange, v1.ActionRepair:
		return output.Cell{Text: "~", Style: output.Caution}
	}
	return output.Cell{Text: action}
}
