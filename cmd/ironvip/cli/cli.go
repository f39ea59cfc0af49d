// Package cli contains the commands of "ironvip".
//
// Commands call a running agent through api/client and print its responses. Some ("config
// validate", "doctor") need no agent. Data goes to stdout, messages to stderr. Every outcome has
// its own exit code, listed in exit.go. The package makes no decisions about services; it reports
// the agent's state.
//
// The command tree and the global flags are in this file, what commands share in command.go, and
// the exit codes and errors in exit.go. Every other file has one group of commands with their
// tables; service_view.go has the text of a service, and complete.go the shell completions.
package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent"
	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/vip"
)

// EnvAddr is the environment variable for the agent's address if --addr is not set.
const EnvAddr = "IRONVIP_ADDR"

// The environment variables of --token-file and --ca-file.
const (
	EnvTokenFile = "IRONVIP_TOKEN_FILE"
	EnvCAFile    = "IRONVIP_CA_FILE"
)

// DefaultConfig is the default path of the configuration.
const DefaultConfig = doctor.DefaultConfig

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

	// The functions of agent: the daemon itself, and the work of commands that need no
	// running agent. Tests replace these functions.
	RunAgent     func(context.Context, agent.Options) error
	CheckAgent   func(agent.Options) error
	RunAnnouncer func(context.Context, announcer.Options) error
	RunProxy     func(context.Context, process.MainOptions) error
	Clean        func(context.Context, offline.CleanRequest) (offline.CleanResult, error)
	Save         func(context.Context, offline.StoreRequest, io.Writer) error
	Restore      func(context.Context, offline.RestoreRequest) (offline.RestoreResult, error)

	LastGood    func(config, stateDir string) (*configs.Config, []vip.Problem) // configs.LoadOrLastGood
	NewIdentity func(offline.StoreRequest) (offline.IdentityChange, error)
}

func (o Options) withDefaults() Options {
	o.Version = or(o.Version, "devel")
	o.Stdin = or[io.Reader](o.Stdin, os.Stdin)
	o.Stdout = or[io.Writer](o.Stdout, os.Stdout)
	o.Stderr = or[io.Writer](o.Stderr, os.Stderr)
	o.Getenv = or(o.Getenv, os.Getenv)
	o.Now = or(o.Now, time.Now)
	o.RunAgent = or(o.RunAgent, agent.Run)
	o.CheckAgent = or(o.CheckAgent, agent.Check)
	o.RunAnnouncer = or(o.RunAnnouncer, announcer.Main)
	o.RunProxy = or(o.RunProxy, process.Main)
	o.Clean = or(o.Clean, offline.Clean)
	o.Save = or(o.Save, offline.Save)
	o.Restore = or(o.Restore, offline.Restore)
	o.LastGood = or(o.LastGood, configs.LoadOrLastGood)
	o.NewIdentity = or(o.NewIdentity, offline.NewIdentity)
	return o
}

// or returns v, or otherwise if v is zero. Unlike cmp.Or it accepts functions.
func or[T any](v, otherwise T) T {
	if reflect.ValueOf(&v).Elem().IsZero() {
		return otherwise
	}
	return v
}

// app is the state that all commands share: the environment and the global flags.
type app struct {
	Options
	addr              string
	tokenFile, caFile string
	format            output.Format
	timeout           time.Duration
	verbose           bool
}

// Execute runs the command in args, prints its errors and returns its exit code. If the program
// should be ended by the signal of Ctrl-C, pass a context that isn't bound to it.
func Execute(ctx context.Context, o Options, args []string) int {
	a := &app{Options: o.withDefaults()}
	root := a.root()
	root.SetArgs(args)
	return a.report(root.ExecuteContext(ctx))
}

