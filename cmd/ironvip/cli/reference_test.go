package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// referenceHead is the part of docs/cli.md that no command says of itself.
const referenceHead = `# The commands

This page is written by ` + "`go test ./cmd/ironvip/cli -update`" + ` from the commands themselves; the same text is behind
` + "`--help`" + `. ` + "`ironvip agent`" + ` is the daemon ([operations.md](operations.md)); every other command asks a running one, or says
that it needs none.

## Rules

- stdout is data, stderr is talk. Every reading command takes ` + "`-o table|wide|json|yaml|name`" + `. JSON is the API's own and stable
  ([api.md](api.md)), YAML is the same document, ` + "`name`" + ` is one name a line in the form that commands take. Tables are for people
  and may change.
- A command that changes something says on stderr what changed and the revision, and waits until the dataplane has it, at most for
  ` + "`--timeout`" + `; ` + "`--no-wait`" + ` doesn't. With ` + "`-o json`" + ` the API's answer is on stdout.
- Times are relative in tables and RFC 3339 in JSON.
- An error is ` + "`error:`" + ` what and why, and ` + "`hint:`" + ` what next.
- Colours are used on a terminal only, never without a word beside them, and not with ` + "`NO_COLOR`" + ` set.
- The agent's address is ` + "`--addr`" + `, else ` + "`IRONVIP_ADDR`" + `, else ` + "`unix:///run/ironvip/ironvip.sock`" + `.
- A service is named ` + "`NAME`" + ` in the namespace ` + "`default`" + `, else ` + "`NAMESPACE/NAME`" + `; a backend ` + "`ADDRESS:PORT`" + `, or ` + "`ADDRESS`" + ` where it
  follows the service's target ports.

## Exit codes

| code | meaning |
|---|---|
`

// meanings are the exit codes as the page explains them, in their order.
var meanings = []struct {
	code int
	text string
}{
	{ExitOK, "done, and all is well"},
	{ExitError, "error: a mistake in the input, or the agent could not do it; `doctor` found a FAIL"},
	{ExitUsage, "the command line can't be understood"},
	{ExitDegraded, "degraded: `status` found a node that isn't well, `doctor` only a WARN"},
	{ExitNotFound, "no such object"},
	{ExitConflict, "somebody else owns it, or changed it meanwhile; for `dataplane clean`, an agent runs"},
	{ExitUnreachable, "no agent answers"},
	{ExitNotPermitted, "not permitted: the socket's permissions, or the agent"},
	{ExitChanges, "`config plan`, `service apply --dry-run`, `dataplane diff` or `dataplane clean --dry-run` has changes"},
}

// TestReference keeps docs/cli.md equal to the commands.
func TestReference(t *testing.T) {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, m := range meanings {
		fmt.Fprintf(&b, "| %d | %s |\n", m.code, m.text)
	}
	root := NewRoot(Options{})
	root.InitDefaultCompletionCmd()
	b.WriteString("\n## Flags of every command\n\n" + flagTable(root.PersistentFlags()))
	for _, cmd := range root.Commands() {
		document(&b, cmd)
	}
	compareFile(t, "../../../docs/cli.md", b.String())
}

// document writes a command's part of the page, and its children's.
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
		b.WriteString("Prints a script that makes a shell complete commands, flags and the live names of services, backends and sources.\n\n" +
			"    source <(ironvip completion bash)     # or zsh, fish, powershell; `ironvip completion SHELL --help` says how to keep it\n")
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

// sentence makes a command's short text one.
func sentence(short string) string { return strings.ToUpper(short[:1]) + short[1:] + "." }

// Every command says what it is in one line, and wears the same clothes.
func TestCommandsDescribeThemselves(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || len(cmd.Short) > 90 {
			t.Errorf("%s: short text %q: wants one line without a full stop", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.ValidArgsFunction == nil && cmd.Args != nil && cmd.Args(cmd, []string{"x"}) == nil {
			t.Errorf("%s takes arguments and completes none", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			check(child)
		}
	}
	check(NewRoot(Options{}))
}
