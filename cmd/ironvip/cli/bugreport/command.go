package bugreport

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
)

// Bounds of a bug report. A part that is larger is cut, and one that takes longer is given up.
const (
	maxPart  = 16 << 20
	partTime = 30 * time.Second
)

// reportCommands are the commands whose output is in a bug report, with their files. --addr and
// the configuration are added.
var reportCommands = []struct {
	file, line string
	config     string // before the path of the configuration; "": the command doesn't take it
}{
	{"version.txt", "version", ""},
	{"status.json", "status -o json", ""},
	{"doctor.json", "doctor -o json", "--config"},
	{"config.txt", "config show --origin", "--"},
	{"validate.txt", "config validate", "--"},
	{"dataplane.json", "dataplane show -o json", ""},
	{"diff.json", "dataplane diff -o json", ""},
	{"services.json", "service list -o json", ""},
	{"stats.json", "service stats -o json", ""},
	{"overrides.json", "override list -o json", ""},
	{"vips.json", "vip list -o json", ""},
	{"pools.json", "pool list -o json", ""},
	{"sources.json", "source list -o json", ""},
	{"nodes.json", "node list -o json", ""},
	{"announcements.json", "announce list -o json", ""},
	{"peers.json", "announce peers -o json", ""},
	{"dns.json", "dns list -o json", ""},
	{"events.json", "events -o json", ""},
}

// reportProgram is a program whose output is in a bug report.
type reportProgram struct {
	file string
	args []string
}

// reportPrograms are these programs, and nft for the tables of each dataplane.
var reportPrograms = slices.Concat(reportTables(), []reportProgram{
	{"uname.txt", []string{"uname", "-a"}},
	{"journal.txt", []string{"journalctl", "--no-pager", "-o", "short-iso-precise", "-n", "20000", "--since", "-2d", "-u", "ironvip", "-u", "ironvip-announcer", "-u", "ironvip-proxy"}},
	{"units.txt", []string{"systemctl", "--no-pager", "show", "ironvip", "ironvip-announcer", "ironvip-proxy", "-p", "Id,ActiveState,SubState,Result,NRestarts,MemoryCurrent,CPUUsageNSec,ExecMainStatus"}},
	{"ipvs.txt", []string{"ipvsadm", "-Ln", "--stats"}},
	{"addresses.txt", []string{"ip", "addr"}},
	{"routes.txt", []string{"ip", "route", "show", "table", "all"}},
	{"routes6.txt", []string{"ip", "-6", "route", "show", "table", "all"}},
})

func reportTables() (out []reportProgram) {
	for _, k := range configs.Dataplanes {
		for _, table := range k.TablesOf(configs.DefaultDevice) {
			out = append(out, reportProgram{"nftables-" + table + ".txt", []string{"nft", "list", "table", "inet", table}})
		}
	}
	return out
}

