package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/pipeline/compile"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
)

func (a *app) configValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate [PATH]",
		Short: "validate a configuration and its services; needs no agent",
		Long: `Reads a configuration (a file, or a directory with ironvip.toml; default ` + DefaultConfig + `)
and the services of its static sources, and prints every mistake with file and line, and
warnings of settings without effect. It needs no agent and no root. The exit code is 1 if
there is a mistake.`,
		Example:           "  ironvip config validate\n  ironvip config validate ./etc -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeFiles("toml"),
		RunE: func(_ *cobra.Command, args []string) error {
			path := DefaultConfig
			if len(args) == 1 {
				path = args[0]
			}
			v := a.validate(path)
			if err := a.show(validateView(v.problems)); err != nil {
				return err
			}
			if len(v.problems) > 0 {
				if a.printer().People() {
					a.printer().Say("%s", output.Plural(len(v.problems), "mistake"))
				}
			} else {
				a.printer().Say("%s is valid: %s", path, v.summary)
			}
			a.warn(v)
			if len(v.problems) > 0 {
				return exit(ExitError)
			}
			return nil
		},
	}
}

// warn prints what works and is probably not what was meant.
func (a *app) warn(v validated) {
	for _, p := range v.ineffective {
		a.printer().Say("warning: %s", p.Error())
		a.printer().Say("hint: %s", p.Hint)
	}
	if v.unread != "" {
		a.printer().Say("warning: %s ignored: no static source configured", v.unread)
		a.printer().Say("hint: %s", readServices)
	}
}

// validated is the result of reading a configuration on disk.
type validated struct {
	config   *configs.Config // nil with an error in ironvip.toml
	problems []vip.Problem
	missing  bool   // the path doesn't exist
	summary  string // "1 pool, 1 source, 4 services"
	unread   string // the directory of services that no source reads
	// ineffective are settings of services without effect. They are no mistakes: the services work.
	ineffective []vip.Problem
}

// readServices is the hint for services that no source reads.
const readServices = `add a [[source]] with type = "static" and path = "` + configs.ServicesDir + `"`

// validate reads the configuration at path, the services of its static sources, and the files that
// it names. With an error in ironvip.toml, its sources are not certain. validate then reads
// services.d beside it and the files in the readable part, so that one run shows as many problems
// as possible.
func (a *app) validate(path string) validated {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) { // the agent treats a missing file as empty
		return validated{missing: true, problems: []vip.Problem{{Code: vip.CodeInvalid, Place: path, Message: "no such file or directory",
			Hint: "create it or use another path; a directory without " + configs.ConfigName + " is a valid configuration"}}}
	}
	config, problems := configs.Load(path)
	v := validated{config: config, problems: problems}
	from, names := config, config
	if from == nil {
		names = configs.Draft(path)
		file := path
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			file = filepath.Join(path, configs.ConfigName)
		}
		if from, _ = configs.Parse(file, nil); from == nil {
			return v
		}
	}
	services, more := from.Services()
	if names != nil {
		v.problems = append(v.problems, names.CheckFiles()...)
	}
	v.problems = append(v.problems, more...)
	tomlfile.SortProblems(v.problems)
	for i := range services {
		v.ineffective = append(v.ineffective, compile.Ineffective(&services[i])...)
	}
	if config != nil {
		v.unread = config.UnreadServices()
		v.summary = strings.Join([]string{output.Plural(len(config.Pools), "pool"), output.Plural(len(config.Sources), "source"),
			output.Plural(len(services), "service")}, ", ")
	}
	return v
}

// validateView shows the problems. Its JSON is that of the API's validate.
func validateView(problems []vip.Problem) output.View {
	shown := make([]v1.Problem, len(problems))
	for i, p := range problems {
		shown[i] = v1.Problem(p)
	}
	return output.View{
		Data:  v1.ValidateResult{Valid: len(shown) == 0, Problems: shown},
		Names: output.Texts(shown, func(p v1.Problem) string { return cmp.Or(p.Place, p.Service, p.Field) }),
		Text:  func(*output.Printer) string { return problemsText("", shown) },
	}
}

func (a *app) configPlanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plan",
		Short: "show what a reload would change, without changing it",
		Long: `Asks the running agent what a reload of its configuration would change. The exit code is 0
without changes, 10 with changes, and 1 if the configuration is invalid.`,
		Args: cobra.NoArgs,
		RunE: a.withClient(a.plan),
	}
}

// plan shows what a reload would change.
func (a *app) plan(ctx context.Context, c *client.Client, _ []string) error {
	plan, err := c.Plan(ctx)
	if err != nil {
		return err
	}
	return cmp.Or(a.show(planView(plan)), planCode(plan))
}

// planCode returns the exit code of a command that shows a plan.
func planCode(p v1.Plan) error {
	switch {
	case len(p.Problems) > 0:
		return exit(ExitError)
	case len(p.Changes) > 0:
		return exit(ExitChanges)
	}
	return nil
}

func planView(plan v1.Plan) output.View {
	return output.View{
		Data:  plan,
		Names: output.Texts(plan.Changes, func(c v1.PlanChange) string { return c.Name }),
		Text: func(p *output.Printer) string {
			grid := &output.Grid{Footer: "Plan: no changes\n"}
			if len(plan.Changes) > 0 {
				grid.Footer = fmt.Sprintf("Plan: %d add, %d change, %d remove\n", plan.Add, plan.Change, plan.Remove)
			}
			for _, c := range plan.Changes {
				what := fmt.Sprintf("%-7s %s", c.Kind, c.Name) // one cell, so that the name directly follows its kind
				grid.AddSparse(actionCell(c.Action), what, c.Detail, output.Cell{Text: c.Impact, Style: output.Faint})
			}
			return problemsText("", plan.Problems) + grid.Text(p)
		},
	}
}

func (a *app) reloadCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "reload the configuration of the agent",
		Long: `Makes the agent reload its configuration. If it is invalid, nothing changes, the last good
configuration stays in effect and the errors are printed.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Bool("wait", true, "accepted for unit files; reload always waits until the agent has applied the configuration")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "the same as config plan")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		if dryRun {
			return a.plan(ctx, c, args)
		}
		result, err := c.Reload(ctx)
		if err != nil {
			return err
		}
		p := a.printer()
		p.Say("reloaded, revision %d%s", result.Revision, output.Join("", ": ", result.Message))
		for _, w := range result.Warnings {
			p.Label("warning", output.Caution, problemLine(w))
		}
		return showChange(a, []v1.ReloadResult{result}, nil)
	})
	return cmd
}
