package service

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

func (a *app) topCommand() *cobra.Command {
	var by client.Top
	var once bool
	orders := []string{"connections", "active", "in", "out", "bytes"}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "show the busiest services by connection rate or traffic, and refresh",
		Long: `Shows the services with the most new connections per second (CONN/S) through this host, or the most
of what --by names, every --interval until Ctrl-C. -o json prints each list as one line.`,
		Example: "  ironvip top --once --by bytes --limit 5 -o json",
	}
	command.ChoiceFlag(cmd, &by.By, "by", "sort by connections (per second), active (connections), in, out or bytes (per second)", orders...)
	flags := cmd.Flags()
	flags.DurationVarP(&by.Interval, "interval", "d", 5*time.Second, "between two reads of the counters: 1s to 1m")
	flags.IntVar(&by.Limit, "limit", 20, "services to show, at most 1000")
	flags.IntVarP(&by.Count, "count", "n", 0, "end after this many lists")
	flags.BoolVar(&once, "once", false, "print one list; the same as -n 1")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		if once {
			by.Count = 1
		}
		switch {
		case by.Count < 0:
			return command.Usage(cmd, "invalid --count %d: must not be negative", by.Count)
		case by.Interval < time.Second || by.Interval > time.Minute:
			return command.Usage(cmd, "invalid --interval %s: must be 1s to 1m", by.Interval)
		case by.Limit < 1 || by.Limit > 1000:
			return command.Usage(cmd, "invalid --limit %d: must be 1 to 1000", by.Limit)
		}
		p := a.Printer
		clear := ""
		if p.People() && by.Count != 1 && output.IsTerminal(a.Stdout) {
			clear = "\x1b[H\x1b[2J"
		}
		shown := 0
		return command.Follow(c.Top(ctx, by), func(t v1.Top) error {
			if shown++; shown > 1 && p.People() && clear == "" {
				fmt.Fprintln(a.Stdout)
			}
			view := topView(t)
			text := view.Text
			view.Text = func(p *output.Printer) string { return clear + text(p) }
			return p.Stream(view)
		})
	})
	return cmd
}

func topView(t v1.Top) output.View {
	grid := output.NewGrid("SERVICE", "CONN/S", "CONN", "IN/S", "OUT/S")
	for _, s := range t.Items {
		grid.Add(s.Service, perSecond(s.Connections), render.Count(s.Active), output.Bytes(uint64(s.In)), output.Bytes(uint64(s.Out)))
	}
	view := output.View{Data: t, Names: output.Texts(t.Items, func(s v1.TopService) string { return s.Service })}
	view.Text = func(p *output.Printer) string {
		return fmt.Sprintf("%s  %s: %s conn/s, %s open, %s/s in, %s/s out\n", t.Time.Local().Format(time.TimeOnly), output.Plural(t.Services, "service"),
			perSecond(t.Sum.Connections), render.Count(t.Sum.Active), output.Bytes(uint64(t.Sum.In)), output.Bytes(uint64(t.Sum.Out))) + grid.Text(p)
	}
	return view
}

// perSecond returns a rate: "0.4", "12", "1 204".
func perSecond(rate float64) string {
	if rate > 0 && rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return render.Count(uint64(rate + 0.5))
}
