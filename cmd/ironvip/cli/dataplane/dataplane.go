// Package dataplane has the commands about the dataplane of a host.
//
// The commands show what the dataplane of a running agent does, compare it with the desired state, repair it, and move the
// host to another dataplane. "dataplane clean" needs no agent: package agent removes what one left behind.
package dataplane

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/internal/text"
)

// Clean is offline.Clean, or what takes its place in tests.
type Clean func(context.Context, offline.CleanRequest) (offline.CleanResult, error)

// app has the commands as methods.
type app struct{ *command.App }

// Command returns the group of commands.
func Command(frame *command.App, clean Clean) *cobra.Command {
	a := &app{frame}
	return command.Group("dataplane", "inspect the dataplane", a.dataplaneShowCommand(), a.dataplaneDiffCommand(), a.dataplaneRepairCommand(),
		a.dataplaneConnectionsCommand(), a.dataplaneSwitchCommand(), a.dataplaneCleanCommand(clean))
}

// dataplaneDoc is the document of "dataplane show". It combines two API responses.
type dataplaneDoc struct {
	Dataplane v1.Dataplane  `json:"dataplane"`
	Frontends []v1.Frontend `json:"frontends"`
}

func (a *app) dataplaneShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show [SERVICE]",
		Short:             "show the dataplane and all desired frontends",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.Complete(command.OnlyFirst(command.Services)),
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
			service := command.First(args, "")
			if err := command.ExpandKey(&service); err != nil {
				return err
			}
			plane, err := c.Dataplane(ctx)
			if err != nil {
				return err
			}
			frontends, err := c.Frontends(ctx, service)
			if err != nil {
				return err
			}
			return a.Show(a.dataplaneView(dataplaneDoc{Dataplane: plane, Frontends: frontends.Items}))
		}),
	}
}

func (a *app) dataplaneView(d dataplaneDoc) output.View {
	return output.View{
		Data:  d,
		Names: output.Texts(d.Frontends, frontendName),
		Text: func(p *output.Printer) string {
			plane := d.Dataplane
			var b strings.Builder
			fmt.Fprintf(&b, "%s  %s: %s\n", render.LevelWord(p, plane.Level), output.Clean(plane.Mode), output.Clean(plane.Summary))
			facts := output.Grid{Indent: "      "}
			facts.Add("chosen", plane.Reason)
			facts.Add("revision", fmt.Sprintf("%d applied of %d", plane.AppliedRevision, plane.DesiredRevision))
			resync := fmt.Sprintf("%s since the start", output.Plural(int(plane.Repairs), "repair"))
			if plane.LastResync != nil {
				resync += ", last read " + a.Ago(plane.LastResync)
			}
			facts.Add("drift", resync)
			for _, f := range plane.Leaving {
				facts.Add("leaving", a.leavingText(f))
			}
			b.WriteString(facts.Text(p))
			for _, f := range plane.Findings {
				fmt.Fprintf(&b, "%s  %s\n", render.LevelWord(p, f.Level), output.Clean(output.Join("    fix: ", f.Message, f.Fix)))
			}
			b.WriteString(render.Problems("      ", plane.Problems))
			if len(d.Frontends) > 0 {
				b.WriteString("\n" + frontendsText(p, d.Frontends))
			}
			return b.String()
		},
	}
}

// leavingText describes a dataplane that was replaced.
func (a *app) leavingText(f v1.LeavingDataplane) string {
	if f.Problem != "" {
		return f.Mode + ": " + f.Problem
	}
	return output.Join(", ends ", f.Mode+" drains: "+output.Plural(f.Connections, "connection"), a.Ago(f.Until)+" at the latest")
}

// fewBackends is the number of backends per frontend in a table; -o wide shows all.
const fewBackends = 3

func frontendsText(p *output.Printer, frontends []v1.Frontend) string {
	// STATE is the last column, because a problem's text is long.
	grid := output.NewGrid("FRONTEND", "SERVICE", "KIND", "SCHEDULER", "BACKENDS", "+FORWARD", "+AFFINITY", "+MASQUERADE", "+REVISION", "STATE")
	for _, f := range frontends {
		backends := output.Texts(f.Backends, func(e v1.Endpoint) string {
			if e.LeavingAt != nil {
				return e.Address + "=leaving"
			}
			return fmt.Sprintf("%s=%d", e.Address, e.Weight)
		})
		shown := strings.Join(backends, " ")
		if p.Format != output.Wide {
			shown = text.First(fewBackends, backends, " ")
		}
		state := output.Cell{Text: "pending", Style: output.Caution}
		switch {
		case f.Problem != nil:
			state = output.Cell{Text: "failed: " + render.Problem(*f.Problem), Style: output.Bad}
		case f.Applied && f.Warning != nil:
			state = output.Cell{Text: "applied, contested: " + render.Problem(*f.Warning), Style: output.Caution}
		case f.Applied:
			state = output.Cell{Text: "applied", Style: output.Good}
		}
		grid.Add(frontendName(f), f.Service, f.Kind, output.Join(" ", f.Scheduler, strings.Join(f.Flags, " ")), shown,
			f.Forward, f.Affinity, f.Masquerade, f.Revision, state)
	}
	return grid.Text(p)
}