// Command returns the command "bugreport". execute runs another command of this program in an environment.
func Command(frame *command.App, execute func(context.Context, command.Environment, []string) int) *cobra.Command {
	a := &app{frame, execute}
	var config, file string
	cmd := &cobra.Command{
		Use:   "bugreport",
		Short: "write an archive for a bug report: state, configuration, logs, without secrets",
		Long: `Writes a tar.gz with what helps to find the cause of a problem: versions, status, findings of
"doctor", configuration, services, dataplane, leases, nodes, announcements, events, and the output
of systemd's journal, ipvsadm, nft and ip. It changes nothing. Without an agent, it has less.

Tokens, passwords and keys are removed; addresses and names of services stay. Look into the archive
before you give it to others. parts.txt names the parts that failed or have more than 16 MiB.`,
		Example: "  ironvip bugreport -f - | ssh admin@example.com 'cat > report.tar.gz'",
	}
	command.ConfigFlag(cmd, &config, command.TheConfig)
	cmd.Flags().StringVarP(&file, "file", "f", "", "the archive; \"-\" is stdout (default: ironvip-bugreport-TIME.tar.gz)")
	command.Must(cmd.MarkFlagFilename("file", "gz"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		at := a.Now().UTC().Format("20060102T150405Z")
		if file == "" {
			file = "ironvip-bugreport-" + at + ".tar.gz"
		}
		if file == "-" {
			return a.writeReport(cmd.Context(), a.Stdout, "ironvip-bugreport-"+at, config)
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if err = errors.Join(a.writeReport(cmd.Context(), f, "ironvip-bugreport-"+at, config), f.Close()); err != nil {
			_ = os.Remove(file)
			return err
		}
		a.Say("written to %s: look into it before you give it to others", file)
		return nil
	}
	return cmd
}

// app runs commands for a report.
type app struct {
	*command.App
	execute func(context.Context, command.Environment, []string) int
}

// report is an archive in the making.
type report struct {
	tar    *tar.Writer
	dir    string
	at     time.Time
	clean  *Redactor
	most   int             // bytes of a part
	parts  strings.Builder // the text of parts.txt
	failed int
	err    error // of the archive
}

// writeReport writes the archive. It keeps one part in memory.
func (a *app) writeReport(ctx context.Context, to io.Writer, dir, config string) error {
	zipped := gzip.NewWriter(to)
	r := &report{tar: tar.NewWriter(zipped), dir: dir, at: a.Now(), clean: New(), most: maxPart}
	files := configFiles(config)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil {
			r.clean.AddConfig(f, text)
		}
	}
	for _, c := range reportCommands {
		path := []string{}
		if c.config != "" {
			path = append(path, c.config, config)
		}
		r.add(c.file, "ironvip "+c.line, func(out io.Writer) error { return a.nested(ctx, out, strings.Fields(c.line), path) })
	}
	for _, p := range reportPrograms {
		r.add(p.file, strings.Join(p.args, " "), func(out io.Writer) error { return runProgram(ctx, out, p.args) })
	}
	for _, f := range append(files, "/etc/os-release") {
		r.add("files/"+strings.TrimPrefix(filepath.ToSlash(f), "/"), f, func(out io.Writer) error {
			in, err := os.Open(f)
			if err != nil {
				return err
			}
			defer in.Close()
			_, err = io.Copy(out, in)
			return err
		})
	}
	r.write("parts.txt", []byte(r.parts.String()))
	if r.err != nil {
		return r.err
	}
	if r.failed > 0 {
		a.Say("%s incomplete: see parts.txt in the archive", output.Plural(r.failed, "part"))
	}
	return errors.Join(r.tar.Close(), zipped.Close())
}

// nested runs a command of this program, with its messages after its output.
func (a *app) nested(ctx context.Context, out io.Writer, args, path []string) error {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	for _, flag := range []struct{ name, value string }{{"--addr", a.Addr}, {"--token-file", a.TokenFile}, {"--ca-file", a.CAFile}} {
		if flag.value != "" {
			args = append(args, flag.name, flag.value)
		}
	}
	o := a.Environment
	var messages bytes.Buffer
	o.Stdin, o.Stdout, o.Stderr = strings.NewReader(""), out, &messages
	code := a.execute(ctx, o, slices.Concat(args, []string{"--timeout", min(a.Timeout, partTime).String()}, path))
	if messages.Len() > 0 {
		_, _ = fmt.Fprintf(out, "\n--- messages ---\n%s", messages.Bytes())
	}
	switch code {
	case command.ExitOK, command.ExitDegraded, command.ExitChanges: // findings are what the report is for
	default:
		return fmt.Errorf("exit code %d", code)
	}
	return nil
}

func runProgram(ctx context.Context, out io.Writer, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}

// configFiles returns the configuration's own files.
func configFiles(config string) []string {
	file := configs.FileAt(config)
	services, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "services.d", "*.toml"))
	return append([]string{file}, services...)
}

// add writes a part, without secrets. It notes errors of the part.
func (r *report) add(name, what string, fill func(io.Writer) error) {
	if r.err != nil {
		return
	}
	part := &bounded{most: r.most}
	err := fill(part)
	switch {
	case part.cut:
		part.text = part.text[:bytes.LastIndexByte(part.text, '\n')+1] // the cut may have split a secret
		err = errors.Join(err, fmt.Errorf("cut after %d bytes", r.most))
	case errors.Is(err, exec.ErrNotFound):
		err = errors.New("not installed")
	}
	state := "complete"
	if err != nil {
		state = strings.Join(strings.Fields(string(r.clean.Clean([]byte(err.Error())))), " ")
		r.failed++
	}
	fmt.Fprintf(&r.parts, "%-24s %s: %s\n", name, what, state)
	r.write(name, r.clean.Clean(part.text))
}

func (r *report) write(name string, text []byte) {
	if r.err == nil {
		r.err = r.tar.WriteHeader(&tar.Header{Name: r.dir + "/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: r.at})
	}
	if r.err == nil {
		_, r.err = r.tar.Write(text)
	}
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	text []byte
	most int
	cut  bool
}

// Write implements io.Writer. It never fails, so that a program is not ended by its output.
func (b *bounded) Write(p []byte) (int, error) {
	room := min(b.most-len(b.text), len(p))
	b.text = append(b.text, p[:room]...)
	b.cut = b.cut || room < len(p)
	return len(p), nil
}
