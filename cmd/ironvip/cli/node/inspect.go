package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var since uint64
	var service, object string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show events: repaired drift, conflicts, drained backends",
		Long: `Shows the newest events, which the agent keeps in memory; its log has older ones. Of more than four
with the same kind, service and object, it keeps the latest four and the number of all.

The events of an address or a node port say which services got it and gave it up, and when it was
announced.`,
		Example: "  ironvip events --follow --object 192.0.2.10",
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			if err := command.ExpandKey(&service); err != nil {
				return err
			}
			selected := func(e v1.Event) bool {
				return (service == "" || e.Service == service) && (object == "" || e.Object == object || e.Object == "node port "+object)
			}
			if follow {
				return command.Follow(c.FollowEvents(ctx, since), func(e v1.Event) error {
					if !selected(e) {
						return nil
					}
					return a.Stream(eventView(e))
				})
			}
			list, err := c.Events(ctx, since)
			if err != nil {
				return err
			}
			list.Items = slices.DeleteFunc(list.Items, func(e v1.Event) bool { return !selected(e) })
			return a.Show(a.eventsView(list))
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "print new events as they happen")
	flags.Uint64Var(&since, "since", 0, "list events after the one with this id")
	flags.StringVar(&service, "service", "", "list events of this service")
	flags.StringVar(&object, "object", "", "list events of this object: an address, or a node port as 30080/tcp")
	command.Must(cmd.RegisterFlagCompletionFunc("service", a.Complete(command.Services)))
	command.Must(cmd.RegisterFlagCompletionFunc("object", a.Complete(command.Addresses)))
	return cmd
}

func (a *app) eventsView(list v1.EventList) output.View {
	grid := output.NewGrid("+ID", "+TIME", "WHEN", "KIND", "SERVICE", "OBJECT", "MESSAGE")
	for _, e := range list.Items {
		grid.Add(output.Count(int64(e.ID)), e.Time.Format(time.RFC3339), output.Ago(e.Time, a.Now()), e.Kind, e.Service, e.Object, eventMessage(e))
	}
	return output.List(list, grid, "no events", 3)
}

// eventMessage returns the message of an event, and how often it happened if not all are listed.
func eventMessage(e v1.Event) string {
	if e.Count == 0 || e.First == nil {
		return e.Message
	}
	return fmt.Sprintf("%s (%s times in %s)", e.Message, output.Count(int64(e.Count)), output.Age(e.Time.Sub(*e.First)))
}

// eventView returns one line of --follow. It shows the clock time, because a relative time would
// always be "now" and soon be wrong.
func eventView(e v1.Event) output.View {
	grid := &output.Grid{}
	grid.Add(e.Time.Format(time.RFC3339), output.Join("  ", e.Kind, e.Service, e.Object, e.Message))
	return output.View{Data: e, Names: []string{e.Kind}, Text: grid.Text}
}

func (a *app) debugTableCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "table [NAME]",
		Short: "print a table of the pipeline, or list the tables",
		Long: `Prints the rows of one table of the agent's pipeline, sorted, without revisions and times. Without
NAME, it lists the tables. The columns may change between versions.`,
		Example:           "  ironvip debug table frontends",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(tableNames)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				list, err := c.DebugTables(ctx)
				if err != nil {
					return err
				}
				return a.Show(debugTablesView(list))
			}
			t, err := c.DebugTable(ctx, args[0])
			if err != nil {
				return err
			}
			return a.Show(debugTableView(t))
		}),
	}
}

func debugTablesView(list v1.DebugTableList) output.View {
	grid := output.NewGrid("TABLE", "ROWS", "REVISION")
	for _, t := range list.Items {
		grid.Add(t.Name, t.Rows, t.Revision)
	}
	return output.List(list, grid, "")
}

func debugTableView(t v1.DebugTable) output.View {
	grid := &output.Grid{}
	for _, c := range t.Columns {
		grid.Header = append(grid.Header, strings.ToUpper(strings.ReplaceAll(c, "_", " ")))
	}
	for _, row := range t.Rows {
		values := make([]any, len(row))
		for i, text := range row {
			values[i] = text
		}
		grid.Add(values...)
	}
	return output.List(t, grid, "")
}

// tableNames proposes the names of the agent's tables.
func tableNames(ctx context.Context, c *client.Client, _ []string) ([]cobra.Completion, error) {
	list, err := c.DebugTables(ctx)
	return output.Texts(list.Items, func(t v1.DebugTableInfo) cobra.Completion { return t.Name }), err
}
