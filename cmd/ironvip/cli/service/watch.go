package service

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

// alignedRows is the number of services at the beginning whose lines are aligned with each other.
const alignedRows = 500

func (a *app) serviceWatchCommand() *cobra.Command {
	var by client.List
	var onlyChanges bool
	cmd := &cobra.Command{
		Use:   "watch [NAME]...",
		Short: "print services, and again whenever one changes",
		Long: `Prints the services, and then a line for each change, until Ctrl-C. A deleted service has the state
"deleted". TIME is when the line was received. With -o json, a line is {"service": {...}} or
{"deleted": "NAME"}, and {"synced": true} follows the first services.`,
		Example:           "  ironvip service watch web --only-changes -o json",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.Complete(command.Services),
	}
	flags := cmd.Flags()
	flags.BoolVar(&onlyChanges, "only-changes", false, "don't print the services as they are at the beginning")
	flags.StringVar(&by.Source, "source", "", "follow services of this source")
	flags.StringArrayVarP(&by.Labels, "label", "l", nil, "follow services with this label: KEY or KEY=VALUE (repeatable)")
	command.Must(cmd.RegisterFlagCompletionFunc("source", a.Complete(command.Sources)))
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		keys, err := command.ParseKeys(args)
		if err != nil {
			return err
		}
		w := serviceWatch{a: a, onlyChanges: onlyChanges, names: make([]string, len(keys)), printed: map[string][]output.Cell{},
			grid: output.NewGrid("TIME", "NAME", "VIP", "PORTS", "BACKENDS", "STATE", "SOURCE", "+DNS NAME", "+POOL", "+REVISION", "+SUMMARY")}
		for i, key := range keys {
			w.names[i] = key.String()
		}
		return command.Follow(c.WatchServices(ctx, by, w.names...), w.take)
	})
	return cmd
}

// serviceWatch prints changes of services.
type serviceWatch struct {
	a           *app
	onlyChanges bool
	names       []string
	synced      bool
	grid        *output.Grid             // of the next lines
	printed     map[string][]output.Cell // the last line of each service, without the time
}

func (w *serviceWatch) take(c v1.ServiceChange) error {
	p := w.a.Printer
	switch {
	case c.Synced:
		w.synced = true
		for _, name := range w.names {
			if w.printed[name] == nil {
				p.Say("service %s does not exist: waiting for it", name)
			}
		}
		if len(w.names) == 0 && len(w.printed) == 0 {
			p.Say("no matching services yet: waiting for one")
		}
		if p.People() {
			return p.StreamRows(w.grid)
		}
	case c.Deleted != "":
		delete(w.printed, c.Deleted)
		w.grid.Add(w.a.Now().Format(time.TimeOnly), c.Deleted, "", "", "", output.Cell{Text: "deleted", Style: output.Bad})
	case c.Service != nil:
		s, st := c.Service, c.Service.Status
		name := command.ServiceName(*s)
		w.grid.Add(w.a.Now().Format(time.TimeOnly), name, render.CommaList(st.VIPs), ports(st.Ports), backendCount(st), serviceState(st), s.Source, firstName(st), st.Pool, s.Revision, st.Summary)
		line := w.grid.Rows[len(w.grid.Rows)-1][1:]
		last := w.printed[name]
		w.printed[name] = line
		if p.People() && (w.same(last, line) || w.onlyChanges && !w.synced) {
			w.grid.Rows = w.grid.Rows[:len(w.grid.Rows)-1]
		}
	}
	if p.People() {
		if !w.synced && len(w.grid.Rows) < alignedRows { // the first lines are aligned with each other
			return nil
		}
		return p.StreamRows(w.grid)
	}
	w.grid.Rows = nil
	if w.onlyChanges && (!w.synced || c.Synced) {
		return nil
	}
	view := output.View{Data: c}
	if c.Service != nil {
		view.Names = []string{command.ServiceName(*c.Service)}
	} else if c.Deleted != "" {
		view.Names = []string{c.Deleted}
	}
	return p.Stream(view)
}

// same reports whether the shown cells of two lines are equal.
func (w *serviceWatch) same(a, b []output.Cell) bool {
	if w.a.Format == output.Wide {
		return reflect.DeepEqual(a, b)
	}
	const shown = 6 // the columns of a table that is not wide, without the time
	return len(a) >= shown && slices.Equal(a[:shown], b[:shown])
}
