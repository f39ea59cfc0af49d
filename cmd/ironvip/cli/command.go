package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// group returns a command that only contains other commands.
func group(name, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "%s: command missing: use %s", cmd.CommandPath(), strings.Join(commandNames(cmd), ", "))
			}
			return unknownCommand(cmd, args[0])
		},
	}
	cmd.AddCommand(children...)
	return cmd
}

// completionNeedsShell makes cobra's "completion" refuse an unknown shell, as ironvip's groups do.
// By default it prints its help, and a script would continue with that.
func completionNeedsShell(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			like := group(cmd.Name(), cmd.Short)
			cmd.Args, cmd.RunE = like.Args, like.RunE
		}
	}
}

// positionals makes a wrong number of arguments, and an argument that is none of the command's
// ValidArgs, a usage error in every command of the tree.
func positionals(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := usage(cmd, "%s: %s given", cmd.CommandPath(), output.Plural(len(args), "argument"))
			if check(cmd, args) == nil {
				other := slices.IndexFunc(args, func(arg string) bool { return !slices.Contains(cmd.ValidArgs, arg) })
				if len(cmd.ValidArgs) == 0 || other < 0 {
					return nil
				}
				err = usage(cmd, "invalid argument %q for %q: use %s", args[other], cmd.CommandPath(), strings.Join(cmd.ValidArgs, ", "))
			}
			err.hint = "usage: " + strings.TrimSuffix(cmd.UseLine(), " [flags]")
			return err
		}
	}
	for _, child := range cmd.Commands() {
		positionals(child)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	err := usage(cmd, "unknown command %q for %q", name, cmd.CommandPath())
	if near := strict.Nearest(name, commandNames(cmd)); near != "" {
		err.hint = fmt.Sprintf("did you mean %q?", cmd.CommandPath()+" "+near)
	}
	return err
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return names
}

// withClient returns the action of a command that needs an agent.
func (a *app) withClient(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args)
	}
}

// listCommand returns the command "list", which shows one answer of the agent.
func listCommand[T any](a *app, short string, read func(*client.Client, context.Context) (T, error), view func(T) output.View) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   short,
		Args:    cobra.NoArgs,
		RunE: a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := read(c, ctx)
			if err != nil {
				return err
			}
			return a.show(view(list))
		}),
	}
}

// choiceFlag adds a flag that takes one of some values, which are checked before the command runs.
func choiceFlag(cmd *cobra.Command, value *string, flag, help string, of ...string) {
	cmd.Flags().StringVar(value, flag, "", help)
	must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp)))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *value == "" || slices.Contains(of, *value) {
			return nil
		}
		return usage(cmd, "invalid --%s %q: use %s", flag, *value, strings.Join(of, ", "))
	}
}

// flagError returns the usage error for flags that can't be parsed. It names the values that a flag
// takes, because the errors of the parsers name only their own functions.
func flagError(cmd *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usage(cmd, "%w", err)
	}
	flag := invalid.GetFlag()
	use, ok := map[string]string{
		"bool":     "use true or false",
		"int":      "use a whole number",
		"uint64":   "use a whole number from 0",
		"duration": "use a duration such as 30s",
	}[flag.Value.Type()]
	if !ok {
		use = invalid.Unwrap().Error()
	}
	return usage(cmd, "invalid --%s %q: %s", flag.Name, invalid.GetValue(), use)
}

// theConfig is the help of --config.
const theConfig = "the configuration: a file, or a directory with ironvip.toml"

func configFlag(cmd *cobra.Command, config *string, help string) {
	cmd.Flags().StringVar(config, "config", DefaultConfig, help)
	must(cmd.MarkFlagFilename("config", "toml"))
}

// storeFlags adds the flags that name a store.
func storeFlags(cmd *cobra.Command, config, stateDir *string, help string) {
	configFlag(cmd, config, help)
	cmd.Flags().StringVar(stateDir, "state-dir", "", "directory of the state file (default: node.state_dir of the configuration)")
	must(cmd.MarkFlagDirname("state-dir"))
}

// noWait adds the --no-wait flag of mutating commands and returns its value.
func noWait(flags *pflag.FlagSet) *bool {
	return flags.Bool("no-wait", false, "don't wait until the dataplane has applied the change")
}

// write returns how long a mutating command waits for the dataplane.
func (a *app) write(noWait bool) client.Write {
	if noWait {
		return client.Write{}
	}
	return client.Write{Wait: a.timeout}
}

// poll calls check, and again at an interval, until check is done or fails.
func poll(ctx context.Context, interval time.Duration, check func() (done bool, err error)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if done, err := check(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// must panics on err. It is for calls that fail only because of a programming error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
