package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ironvip/ironvip/internal/agent"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// maxImport is how large a file of "vip export" may be: some 500,000 leases.
const maxImport = 256 << 20

// storeFlags adds the flags that name a store.
func storeFlags(cmd *cobra.Command, req *agent.StoreRequest, config string) {
	flags := cmd.Flags()
	flags.StringVar(&req.Config, "config", DefaultConfig, config)
	flags.StringVar(&req.StateDir, "state-dir", "", "where the state file is (default: node.state_dir of the configuration)")
	must(cmd.MarkFlagFilename("config", "toml"))
	must(cmd.MarkFlagDirname("state-dir"))
}

func (a *app) vipExportCommand() *cobra.Command {
	var req agent.StoreRequest
	cmd := &cobra.Command{
		Use:   "export",
		Short: "write all leases, registrations and operators' states, for a backup or another store",
		Long: `Writes everything that the store keeps to stdout, as one JSON document: who holds which
address and node port, the services that were registered through the API, and the
backends that an operator drained. "vip import" reads it.

It asks the running agent. Where none runs, or with --config, it reads the store that the
configuration names itself: nothing can change while the agent is stopped, so that is the
way to move to another store.

What the store has and can't read is named on stderr and in the document, and the exit code
is 3; "vip import" then takes it for a clash.`,
		Example: "  ironvip vip export > vips.json\n  systemctl stop ironvip && ironvip vip export > vips.json",
		Args:    cobra.NoArgs,
	}
	req.Version = a.Version
	storeFlags(cmd, &req, "read the store that this configuration names, without an agent")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var out bytes.Buffer // whole, or nothing
		if err := a.export(cmd.Context(), req, cmd.Flags().Changed("config") || req.StateDir != "", &out); err != nil {
			return err
		}
		if _, err := a.Stdout.Write(out.Bytes()); err != nil {
			return err
		}
		return a.warnUnreadable(out.Bytes())
	}
	return cmd
}

