package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/agent/offline"
	"github.com/ironvip/ironvip/api/client"
	"github.com/ironvip/ironvip/api/snapshot"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
)

// maxSnapshot bounds the size of a snapshot: about 500,000 leases.
const maxSnapshot = 256 << 20

func (a *app) snapshotSaveCommand() *cobra.Command {
	var req offline.StoreRequest
	cmd := &cobra.Command{
		Use:   "save [FILE]",
		Short: "save all leases, registrations and overrides as one document",
		Long: `Saves the store as one JSON document, to FILE or stdout: the holders of addresses and node ports,
the services of the API, and the overrides. The command asks the running agent. If none runs, or
with --config, it reads the store. To move to another store, stop the agent first.

Values that cannot be read are listed on stderr and in the document, with exit code 3. They are
conflicts of a restore.`,
		Example:           "  systemctl stop ironvip && ironvip snapshot save vips.json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: command.CompleteFiles("json"),
	}
	req.Version = a.Version
	command.StoreFlags(cmd, &req.Config, &req.StateDir, "read the store that this configuration names, without an agent")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var out bytes.Buffer // write the whole document or nothing
		if err := a.save(cmd.Context(), req, cmd.Flags().Changed("config") || req.StateDir != "", &out); err != nil {
			return err
		}
		if len(args) == 0 || args[0] == "-" {
			if _, err := a.Stdout.Write(out.Bytes()); err != nil {
				return err
			}
		} else if err := writeFile(args[0], out.Bytes()); err != nil {
			return err
		}
		return a.warnUnreadable(out.Bytes())
	}
	return cmd
}

// writeFile replaces a file atomically, so that a failed write keeps the old snapshot.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	_, err = f.Write(data)
	if err := cmp.Or(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// warnUnreadable names the values that the store could not read.
func (a *app) warnUnreadable(document []byte) error {
	var d struct {
		Unreadable []snapshot.Unreadable `json:"unreadable"`
	}
	if err := json.Unmarshal(document, &d); err != nil {
		return fmt.Errorf("read the snapshot: %w", err)
	}
	if len(d.Unreadable) == 0 {
		return nil
	}
	p := a.Printer
	for _, u := range d.Unreadable {
		p.Label("warning", output.Caution, snapshot.Conflict{Kind: u.Kind, Name: u.Key, Service: strings.Join(u.Services, ", "), Message: u.Message}.String())
	}
	p.Say("%s unreadable; the rest was saved", output.Plural(len(d.Unreadable), "value"))
	p.Label("hint", output.Faint, "repair or remove these keys and save again: a restore of this file gives their services other addresses")
	return command.Exit(command.ExitDegraded)
}

// save writes the agent's snapshot, or that of the store if offline is set or no
// agent answers at the default address.
func (a *app) save(ctx context.Context, req offline.StoreRequest, offline bool, to io.Writer) error {
	if !offline {
		c, err := a.Client()
		if err != nil {
			return err
		}
		defer c.Close()
		err = c.Get(ctx, v1.PathExport, to)
		if err == nil || a.NamedAddr() != "" || !client.IsCode(err, client.CodeUnreachable) {
			return err
		}
		a.Say("no agent answers at %s: reading the store of %s", c.Addr(), req.Config)
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	return a.Save(ctx, req, to)
}

func (a *app) snapshotRestoreCommand() *cobra.Command {
	var req offline.RestoreRequest
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "restore a snapshot into the store of the configuration, before its agent starts",
		Long: `Writes a file of "snapshot save" ("-" is stdin) into the store of the configuration, so that every
service keeps its address. Stop this host's agent first (exit code 5); agents of other hosts may run.

If the store has a different value, such as an address that another service holds, nothing is
written, and each conflict is named (exit code 5).

An agent refuses to start on a store other than its last one before a restore, because every service
would get a new address. --none permits it for a host that takes the addresses of the fleet.`,
		Example:           "  ironvip snapshot restore vips.json && systemctl start ironvip",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: command.CompleteFiles("json"),
	}
	flags := cmd.Flags()
	flags.BoolVar(&req.SkipConflicts, "skip-conflicts", false, "restore everything that has no conflict")
	flags.BoolVar(&req.None, "none", false, "restore nothing, and let the agent start on the store as it is")
	command.StoreFlags(cmd, &req.Config, &req.StateDir, command.TheConfig)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && !req.None:
			return command.Usage(cmd, "%s: FILE is missing", cmd.CommandPath())
		case req.None && (len(args) == 1 || req.SkipConflicts):
			return command.Usage(cmd, "%s: --none excludes FILE and --skip-conflicts", cmd.CommandPath())
		}
		result, err := a.readAndRestore(cmd.Context(), req, args)
		if err != nil {
			return err
		}
		return a.showRestored(req, result)
	}
	return cmd
}

