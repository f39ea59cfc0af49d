package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/input"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/tomlfile"
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
		Long: `Creates services or replaces their definition. FILE is TOML with [[service]] blocks as in
services.d, or JSON or YAML with one service, a list of services, or {"services": [...]};
"-" is stdin. "service get -o toml" prints this form. If the input has a mistake, nothing is
sent.

The agent stores these services. A service of another source is refused (exit code 5):
change it in that source.`,
		Example: "  ironvip service apply -f web.toml\n  ironvip service apply -f - --dry-run < services.json",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&files, "file", "f", nil, "file to apply; \"-\" is stdin (repeatable)")
	flags.BoolVar(&dryRun, "dry-run", false, "change nothing and show what would change (exit code 10 if anything would)")
	flags.BoolVar(&atomic, "atomic", false, "change nothing if one of the services is refused")
	dontWait := noWait(flags)
	must(cmd.MarkFlagFilename("file", "toml", "json", "yaml", "yml"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(files) == 0 {
			return usage(cmd, "%s: -f FILE is missing", cmd.CommandPath())
		}
		services, problems := a.readServices(files)
		if len(problems) > 0 {
			return a.refuseInput(problems)
		}
		return a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			w := a.write(*dontWait || dryRun)
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
					a.printer().Say("revision %d applied in %s", result.Revision, a.Now().Sub(start).Round(1e6))
				} else {
					a.printer().Say("revision %d, not waiting", result.Revision)
				}
			}
			return cmp.Or(a.show(applyView(result)), refusedCode(result))
		})(cmd, nil)
	}
	return cmd
}

// readServices reads every file and returns the problems of all of them.
func (a *app) readServices(files []string) ([]spec.Service, []vip.Problem) {
	var out []spec.Service
	var problems []vip.Problem
	for _, file := range files {
		data, name, problem := a.readInput(file, maxApply)
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

// readInput returns the content of a file or of stdin, of at most limit bytes, and its name for
// messages.
func (a *app) readInput(file string, limit int) ([]byte, string, *vip.Problem) {
	if file != "-" {
		data, problem := tomlfile.ReadFile(file, limit)
		return data, file, problem
	}
	data, err := io.ReadAll(io.LimitReader(a.Stdin, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("must be at most %d MiB", limit>>20)
	}
	if err != nil {
		return nil, "stdin", &vip.Problem{Code: vip.CodeInvalid, Place: "stdin", Message: err.Error()}
	}
	return data, "stdin", nil
}

// refuseInput prints the problems of the input and ends the command.
func (a *app) refuseInput(problems []vip.Problem) error {
	for _, p := range problems {
		a.printer().Label("error", output.Bad, problemLine(p))
	}
	a.printer().Say("%s; nothing was changed", output.Plural(len(problems), "mistake"))
	return exit(ExitError)
}

// sayApplied prints the outcome of each service.
func (a *app) sayApplied(r v1.ApplyResult) {
	p := a.printer()
	for _, item := range r.Items {
		name := nameOf(item.Namespace, item.Name)
		if item.Action == v1.Refused {
			p.Label("error", output.Bad, "service "+name+" refused")
		} else {
			at := ""
			if item.Action != v1.Unchanged {
				at = fmt.Sprintf(" (revision %d)", item.Revision)
			}
			if len(item.VIPs) > 0 {
				at += ", at " + commaList(item.VIPs)
			}
			p.Say("service %s %s%s", name, item.Action, at)
		}
		for _, problem := range item.Problems {
			problem.Field = inRequest.ReplaceAllString(problem.Field, "")
			problem.Service = "" // named above
			p.Say("  %s", problemLine(problem))
		}
	}
}

// refusedCode returns the exit code of an apply: success, a conflict if all refusals are conflicts,
// else an error.
func refusedCode(r v1.ApplyResult) error {
	if r.Refused == 0 {
		return nil
	}
	for _, item := range r.Items {
		if item.Action == v1.Refused && !conflicts(item.Problems) {
			return exit(ExitError)
		}
	}
	return exit(ExitConflict)
}

// showDryRun shows what an apply would change.
func (a *app) showDryRun(r v1.ApplyResult) error {
	plan := v1.Plan{Changes: []v1.PlanChange{}, Problems: []v1.Problem{}, Warnings: []v1.Problem{}}
	if r.Plan != nil {
		plan = *r.Plan
	}
	view := planView(plan) // including refused services among its problems
	if !a.printer().People() {
		applied := applyView(r)
		view.Data, view.Names = applied.Data, applied.Names
	}
	if err := a.show(view); err != nil {
		return err
	}
	for _, p := range plan.Warnings {
		a.warn(p)
	}
	return cmp.Or(refusedCode(r), planCode(plan))
}

func applyView(r v1.ApplyResult) output.View {
	view := output.View{Data: r}
	for _, item := range r.Items {
		if item.Action != v1.Refused {
			view.Names = append(view.Names, nameOf(item.Namespace, item.Name))
		}
	}
	return view
}