func frontendName(f v1.Frontend) string {
	return output.Join("+", f.Address+"/"+f.Protocol, f.Audience)
}

func (a *app) dataplaneDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff",
		Short: "compare the dataplane with the desired state",
		Long:  `Compares the dataplane with the desired state. The exit code is 10 with differences.`,
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			diff, err := c.Diff(ctx)
			if err != nil {
				return err
			}
			footer := output.Plural(len(diff.Items), "difference") + ". They are repaired at the next resync, or now with ironvip dataplane repair.\n"
			return cmp.Or(a.Show(differencesView(diff, diff.Items, footer)), command.ExitIf(!diff.InSync, command.ExitChanges))
		}),
	}
}

// differencesView has a line for each difference in a document.
func differencesView(document any, items []v1.DiffEntry, footer string) output.View {
	grid := &output.Grid{Footer: footer}
	for _, e := range items {
		grid.Add(render.Action(e.Action), e.Frontend, e.Service, strings.Join(e.Details, "; "))
	}
	return output.List(document, grid, "no differences", 1)
}

func (a *app) dataplaneRepairCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "repair",
		Short: "compare the dataplane with the desired state now, and repair the differences",
		Long: `Reads the dataplane completely and repairs what differs from the desired state, as the agent does
every dataplane.resync_interval. It also repairs what another program keeps changing, for which the
agent may wait. If the dataplane refuses a repair, the exit code is 3.`,
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := c.Repair(ctx)
			if err != nil {
				return err
			}
			view := differencesView(r, r.Items, output.Plural(len(r.Items), "frontend")+" repaired\n")
			if len(r.Problems) > 0 && len(r.Items) == 0 {
				view.Empty = "no frontend repaired"
			}
			if err := a.Show(view); err != nil {
				return err
			}
			for _, p := range r.Problems {
				a.Label("error", output.Bad, render.Problem(p))
			}
			return command.ExitIf(len(r.Problems) > 0, command.ExitDegraded)
		}),
	}
}

func (a *app) dataplaneCleanCommand(clean Clean) *cobra.Command {
	var req offline.CleanRequest
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "remove everything that an agent left in the kernel; needs no agent",
		Long: `Removes what an agent or announcer left in this host's kernel: IPVS services, nftables tables, the
device with the VIPs, routes, the gate of layer 2, and changed arp_announce of interfaces. A device
that somebody else made stays, without its settings in systemd-resolved. Sysctls, the state file and
the configuration stay. The command refuses to run while an agent or announcer runs (exit code 5).

An IPVS service belongs to ironvip if the table of the ipvs dataplane records it, or if its address
is on ironvip's device or leased. The state file may be missing or damaged.`,
		Example: "  ironvip dataplane clean --dry-run\n  systemctl stop ironvip ironvip-announcer && ironvip dataplane clean",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), a.Timeout)
			defer cancel()
			result, err := clean(ctx, req)
			if err != nil {
				return err
			}
			return a.showClean(result)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&req.DryRun, "dry-run", false, "change nothing and show what would be removed")
	flags.BoolVar(&req.Pools, "pools", false, "also remove other IPVS services with addresses of the pools (else only shown)")
	flags.BoolVar(&req.Force, "force", false, "run although an agent runs, which restores everything at its next resync")
	command.StoreFlags(cmd, &req.Config, &req.StateDir, command.TheConfig)
	return cmd
}

func (a *app) showClean(r offline.CleanResult) error {
	p := a.Printer
	if p.People() {
		for _, note := range r.Notes {
			p.Label("note", output.Faint, note)
		}
	}
	if err := a.Show(cleanView(r)); err != nil {
		return err
	}
	if r.Removed {
		p.Say("removed %s", output.Plural(len(r.Items), "object"))
	}
	return command.ExitIf(!r.Removed && len(r.Items) > 0, command.ExitChanges)
}

func cleanView(r offline.CleanResult) output.View {
	grid := &output.Grid{}
	rows := func(sign output.Cell, items []offline.CleanItem) {
		for _, x := range items {
			grid.AddSparse(sign, x.Kind, x.Name, output.Cell{Text: x.Detail, Style: output.Faint})
		}
	}
	rows(output.Cell{Text: "-", Style: output.Bad}, r.Items)
	rows(output.Cell{Text: "left", Style: output.Caution}, r.Left)
	view := output.List(r, grid, "nothing to remove")
	view.Names = output.Texts(r.Items, func(x offline.CleanItem) string { return x.Name })
	return view
}