func (a *app) snapshotCompareCommand() *cobra.Command {
	req := offline.RestoreRequest{DryRun: true}
	cmd := &cobra.Command{
		Use:   "compare FILE",
		Short: "compare a snapshot with the store of the configuration",
		Long: `Shows what "snapshot restore" would write into the store, and every conflict. Stop this host's agent
first (exit code 5). The exit code is 0 if the store already has everything, 10 if a restore would
write, and 5 if it would be refused.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: command.CompleteFiles("json"),
	}
	command.StoreFlags(cmd, &req.Config, &req.StateDir, command.TheConfig)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		result, err := a.readAndRestore(cmd.Context(), req, args)
		if err != nil {
			return err
		}
		return a.showCompared(result)
	}
	return cmd
}

// readAndRestore reads the FILE of args, if there is one, and passes it to the agent's
// restore.
func (a *app) readAndRestore(ctx context.Context, req offline.RestoreRequest, args []string) (offline.RestoreResult, error) {
	if len(args) > 0 {
		data, name, problem := a.ReadInput(args[0], maxSnapshot)
		if problem != nil {
			return offline.RestoreResult{}, *problem
		}
		req.Data, req.File = data, name
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	return a.Restore(ctx, req)
}

// maxConflicts is the maximum number of conflicts in a table.
const maxConflicts = 100

// showConflicts prints conflicts on stderr. In the formats for programs, it writes the whole
// result.
func (a *app) showConflicts(r offline.RestoreResult, word string, style output.Style) error {
	p := a.Printer
	for _, c := range r.Conflicts[:min(len(r.Conflicts), maxConflicts)] {
		p.Label(word, style, c.String())
	}
	if more := len(r.Conflicts) - maxConflicts; more > 0 {
		p.Say("and %d more; -o json lists all", more)
	}
	return a.Show(output.View{Data: r, Names: output.Texts(r.Conflicts, func(c snapshot.Conflict) string { return c.Name })})
}

// restoredText counts what a restore writes.
func restoredText(r offline.RestoreResult) string {
	text := fmt.Sprintf("%s, %s, %s into the store %s", output.Plural(r.Leases, "lease"), output.Plural(r.Services, "registration"), output.Plural(r.States, "override"), r.Store)
	return text + output.When(r.Same > 0, fmt.Sprintf("; %d already present", r.Same)) +
		output.When(r.Replaced > 0, fmt.Sprintf("; %s replaced", output.Plural(r.Replaced, "outdated value")))
}

func (a *app) showRestored(req offline.RestoreRequest, r offline.RestoreResult) error {
	word, style := "conflict", output.Bad
	if req.SkipConflicts {
		word, style = "skipped", output.Caution
	}
	if err := a.showConflicts(r, word, style); err != nil {
		return err
	}
	p := a.Printer
	switch {
	case req.None:
		p.Say("the agent may start on the store %s as it is", r.Store)
		return nil
	case !r.Restored:
		p.Say("nothing restored into the store %s: %s", r.Store, output.Plural(len(r.Conflicts), "conflict"))
		p.Label("hint", output.Faint, "use --skip-conflicts to restore the rest, or --none to keep what the store has")
		return command.Exit(command.ExitConflict)
	}
	p.Say("restored %s", restoredText(r))
	return command.ExitIf(len(r.Conflicts) > 0 && !req.SkipConflicts, command.ExitConflict) // another host wrote at the same time
}

func (a *app) showCompared(r offline.RestoreResult) error {
	if err := a.showConflicts(r, "conflict", output.Bad); err != nil {
		return err
	}
	p := a.Printer
	switch {
	case len(r.Conflicts) > 0:
		p.Say("a restore would be refused by the store %s: %s", r.Store, output.Plural(len(r.Conflicts), "conflict"))
		return command.Exit(command.ExitConflict)
	case r.Leases+r.Services+r.States+r.Replaced > 0:
		p.Say("a restore would write %s", restoredText(r))
		return command.Exit(command.ExitChanges)
	}
	p.Say("no differences: the store %s already has %s", r.Store, output.Plural(r.Same, "value"))
	return nil
}
