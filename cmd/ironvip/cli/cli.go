// Package cli contains the client commands: everything that "ironvip" does except the agent.
//
// Commands call a running agent through api/client and print its responses. Some ("config
// validate", "doctor") need no agent. Data goes to stdout, messages to stderr. Every outcome has
// its own exit code, listed in exit.go. The package makes no decisions about services; it reports
// the agent's state.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/agent"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// EnvAddr is the environment variable for the agent's address if --addr is not set.
const EnvAddr = "IRONVIP_ADDR"

// DefaultConfig is the default path of the configuration.
const DefaultConfig = "/etc/ironvip"

// defaultTimeout bounds the wait for a response or for the dataplane.
const defaultTimeout = 30 * time.Second

// Options contains the environment of the commands. Zero fields mean those of this process.
type Options struct {
	Version string // of this binary

	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Now            func() time.Time
	Host           *doctor.Host // what "doctor" looks at

	// The functions of internal/agent: the daemon itself, and the work of commands that need no
	// running agent. Tests replace these functions.
	RunAgent func(context.Context, agent.Options) error
	Clean    func(context.Context, agent.CleanRequest) (agent.CleanResult, error)
	Save     func(context.Context, agent.StoreRequest, io.Writer) error
	Restore  func(context.Context, agent.RestoreRequest) (agent.RestoreResult, error)

	NewIdentity func(agent.StoreRequest) (agent.IdentityChange, error)
}

func (o Options) withDefaults() Options {
	if o.Version == "" {
		o.Version = "devel"
	}
	if o.Stdin == nil {
		o.Stdin = os.Stdin
	}
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.RunAgent == nil {
		o.RunAgent = agent.Run
	}
	if o.Clean == nil {
		o.Clean = agent.Clean
	}
	if o.Save == nil {
		o.Save = agent.Save
	}
	if o.Restore == nil {
		o.Restore = agent.Restore
	}
	if o.NewIdentity == nil {
		o.NewIdentity = agent.NewIdentity
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// app is the state that all commands share: the environment and the global flags.
type app struct {
	Options
	addr    string
	format  output.Format
	timeout time.Duration
	verbose bool
}

// Execute runs the command in args, prints its errors and returns its exit code. If the program
// should be ended by the signal of Ctrl-C, pass a context that isn't bound to it.
func Execute(ctx context.Context, o Options, args []string) int {
	a := &app{Options: o.withDefaults()}
	root := a.root()
	root.SetArgs(args)
	return a.report(root.ExecuteContext(ctx))
}

// NewRoot returns the command tree, for documentation or to run it differently.
func NewRoot(o Options) *cobra.Command { return (&app{Options: o.withDefaults()}).root() }

func (a *app) root() *cobra.Command {
	a.format, a.timeout = output.Table, defaultTimeout
	root := &cobra.Command{
		Use:   "ironvip",
		Short: "stable virtual IPs for services, balanced by this host's kernel",
		Long: `ironvip gives services a stable virtual IP and port in front of a changing set of
backends. "ironvip agent" is the daemon; the other commands talk to a running agent.`,
		Version:       a.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.format == output.TOML && cmd.CommandPath() != "ironvip service get" {
				return usage(cmd, "--output toml: only service get has a toml form")
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
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%w", err) })

	flags := root.PersistentFlags()
	flags.StringVar(&a.addr, "addr", "", "the agent's address: unix://PATH or http://HOST:PORT (env "+EnvAddr+"; default "+client.DefaultAddr+")")
	flags.VarP(&a.format, "output", "o", "output format: "+output.FormatList())
	flags.DurationVar(&a.timeout, "timeout", a.timeout, "maximum time for an answer and, after a change, until it is applied")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "print more on stderr: addresses, request ids")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formatNames(), cobra.ShellCompDirectiveNoFileComp)))
	for _, name := range []string{"addr", "timeout"} {
		must(root.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}

	root.AddCommand(
		a.agentCommand(),
		a.statusCommand(),
		group("service", "manage services",
			a.serviceListCommand(), a.serviceGetCommand(), a.serviceApplyCommand(), a.serviceDeleteCommand(), a.serviceExplainCommand(),
			a.serviceStatsCommand()),
		group("backend", "manage backends",
			a.backendListCommand(),
			a.backendStateCommand("ready", "end drain or maint: the backend gets new connections again"),
			a.backendStateCommand("drain", "stop new connections to a backend; open ones continue"),
			a.backendStateCommand("maint", "like drain, but marks maintenance")),
		group("vip", "show allocated addresses and node ports", a.vipListCommand()),
		group("pool", "show address pools", a.poolListCommand()),
		group("source", "manage sources of services", a.sourceListCommand(), a.sourceResyncCommand()),
		group("node", "manage the hosts of the fleet", a.nodeListCommand(), a.nodeNewIDCommand()),
		group("dataplane", "inspect the dataplane", a.dataplaneShowCommand(), a.dataplaneDiffCommand(), a.dataplaneCleanCommand()),
		group("config", "check the configuration", a.configValidateCommand(), a.configPlanCommand()),
		group("snapshot", "save and restore all leases, registrations and operator states",
			a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotCompareCommand()),
		group("debug", "inspect the agent's internals", a.debugTableCommand()),
		a.reloadCommand(),
		a.eventsCommand(),
		a.doctorCommand(),
		a.versionCommand(),
	)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	needsShell(root)
	positionals(root)
	return root
}

// needsShell makes cobra's "completion" refuse an unknown shell, as ironvip's groups do. By default
// it prints its help, and a script would continue with that.
func needsShell(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			like := group(cmd.Name(), cmd.Short)
			cmd.Args, cmd.RunE = like.Args, like.RunE
		}
	}
}

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

// positionals makes a wrong number of arguments a usage error in every command of the tree.
func positionals(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			err := usage(cmd, "%s: %s given", cmd.CommandPath(), output.Plural(len(args), "argument"))
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
		names = append(names, c.Name())
	}
	return names
}

func formatNames() []string {
	var names []string
	for _, f := range output.Formats() {
		names = append(names, string(f))
	}
	return names
}

// client returns a client of the agent at the address from the flags or the environment.
func (a *app) client() (*client.Client, error) { return a.clientWithin(a.timeout) }

func (a *app) clientWithin(timeout time.Duration) (*client.Client, error) {
	addr := a.addr
	if addr == "" {
		addr = a.Getenv(EnvAddr)
	}
	if a.timeout <= 0 {
		return nil, &failure{code: ExitUsage, err: fmt.Errorf("invalid --timeout %s: must be positive", a.timeout), hint: "use a duration such as 30s"}
	}
	c, err := client.New(addr, client.Options{Timeout: timeout, UserAgent: "ironvip/" + a.Version})
	if err != nil {
		return nil, &failure{code: ExitUsage, err: err, hint: "--addr and " + EnvAddr + " take unix://PATH or http://HOST:PORT"}
	}
	if a.verbose {
		a.printer().Say("agent at %s", c.Addr())
	}
	return c, nil
}

func (a *app) printer() *output.Printer {
	return &output.Printer{Out: a.Stdout, Err: a.Stderr, Format: a.format,
		ColorOut: output.ColorWanted(a.Stdout, a.Getenv), ColorErr: output.ColorWanted(a.Stderr, a.Getenv)}
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

// must panics on err. It is for calls that fail only because of a programming error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
