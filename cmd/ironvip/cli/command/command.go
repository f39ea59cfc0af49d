package command

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Root returns the tree of the commands, with the global flags.
func (a *App) Root(commands []*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "ironvip",
		Short: "stable virtual IPs for services, balanced by this host's kernel",
		Long: `ironvip gives services a stable virtual IP and port in front of a changing set of
backends. "ironvip agent" is the daemon; the other commands talk to a running agent.`,
		Version:       a.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.Format == output.TOML && cmd.CommandPath() != "ironvip service get" {
				return Usage(cmd, "--output toml: only service get has a toml form")
			}
			return nil
		},
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetVersionTemplate("ironvip {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)

	flags := root.PersistentFlags()
	flags.StringVar(&a.Addr, "addr", "", "the agent's address: unix://PATH or http://HOST:PORT (env "+EnvAddr+"; default "+client.DefaultAddr+")")
	flags.StringVar(&a.TokenFile, "token-file", "", "the file with the token for the agent (env "+EnvTokenFile+")")
	flags.StringVar(&a.CAFile, "ca-file", "", "the authorities of the agent's certificate, in PEM (env "+EnvCAFile+"; default: the host's)")
	flags.VarP(&a.Format, "output", "o", "output format: "+output.FormatList())
	flags.DurationVar(&a.Timeout, "timeout", a.Timeout, "maximum time for an answer and, after a change, until it is applied")
	flags.BoolVarP(&a.Verbose, "verbose", "v", false, "print more on stderr: addresses, request ids")
	Must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.FormatNames(), cobra.ShellCompDirectiveNoFileComp)))

	root.AddCommand(commands...)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp) // most flags take no files
	completionNeedsShell(root)
	positionals(root)
	return root
}

// Group returns a command that only contains other commands.
func Group(name, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return Usage(cmd, "%s: command missing: use %s", cmd.CommandPath(), strings.Join(commandNames(cmd), ", "))
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
			like := Group(cmd.Name(), cmd.Short)
			cmd.Args, cmd.RunE = like.Args, like.RunE
		}
	}
}

// positionals makes a wrong number of arguments, and an argument that is none of the command's
// ValidArgs, a usage error in every command of the tree. A command takes none unless it says so.
func positionals(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := Usage(cmd, "%s: %s given", cmd.CommandPath(), output.Plural(len(args), "argument"))
		if check(cmd, args) == nil {
			other := slices.IndexFunc(args, func(arg string) bool { return !slices.Contains(cmd.ValidArgs, arg) })
			if len(cmd.ValidArgs) == 0 || other < 0 {
				return nil
			}
			err = Usage(cmd, "invalid argument %q for %q: use %s", args[other], cmd.CommandPath(), strings.Join(cmd.ValidArgs, ", "))
		}
		err.Hint = "usage: " + strings.TrimSuffix(cmd.UseLine(), " [flags]")
		return err
	}
	for _, child := range cmd.Commands() {
		positionals(child)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	err := Usage(cmd, "unknown command %q for %q", name, cmd.CommandPath())
	if near := strict.Nearest(name, commandNames(cmd)); near != "" {
		err.Hint = fmt.Sprintf("did you mean %q?", cmd.CommandPath()+" "+near)
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

// WithClient returns the action of a command that needs an agent.
func (a *App) WithClient(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.Client()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(cmd.Context(), c, args)
	}
}

// List returns the command "list", which shows one answer of the agent.
func List[T any](a *App, short, long string, read func(*client.Client, context.Context) (T, error), view func(T) output.View) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   short,
		Long:    long,
		RunE: a.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := read(c, ctx)
			if err != nil {
				return err
			}
			return a.Show(view(list))
		}),
	}
}

// ChoiceFlag adds a flag that takes one of some values, which are checked before the command runs.
func ChoiceFlag(cmd *cobra.Command, value *string, flag, help string, of ...string) {
	cmd.Flags().StringVar(value, flag, "", help)
	Must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp)))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if *value == "" || slices.Contains(of, *value) {
			return nil
		}
		return Usage(cmd, "invalid --%s %q: use %s", flag, *value, strings.Join(of, ", "))
	}
}

// flagError returns the usage error for flags that can't be parsed. It names the values that a flag
// takes, because the errors of the parsers name only their own functions.
func flagError(cmd *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return Usage(cmd, "%w", err)
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
	return Usage(cmd, "invalid --%s %q: %s", flag.Name, invalid.GetValue(), use)
}

// TheConfig is the help of --config.
const TheConfig = "the configuration: a file, or a directory with ironvip.toml"

// ConfigFlag adds the flag that names the configuration.
func ConfigFlag(cmd *cobra.Command, config *string, help string) {
	cmd.Flags().StringVar(config, "config", DefaultConfig, help)
	Must(cmd.MarkFlagFilename("config", "toml"))
}

// StoreFlags adds the flags that name a store.
func StoreFlags(cmd *cobra.Command, config, stateDir *string, help string) {
	ConfigFlag(cmd, config, help)
	cmd.Flags().StringVar(stateDir, "state-dir", "", "directory of the state file (default: node.state_dir)")
	Must(cmd.MarkFlagDirname("state-dir"))
}

// NoWait adds the --no-wait flag of mutating commands and returns its value.
func NoWait(flags *pflag.FlagSet) *bool {
	return flags.Bool("no-wait", false, "don't wait until the dataplane has applied the change")
}

// Write returns how long a mutating command waits for the dataplane.
func (a *App) Write(noWait bool) client.Write {
	if noWait {
		return client.Write{}
	}
	return client.Write{Wait: a.Timeout}
}

// Follow calls do for each part of a stream, until the context ends, which is no error.
func Follow[T any](stream iter.Seq2[T, error], do func(T) error) error {
	for part, err := range stream {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err == nil {
			err = do(part)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Poll calls check, and again at an interval, until check is done or fails.
func Poll(ctx context.Context, interval time.Duration, check func() (done bool, err error)) error {
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

// First returns the first argument, or otherwise without one.
func First(args []string, otherwise string) string {
	if len(args) > 0 {
		return args[0]
	}
	return otherwise
}

// Must panics on err. It is for calls that fail only because of a programming error.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}
