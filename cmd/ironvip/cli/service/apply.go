package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/input"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// maxApply bounds the size of one file or of stdin. It is the limit of one API call.
const maxApply = 64 << 20

func (a *app) serviceApplyCommand() *cobra.Command {
	var files []string
	var dryRun, atomic bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE...",
		Short: "create services or replace their definition, from TOML, JSON or YAML",
		Long: `Creates services or replaces their definition. FILE is TOML with [[service]] blocks, or JSON or YAML
with one service, a list of services, or {"services": [...]}. If it has a mistake, nothing is sent.
A service of another source is refused (exit code 5): change it in that source.`,
		Example: "  ironvip service apply -f web.toml\n  ironvip service apply -f - --dry-run < services.json",
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&files, "file", "f", nil, "file to apply; \"-\" is stdin (repeatable)")
	flags.BoolVar(&dryRun, "dry-run", false, "change nothing and show what would change")
	flags.BoolVar(&atomic, "atomic", false, "change nothing if one of the services is refused")
	dontWait := command.NoWait(flags)
	command.Must(cmd.MarkFlagFilename("file", "toml", "json", "yaml", "yml"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(files) == 0 {
			return command.Usage(cmd, "%s: -f FILE is missing", cmd.CommandPath())
		}
		services, problems := a.readServices(files)
		if len(problems) > 0 {
			return a.RefuseInput(problems)
		}
		return a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			w := a.Write(*dontWait || dryRun)
			start := a.Now()
			result, err := c.Apply(ctx, services, dryRun, atomic, w)
			if err != nil {
				return err
			}
			if dryRun {
				return a.showDryRun(result)
			}
			a.sayApplied(result)
			if result.Created+result.Updated > 0 {
				if w.Wait > 0 {
					a.Say("revision %d applied in %s", result.Revision, a.Now().Sub(start).Round(1e6))
				} else {
					a.Say("revision %d, not waiting", result.Revision)
				}
			}
			return cmp.Or(a.Show(applyView(result)), refusedCode(result))
		})(cmd, nil)
	}
	return cmd
}

// readServices reads every file and returns the problems of all of them.
func (a *app) readServices(files []string) ([]spec.Service, []vip.Problem) {
	var out []spec.Service
	var problems []vip.Problem
	for _, file := range files {
		data, name, problem := a.ReadInput(file, maxApply)
		if problem != nil {
			problems = append(problems, *problem)
			continue
		}
		services, more := input.Services(name, data)
		if len(services) == 0 && len(more) == 0 {
			more = []vip.Problem{{Code: vip.CodeInvalid, Place: name, Message: "has no services",
				Hint: "start each service with [[service]] in TOML; in JSON, use an object or a list"}}
		}
		out, problems = append(out, services...), append(problems, more...)
	}
	return out, problems
}

// sayApplied prints the outcome of each service.
func (a *app) sayApplied(r v1.ApplyResult) {
	p := a.Printer
	for _, item := range r.Items {
		name := command.NameOf(item.Namespace, item.Name)
		if item.Action == v1.Refused {
			p.Label("error", output.Bad, "service "+name+" refused")
		} else {
			at := ""
			if item.Action != v1.Unchanged {
				at = fmt.Sprintf(" (revision %d)", item.Revision)
			}
			if len(item.VIPs) > 0 {
				at += ", at " + render.CommaList(item.VIPs)
			}
			p.Say("service %s %s%s", name, item.Action, at)
		}
		for _, problem := range item.Problems {
			p.Say("  %s", render.Problem(render.WithoutService(problem)))
		}
	}
}

// refusedCode returns the exit code of an apply: success, a conflict if all refusals are conflicts,
// else an error.
func refusedCode(r v1.ApplyResult) error {
	other := slices.ContainsFunc(r.Items, func(item v1.ApplyItem) bool { return item.Action == v1.Refused && !command.Conflicts(item.Problems) })
	return cmp.Or(command.ExitIf(r.Refused > 0 && other, command.ExitError), command.ExitIf(r.Refused > 0, command.ExitConflict))
}

// showDryRun shows what an apply would change.
func (a *app) showDryRun(r v1.ApplyResult) error {
	var plan v1.Plan
	if r.Plan != nil {
		plan = *r.Plan
	}
	view := render.Plan(plan) // including refused services among its problems
	if !a.People() {
		applied := applyView(r)
		view.Data, view.Names = applied.Data, applied.Names
	}
	return cmp.Or(refusedCode(r), a.ShowPlan(plan, view))
}

func applyView(r v1.ApplyResult) output.View {
	view := output.View{Data: r}
	for _, item := range r.Items {
		if item.Action != v1.Refused {
			view.Names = append(view.Names, command.NameOf(item.Namespace, item.Name))
		}
	}
	return view
}