// warnUnreadable names what a document says that the store could not read.
func (a *app) warnUnreadable(document []byte) error {
	var d struct {
		Unreadable []struct {
			Kind, Key, Message string
			Services           []string
		} `json:"unreadable"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return fmt.Errorf("the export can't be read: %w", err)
	}
	if len(d.Unreadable) == 0 {
		return nil
	}
	p := a.printer()
	for _, u := range d.Unreadable {
		p.Label("warning", output.Caution, output.Clean(agent.ImportClash{Kind: u.Kind, Name: u.Key, Service: strings.Join(u.Services, ", "), Message: u.Message}.String()))
	}
	p.Say("%s could not be read; the rest was exported", output.Plural(len(d.Unreadable), "value"))
	p.Label("hint", output.Faint, "put right or remove these keys, and export again: an import of this file gives their services other addresses")
	return exit(ExitDegraded)
}

func (a *app) export(ctx context.Context, req agent.StoreRequest, offline bool, to io.Writer) error {
	if !offline {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		err = c.Get(ctx, v1.PathExport, to)
		named := a.addr != "" || a.Getenv(EnvAddr) != ""
		if err == nil || named || !client.IsCode(err, client.CodeUnreachable) {
			return err
		}
		a.printer().Say("no agent answers at %s: the store of %s is read", c.Addr(), req.Config)
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	return a.Export(ctx, req, to)
}

func (a *app) vipImportCommand() *cobra.Command {
	var req agent.ImportRequest
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "write what \"vip export\" wrote into the store of the configuration, before its agent starts",
		Long: `Writes leases, registrations and operators' states into the store that the configuration
names, so that every service keeps its address. FILE is what "vip export" wrote; "-" is
stdin. This host's agent must be stopped (exit code 5); agents of other hosts may run.

What the store has already stays. With anything that the store has otherwise (an address
that is another service's, a service with another address) nothing is written and each is
named (exit code 5); --skip-clashes imports the rest.

An agent does not start on another store than the one it last ran with before something
was imported, for it would give every service a new address. With --none it does: for a
host whose services take the addresses that the fleet has for them.`,
		Example: "  ironvip vip import --dry-run vips.json\n  ironvip vip import vips.json && systemctl start ironvip",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return []cobra.Completion{"json"}, cobra.ShellCompDirectiveFilterFileExt
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&req.DryRun, "dry-run", false, "change nothing and show what would be imported (exit code 10 when anything would)")
	flags.BoolVar(&req.SkipClashes, "skip-clashes", false, "import what doesn't clash, and leave out the rest")
	flags.BoolVar(&req.None, "none", false, "import nothing, and let the agent start on the store as it is")
	storeFlags(cmd, &req.StoreRequest, "the configuration that names the store: a file, or a directory that holds ironvip.toml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && !req.None:
			return usage(cmd, "%s: a FILE is needed", cmd.CommandPath())
		case req.None && (len(args) == 1 || req.SkipClashes):
			return usage(cmd, "%s: --none takes no FILE, and nothing clashes", cmd.CommandPath())
		}
		if !req.None {
			data, name, problem := a.readInput(args[0], maxImport)
			if problem != nil {
				return *problem
			}
			req.Data, req.File = data, name
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
		defer cancel()
		result, err := a.Import(ctx, req)
		if err != nil {
			return err
		}
		return a.showImport(req, result)
	}
	return cmd
}

// maxClashes is how many clashes are shown to people.
const maxClashes = 100

func (a *app) showImport(req agent.ImportRequest, r agent.ImportResult) error {
	p := a.printer()
	for i, c := range r.Clashes {
		if i == maxClashes {
			p.Say("and %d more: -o json has them all", len(r.Clashes)-i)
			break
		}
		word, style := "error", output.Bad
		if req.SkipClashes {
			word, style = "left out", output.Caution
		}
		p.Label(word, style, output.Clean(c.String()))
	}
	if !p.People() {
		if err := a.show(importView(r)); err != nil {
			return err
		}
	}
	parts := fmt.Sprintf("%s, %s, %s", output.Plural(r.Leases, "lease"), output.Plural(r.Services, "registration"), output.Plural(r.States, "state"))
	extra := ""
	if r.Same > 0 {
		extra = fmt.Sprintf("; %d there already", r.Same)
	}
	if r.Replaced > 0 {
		extra += fmt.Sprintf("; %d from an earlier time replaced", r.Replaced)
	}
	switch {
	case req.None:
		p.Say("the agent may start on the store %s as it is", r.Store)
	case req.DryRun && len(r.Clashes) > 0 && !req.SkipClashes:
		p.Say("%s with what the store %s has; nothing would be imported", clashes(r), r.Store)
		return exit(ExitConflict)
	case req.DryRun:
		p.Say("would import %s into the store %s%s", parts, r.Store, extra)
		if r.Leases+r.Services+r.States+r.Replaced > 0 {
			return exit(ExitChanges)
		}
	case !r.Imported:
		p.Say("%s with what the store %s has; nothing was imported", clashes(r), r.Store)
		p.Label("hint", output.Faint, "--skip-clashes imports the rest; --none keeps to what the store has")
		return exit(ExitConflict)
	default:
		p.Say("imported %s into the store %s%s", parts, r.Store, extra)
		if len(r.Clashes) > 0 && !req.SkipClashes { // somebody wrote meanwhile
			return exit(ExitConflict)
		}
	}
	return nil
}

func importView(r agent.ImportResult) output.View {
	return output.View{
		Data:  r,
		Names: output.NamesOf(r.Clashes, func(c agent.ImportClash) string { return c.Name }),
		Text:  func(bool) string { return "" },
	}
}

func clashes(r agent.ImportResult) string {
	if len(r.Clashes) == 1 {
		return "1 clash"
	}
	return fmt.Sprintf("%d clashes", len(r.Clashes))
}
