// Package cli is the command line of "ironvip": it joins the commands of the packages below.
//
// Commands call a running agent through api/client and print its responses. Some ("config validate", "doctor") need no agent.
// Data goes to stdout, messages to stderr. Every outcome has its own exit code, listed in command/exit.go. No package below
// makes decisions about services; they report the agent's state.
//
// Packages, from the joints to the tools; each imports only later ones:
//
//	cli                                         the tree of all commands, and those that run a process
//	service, address, dataplane, node, config   groups of commands, by what they are about
//	doctor, bugreport, dashboard, man           one command each, with its machinery
//	command                                     the frame: flags, the client, exit codes, completions
//	render, output                              what is written of the API's objects, and in which form
//	input, migrate                              definitions of services, and configurations of other programs
//
// The tests of this package run command lines against a fake agent, for the packages below, too.
package cli

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent"
	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/announce/announcer"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/address"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/bugreport"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/config"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/dashboard"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/dataplane"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/doctor"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/man"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/node"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/service"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/vip"
)

// Options contains the environment of the commands.
type Options struct {
	command.Environment
	Host *doctor.Host // what "doctor" looks at; nil: this host

	// The functions of agent: the daemon itself, and the work of commands that need no
	// running agent. Tests replace these functions.
	RunAgent     func(context.Context, agent.Options) error
	CheckAgent   func(agent.Options) error
	RunAnnouncer func(context.Context, announcer.Options) error
	RunProxy     func(context.Context, process.MainOptions) error
	Clean        dataplane.Clean
	node.Store
	LastGood func(config, stateDir string) (*configs.Config, []vip.Problem)
}

// ThisProcess returns the environment of this process, with the functions of agent.
func ThisProcess(version string) Options {
	return Options{
		Environment: command.Environment{Version: version, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now},
		RunAgent:    agent.Run, CheckAgent: agent.Check, RunAnnouncer: announcer.Main, RunProxy: process.Main,
		Clean: offline.Clean, LastGood: configs.LoadOrLastGood,
		Store: node.Store{Save: offline.Save, Restore: offline.Restore, NewIdentity: offline.NewIdentity},
	}
}

// Execute runs the command in args, prints its errors and returns its exit code. If the program
// should be ended by the signal of Ctrl-C, pass a context that isn't bound to it.
func Execute(ctx context.Context, o Options, args []string) int {
	a, root := tree(o)
	return a.Run(ctx, root, args)
}

// tree returns the tree of all commands, with the state that they share.
func tree(o Options) (*command.App, *cobra.Command) {
	a := command.New(o.Environment)
	nested := func(ctx context.Context, e command.Environment, args []string) int {
		o := o
		o.Environment = e
		return Execute(ctx, o, args)
	}
	commands := slices.Concat(service.Commands(a), address.Commands(a), node.Commands(a, o.Store), config.Commands(a), []*cobra.Command{
		o.agentCommand(), o.announcerCommand(), o.proxyCommand(),
		dataplane.Command(a, o.Clean),
		doctor.Command(a, o.Host, o.LastGood),
		bugreport.Command(a, nested),
		dashboard.Command(a),
		man.Command(),
	})
	return a, a.Root(commands)
}