// root returns the command tree.
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
	root.SetFlagErrorFunc(flagError)

	flags := root.PersistentFlags()
	flags.StringVar(&a.addr, "addr", "", "the agent's address: unix://PATH or http://HOST:PORT (env "+EnvAddr+"; default "+client.DefaultAddr+")")
	flags.StringVar(&a.tokenFile, "token-file", "", "the file with the token for the agent (env "+EnvTokenFile+")")
	flags.StringVar(&a.caFile, "ca-file", "", "the authorities of the agent's certificate, in PEM (env "+EnvCAFile+"; default: those of this host)")
	flags.VarP(&a.format, "output", "o", "output format: "+output.FormatList())
	flags.DurationVar(&a.timeout, "timeout", a.timeout, "maximum time for an answer and, after a change, until it is applied")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "print more on stderr: addresses, request ids")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.FormatNames(), cobra.ShellCompDirectiveNoFileComp)))

	root.AddCommand(
		a.agentCommand(),
		a.announcerCommand(),
		a.proxyCommand(),
		a.statusCommand(),
		group("service", "manage services",
			a.serviceListCommand(), a.serviceGetCommand(), a.serviceApplyCommand(), a.serviceDeleteCommand(), a.serviceExplainCommand(),
			a.serviceEditCommand(), a.serviceWatchCommand(), a.serviceStatsCommand()),
		group("backend", "manage backends",
			a.backendListCommand(),
			a.backendStateCommand("ready", "end drain or maint, so that the backend gets new connections again"),
			a.backendStateCommand("drain", "stop new connections to a backend; open ones continue"),
			a.backendStateCommand("maint", "like drain, but marks maintenance"),
			a.backendWeightCommand()),
		group("override", "manage operator overrides of single backends", a.overrideListCommand(), a.overrideClearCommand()),
		group("vip", "show allocated addresses and node ports, and reserve addresses", a.vipListCommand(), a.vipGetCommand(),
			a.vipReserveCommand(), a.vipReleaseCommand()),
		group("pool", "show address pools", a.poolListCommand(), a.poolGetCommand()),
		group("source", "manage sources of services", a.sourceListCommand(), a.sourceResyncCommand()),
		group("node", "manage the hosts of the fleet", a.nodeListCommand(), a.nodeDrainCommand(), a.nodeUndrainCommand(), a.nodeForgetCommand(), a.nodeNewIDCommand()),
		group("announce", "show how VIPs are announced to the network", a.announceListCommand(), a.announcePeersCommand(), a.announceExplainCommand()),
		group("dns", "show the DNS names of services", a.dnsListCommand(), a.dnsQueryCommand()),
		group("dataplane", "inspect the dataplane", a.dataplaneShowCommand(), a.dataplaneDiffCommand(), a.dataplaneRepairCommand(),
			a.dataplaneConnectionsCommand(), a.dataplaneSwitchCommand(), a.dataplaneCleanCommand()),
		group("config", "check the configuration", a.configValidateCommand(), a.configPlanCommand(), a.configShowCommand(), a.configSchemaCommand()),
		group("token", "manage tokens of callers of the API", a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand()),
		a.importCommands(),
		group("snapshot", "save and restore all leases, registrations and overrides",
			a.snapshotSaveCommand(), a.snapshotRestoreCommand(), a.snapshotCompareCommand()),
		group("debug", "inspect the agent's internals", a.debugTableCommand()),
		a.reloadCommand(),
		a.eventsCommand(),
		a.topCommand(),
		a.dashboardCommand(),
		a.searchCommand(),
		a.doctorCommand(),
		a.bugreportCommand(),
		a.versionCommand(),
		a.manCommand(),
	)
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp) // most flags take no files
	completionNeedsShell(root)
	positionals(root)
	return root
}

// namedAddr returns the agent's address from the flags or the environment, or "".
func (a *app) namedAddr() string { return cmp.Or(a.addr, a.Getenv(EnvAddr)) }

// client returns a client of the agent at namedAddr or the default address.
func (a *app) client() (*client.Client, error) { return a.clientWithin(a.timeout) }

func (a *app) clientWithin(timeout time.Duration) (*client.Client, error) {
	if a.timeout <= 0 {
		return nil, &failure{code: ExitUsage, err: fmt.Errorf("invalid --timeout %s: must be positive", a.timeout), hint: "use a duration such as 30s"}
	}
	options := client.Options{Timeout: timeout, UserAgent: "ironvip/" + a.Version}
	if err := a.credentials(&options); err != nil {
		return nil, err
	}
	c, err := client.New(a.namedAddr(), options)
	if err != nil {
		return nil, &failure{code: ExitUsage, err: err, hint: "--addr and " + EnvAddr + " take unix://PATH, http://HOST:PORT or https://HOST:PORT"}
	}
	if a.verbose {
		a.printer().Say("agent at %s", c.Addr())
	}
	return c, nil
}

// maxCredential bounds the files of credentials, in bytes.
const maxCredential = 1 << 20

// credentials reads the files with the token and the authorities.
func (a *app) credentials(o *client.Options) error {
	if file := cmp.Or(a.tokenFile, a.Getenv(EnvTokenFile)); file != "" {
		text, problem := tomlfile.ReadFile(file, maxCredential)
		if problem != nil {
			return &failure{code: ExitError, err: fmt.Errorf("--token-file: %w", problem), hint: problem.Hint}
		}
		if o.Token = strings.TrimSpace(string(text)); o.Token == "" || strings.ContainsAny(o.Token, " \n\r") {
			return &failure{code: ExitError, err: fmt.Errorf("--token-file: %s does not have one token", file), hint: "write the output of ironvip token create to it"}
		}
	}
	if file := cmp.Or(a.caFile, a.Getenv(EnvCAFile)); file != "" {
		text, problem := tomlfile.ReadFile(file, maxCredential)
		if problem != nil {
			return &failure{code: ExitError, err: fmt.Errorf("--ca-file: %w", problem), hint: problem.Hint}
		}
		if o.Authorities = x509.NewCertPool(); !o.Authorities.AppendCertsFromPEM(text) {
			return &failure{code: ExitError, err: fmt.Errorf("--ca-file: %s has no certificate in PEM", file)}
		}
	}
	return nil
}

func (a *app) printer() *output.Printer {
	return &output.Printer{Out: a.Stdout, Err: a.Stderr, Format: a.format,
		ColorOut: output.ColorWanted(a.Stdout, a.Getenv), ColorErr: output.ColorWanted(a.Stderr, a.Getenv)}
}

// show writes a view in the selected format.
func (a *app) show(v output.View) error { return a.printer().Show(v) }
