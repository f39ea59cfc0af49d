// Package config has the commands about the configuration: config, reload, and import, which converts that of another load
// balancer.
//
// Checks and conversions need no agent. "config plan" and "reload" ask a running one. Package api/status validates, and the
// packages below migrate convert.
package config

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/configs/schema"
	"github.com/ironvip/ironvip/internal/tomlfile"
)

// app has the commands as methods.
type app struct{ *command.App }

// Commands returns the commands.
func Commands(frame *command.App) []*cobra.Command {
	a := &app{frame}
	return []*cobra.Command{
		command.Group("config", "check the configuration", a.configValidateCommand(), a.configPlanCommand(), a.configShowCommand(), a.configSchemaCommand()),
		a.reloadCommand(),
		a.importCommands(),
	}
}

func (a *app) configValidateCommand() *cobra.Command {
	var strict bool
	cmd := &cobra.Command{
		Use:   "validate [PATH]",
		Short: "validate a configuration and its services; needs no agent",
		Long: `Reads a configuration (default ` + command.DefaultConfig + `) and the services of its static sources. It prints
every mistake with file and line (exit code 1), and warnings of settings without effect. It needs no
agent and no root.

It finds what "config plan" finds, for a host without leases: also addresses and node ports that no
pool grants, and addresses, ports and DNS names that two services request. If dataplane.mode is not
"auto", it finds what that dataplane does not support.`,
		Example:           "  ironvip config validate ./etc --strict -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: command.CompleteFiles("toml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := command.First(args, command.DefaultConfig)
			v := status.Validate(cmd.Context(), path, "")
			if strict {
				v.Problems, v.Warnings = append(v.Problems, v.Warnings...), nil
				tomlfile.SortProblems(v.Problems)
			}
			return a.showValidation(path, v)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as mistakes")
	return cmd
}

func (a *app) showValidation(path string, v status.Validation) error {
	if err := a.Show(validateView(v)); err != nil {
		return err
	}
	if len(v.Problems) > 0 {
		if a.People() {
			a.Say("%s", output.Plural(len(v.Problems), "mistake"))
		}
	} else {
		a.Say("%s is valid: %s", path, v.Summary)
	}
	a.Warn(v.Warnings)
	return command.ExitIf(len(v.Problems) > 0, command.ExitError)
}

func (a *app) configShowCommand() *cobra.Command {
	var origin bool
	cmd := &cobra.Command{
		Use:   "show [PATH]",
		Short: "show the configuration with its defaults; needs no agent",
		Long: `Shows every key of ironvip.toml (default ` + command.DefaultConfig + `) with its value after a start. Tokens, keys and
passwords are in files, of which only the paths are shown. An agent that was not reloaded since a
change has other values: see "config plan".`,
		Example:           "  ironvip config show --origin",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: command.CompleteFiles("toml"),
		RunE: func(_ *cobra.Command, args []string) error {
			path := command.First(args, command.DefaultConfig)
			config, problems := configs.Load(path)
			if config == nil {
				return a.showValidation(path, status.Validation{Problems: problems})
			}
			return a.Show(valuesView(config.Values(), origin))
		},
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "show where each value comes from: a file and line, or the default")
	return cmd
}

func valuesView(values []configs.Value, origin bool) output.View {
	return output.View{
		Data:  values,
		Names: output.Texts(values, func(v configs.Value) string { return v.Key }),
		Text: func(p *output.Printer) string {
			grid := &output.Grid{}
			for _, v := range values {
				if origin {
					grid.AddSparse(v.Key, v.Value, output.Cell{Text: v.Origin, Style: output.Faint})
				} else {
					grid.AddSparse(v.Key, v.Value)
				}
			}
			return grid.Text(p)
		},
	}
}

func (a *app) configSchemaCommand() *cobra.Command {
	schemas := map[string]func() schema.Node{"config": schema.Config, "services": schema.Services, "hook": schema.Document}
	return &cobra.Command{
		Use:   "schema [config|services|hook]",
		Short: "print the JSON Schema of ironvip.toml, of services files or of the document of hooks",
		Long: `Prints a JSON Schema (draft 2020-12) with a description of every key, for editors and CI: of
ironvip.toml, of a file of services.d, or of the document that hooks get. Only "config validate"
finds problems of several keys, such as pools that overlap.`,
		Example:   "  ironvip config schema services > services.schema.json",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"config", "services", "hook"},
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := json.MarshalIndent(schemas[command.First(args, "config")](), "", "  ")
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "%s\n", text)
			return err
		},
	}
}

// validateView shows the problems. Its JSON is that of the API's validate.
func validateView(v status.Validation) output.View {
	shown, warnings := append([]v1.Problem{}, v.Problems...), append([]v1.Problem{}, v.Warnings...)
	return output.View{
		Data:  v1.ValidateResult{Valid: len(shown) == 0, Problems: shown, Warnings: warnings},
		Names: output.Texts(shown, func(p v1.Problem) string { return cmp.Or(p.Place, p.Service, p.Field) }),
		Text:  func(*output.Printer) string { return render.Problems("", shown) },
	}
}

func (a *app) configPlanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plan",
		Short: "show what a reload would change, without changing it",
		Long: `Shows what a reload of the running agent would change, and what services would not get: addresses,
ports, and what the dataplane in use does not support. The exit code is 10 with changes, and 1 with
a mistake.`,
		RunE: a.WithClient(a.plan),
	}
}

// plan shows what a reload would change.
func (a *app) plan(ctx context.Context, c *client.Client, _ []string) error {
	plan, err := c.Plan(ctx)
	if err != nil {
		return err
	}
	return a.ShowPlan(plan, render.Plan(plan))
}

func (a *app) reloadCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "reload the configuration of the agent",
		Long: `Makes the agent reload its configuration. An invalid one changes nothing: its errors are printed,
and the last good configuration stays in effect.`,
	}
	cmd.Flags().Bool("wait", true, "always so; accepted for unit files")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "the same as config plan")
	cmd.RunE = a.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		if dryRun {
			return a.plan(ctx, c, args)
		}
		result, err := c.Reload(ctx)
		if err != nil {
			return err
		}
		p := a.Printer
		p.Say("reloaded, revision %d%s", result.Revision, output.Join("", ": ", result.Message))
		for _, w := range result.Warnings {
			p.Label("warning", output.Caution, render.Problem(w))
		}
		return command.ShowChange(a.App, []v1.ReloadResult{result}, nil)
	})
	return cmd
}
