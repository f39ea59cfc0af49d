package node

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
)

func (a *app) sourceListCommand() *cobra.Command {
	return command.List(a.App, "list sources, their sync state and problems", "", (*client.Client).Sources, a.sourceListView)
}

func (a *app) sourceListView(list v1.SourceList) output.View {
	grid := output.NewGrid("NAME", "TYPE", "STATE", "SERVICES", "LAST SYNC", "PROBLEMS", "+RESTARTS", "+REVISION")
	for _, s := range list.Items {
		grid.Add(s.Name, s.Type, sourceState(s), output.Count(int64(s.Services)),
			cmp.Or(a.Ago(s.LastSync), "never"), len(s.Problems), s.Restarts, s.Revision)
		if s.Stale != "" {
			grid.Footer += output.Clean(fmt.Sprintf("%s is stale: %s", s.Name, s.Stale)) + "\n"
		}
		for _, p := range s.Problems {
			grid.Footer += output.Clean(fmt.Sprintf("%s: %s", s.Name, render.Problem(p))) + "\n"
		}
	}
	return output.List(list, grid, "")
}

func sourceState(s v1.Source) output.Cell {
	switch {
	case s.Stale != "":
		return output.Cell{Text: "stale", Style: output.Caution}
	case !s.Synced:
		return output.Cell{Text: "syncing", Style: output.Caution}
	case s.Level == v1.LevelFail:
		return output.Cell{Text: "failed", Style: output.Bad}
	}
	return output.Cell{Text: "in sync", Style: output.Good}
}

func (a *app) sourceResyncCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "resync NAME",
		Short:             "resync a source",
		Long:              `Makes a source of this host read everything again; other hosts of the fleet don't.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(command.Sources)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			s, err := c.Resync(ctx, args[0])
			if err != nil {
				return err
			}
			a.Say("source %s resyncs (revision %d)", s.Name, s.Revision)
			return command.ShowChange(a.App, []v1.Source{s}, []string{s.Name})
		}),
	}
}
