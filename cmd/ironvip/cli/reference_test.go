package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
)

// referenceHead begins docs/cli.md. It describes what all commands have in common.
const referenceHead = `# Commands

` + "`go test ./cmd/ironvip/cli -update`" + ` writes this page from the commands. ` + "`--help`" + ` and the
manual pages have the same text (` + "`make man`" + `). ` + "`ironvip agent`" + ` is the daemon ([operations.md](operations.md)). Every other command sends
requests to a running agent, unless its description says that it needs none.

## Rules

- Data is on stdout, messages are on stderr.
- Every reading command accepts ` + "`-o table|wide|json|yaml|name`" + `. JSON is the API's and stable
  ([api.md](api.md)), YAML is the same document, and ` + "`name`" + ` prints one name per line in the form
  that commands accept. Tables are for people and may change. ` + "`service get`" + ` is an exception: it
  prints JSON, YAML or TOML in the form that ` + "`service apply`" + ` reads.
- A command that changes something prints the change and the revision on stderr. It waits until the
  dataplane has applied the change, for at most ` + "`--timeout`" + `; ` + "`--no-wait`" + ` omits this. With ` + "`-o json`" + `,
  the API's response is on stdout.
- Times are relative in tables and RFC 3339 in JSON.
- ` + "`error:`" + ` states what failed and why, ` + "`hint:`" + ` what to do next.
- Colors appear only on a terminal, only in addition to words, and not if ` + "`NO_COLOR`" + ` is set.
- The agent's address is ` + "`--addr`" + `, else ` + "`IRONVIP_ADDR`" + `, else ` + "`unix:///run/ironvip/ironvip.sock`" + `.
- A service is ` + "`NAME`" + ` in the namespace ` + "`default`" + `, else ` + "`NAMESPACE/NAME`" + `. A backend is
  ` + "`ADDRESS:PORT`" + `, or ` + "`ADDRESS`" + ` if it uses the service's target ports.

## Exit codes

| code | meaning |
|---|---|
`

// meanings lists the exit codes in their order, with the text of the page.
var meanings = []struct {
	code int
	text string
}{
	{command.ExitOK, "success"},
	{command.ExitError, "error: the input is invalid, or the agent failed; `doctor` found a FAIL"},
	{command.ExitUsage, "the command line is invalid"},
	{command.ExitDegraded, "degraded: `status` found a warning or a failure, `doctor` found only a WARN, `snapshot save` found unreadable values, `backend drain --wait` left connections, `import` made files that `config validate` refuses"},
	{command.ExitNotFound, "the object does not exist"},
	{command.ExitConflict, "conflict: the object belongs to another owner or has changed meanwhile; for a command that needs a stopped agent, an agent runs; `dataplane switch` is refused"},
	{command.ExitUnreachable, "no agent answers"},
	{command.ExitNotPermitted, "not permitted: by the socket's permissions, or by the agent"},
	{command.ExitChanges, "`config plan`, `reload --dry-run`, `service apply --dry-run`, `dataplane diff`, `dataplane switch --plan`, `dataplane clean --dry-run` or `snapshot compare` found changes"},
}

// TestReference keeps docs/cli.md equal to the commands.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, m := range meanings {
		fmt.Fprintf(&b, "| %d | %s |\n", m.code, m.text)
	}
	root := root()
	root.InitDefaultCompletionCmd()
	b.WriteString("\n## Flags of every command\n\n" + flagTable(root.PersistentFlags()))
	for _, cmd := range root.Commands() {
		document(&b, cmd)
	}
	compareFile(t, "../../../docs/cli.md", b.String())
}

// document writes the sections of a command and of its children.
func document(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n", cmd.CommandPath())
	if cmd.HasAvailableSubCommands() && cmd.Name() != "completion" {
		b.WriteString(sentence(cmd.Short) + "\n")
		for _, child := range cmd.Commands() {
			document(b, child)
		}
		return
	}
	if cmd.Name() == "completion" {
		b.WriteString("Prints a script that makes a shell complete commands, flags and the live names of services,\nbackends and sources.\n\n" +
			"    source <(ironvip completion bash)     # or zsh, fish, powershell; `ironvip completion SHELL --help` describes a permanent setup\n")
		return
	}
	text := cmd.Long
	if text == "" {
		text = sentence(cmd.Short)
	}
	fmt.Fprintf(b, "%s\n\n    %s\n", text, cmd.UseLine())
	if cmd.Example != "" {
		var lines []string
		for l := range strings.Lines(cmd.Example) {
			lines = append(lines, "    "+strings.TrimSpace(l))
		}
		b.WriteString("\nExamples:\n\n" + strings.Join(lines, "\n") + "\n")
	}
	if flags := cmd.NonInheritedFlags(); flags.HasAvailableFlags() {
		if table := flagTable(flags); table != "" {
			b.WriteString("\n" + table)
		}
	}
}

func flagTable(flags *pflag.FlagSet) string {
	var rows strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		def := ""
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" {
			def = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", name, strings.ReplaceAll(f.Usage, "|", "\\|"), def)
	})
	if rows.Len() == 0 {
		return ""
	}
	return "| flag | meaning | default |\n|---|---|---|\n" + rows.String()
}

// sentence turns the short text of a command into a sentence.
func sentence(short string) string { return strings.ToUpper(short[:1]) + short[1:] + "." }

// TestCommandsDescribeThemselves checks the short text and the completion of every command.
func TestCommandsDescribeThemselves(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || len(cmd.Short) > 90 {
			t.Errorf("%s: short text %q: wants one line without a full stop", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil && cmd.Args != nil && cmd.Args(cmd, []string{"x"}) == nil {
			t.Errorf("%s takes arguments and completes none", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			check(child)
		}
	}
	check(root())
}
