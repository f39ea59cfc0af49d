package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var since uint64
	var service string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "show events: repaired drift, conflicts, drained backends",
		Long: `Shows the newest events, which the agent keeps in memory; its log has older ones. With
--follow it prints each new event until Ctrl-C.`,
		Example: "  ironvip events --follow\n  ironvip events --service web -o json",
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			if service != "" {
				key, err := parseKey(service)
				if err != nil {
					return err
				}
				service = key.String()
			}
			if follow {
				return a.followEvents(ctx, c, since, service)
			}
			list, err := c.Events(ctx, since)
			if err != nil {
				return err
			}
			kept := []v1.Event{}
			for _, e := range list.Items {
				if service == "" || e.Service == service {
					kept = append(kept, e)
				}
			}
			list.Items = kept
			if len(kept) == 0 && a.printer().People() {
				a.printer().Say("no events")
				return nil
			}
			return a.show(a.eventsView(list))
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "print new events as they happen")
	flags.Uint64Var(&since, "since", 0, "list events after the one with this id")
	flags.StringVar(&service, "service", "", "list events of this service")
	must(cmd.RegisterFlagCompletionFunc("since", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("service", a.complete(services)))
	return cmd
}

// followEvents prints events until the context ends, which is no error, or the connection to the
// agent ends.
func (a *app) followEvents(ctx context.Context, c *client.Client, since uint64, service string) error {
	p := a.printer()
	for e, err := range c.FollowEvents(ctx, since) {
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return err
		case service != "" && e.Service != service:
			continue
		}
		if err := p.Stream(a.eventView(e)); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) eventsView(list v1.EventList) output.View {
	return output.View{
		Data:  list,
		Names: output.NamesOf(list.Items, func(e v1.Event) string { return e.Kind }),
		Text: func(wide bool) string {
			grid := output.Grid{Header: []string{"WHEN", "KIND", "SERVICE", "OBJECT", "MESSAGE"}}
			if wide {
				grid.Header = append([]string{"ID", "TIME"}, grid.Header...)
			}
			for _, e := range list.Items {
				row := output.Row(output.Ago(e.Time, a.Now()), e.Kind, e.Service, e.Object, e.Message)
				if wide {
					row = append(output.Row(output.Count(int64(e.ID)), e.Time.Format(time.RFC3339)), row...)
				}
				grid.Add(row...)
			}
			return grid.Text(a.printer().ColorOut)
		},
	}
}

// eventView returns one line of --follow. It shows the clock time, because a relative time would
// always be "now" and soon be wrong.
func (a *app) eventView(e v1.Event) output.View {
	return output.View{
		Data:  e,
		Names: func() []string { return []string{e.Kind} },
		Text: func(bool) string {
			grid := output.Grid{}
			grid.Rows = append(grid.Rows, output.Row(e.Time.Format(time.RFC3339),
				joinNonEmpty("  ", e.Kind, e.Service, e.Object, e.Message)))
			return grid.Text(false)
		},
	}
}
