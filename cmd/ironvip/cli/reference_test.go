package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
)

// referenceHead begins docs/cli.md. It describes what all commands have in common.
const referenceHead = `# Commands

This page is for operators who look up a command, a flag or an exit code. ` + "`--help`" + ` and the manual
pages (` + "`make man`" + `) have the same texts. ` + "`ironvip agent`" + ` is the daemon. Every other command asks a
running agent, unless its description says that it needs none.

## Rules

- Data is on stdout. Messages are on stderr: a change with its revision, ` + "`error:`" + ` with the cause,
  ` + "`hint:`" + ` with the next step.
- ` + "`-o json`" + ` is the [API's JSON](api.md) and stable, ` + "`yaml`" + ` is the same document, and ` + "`name`" + ` prints one
  name per line in the form that commands accept. Tables may change. ` + "`service get`" + ` prints JSON, YAML
  or TOML in the form that ` + "`service apply`" + ` reads.
- A command that changes something waits until the dataplane has applied the change, for at most
  ` + "`--timeout`" + `. With ` + "`-o json`" + `, the API's response is on stdout.
- Times are relative in tables and RFC 3339 in JSON. ` + "`NO_COLOR`" + ` turns colors off.
- A service is ` + "`NAME`" + ` in the namespace ` + "`default`" + `, else ` + "`NAMESPACE/NAME`" + `. A backend is ` + "`ADDRESS:PORT`" + `,
  or ` + "`ADDRESS`" + ` if it uses the service's target ports.

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
	{command.ExitDegraded, "degraded: `status`, `fleet status` or `doctor` found a problem, `--wait` has ended too early, `snapshot save` or `import` is incomplete"},
	{command.ExitNotFound, "the object does not exist"},
	{command.ExitConflict, "conflict: the object belongs to another owner or has changed meanwhile; an agent runs that must be stopped; `dataplane switch` is refused"},
	{command.ExitUnreachable, "no agent answers"},
	{command.ExitNotPermitted, "not permitted: by the socket's permissions, or by the agent"},
	{command.ExitChanges, "`config plan`, `dataplane diff`, `snapshot compare`, `--dry-run` or `--plan` found changes"},
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
	b.WriteString("\n## Flags of every command\n\n" + flagList(root.PersistentFlags(), nil))
	uses := map[string]int{} // top-level commands with a row
	for _, cmd := range root.Commands() {
		for row := range flagRows(cmd) {
			uses[row]++
		}
	}
	shared := several(uses, 3)
	b.WriteString("\n## Flags of several commands\n\n" + strings.Join(slices.Sorted(maps.Keys(shared)), ""))
	for _, cmd := range root.Commands() {
		document(&b, cmd, shared)
	}
	compareFile(t, "../../../docs/cli.md", b.String())
}

// flagRows returns the rows of the flags of a command and of its children, with the number of the commands.
func flagRows(cmd *cobra.Command) map[string]int {
	rows := map[string]int{}
	if cmd.Hidden || cmd.Name() == "completion" {
		return rows
	}
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && !f.Hidden {
			rows[flagRow(f)] = 1
		}
	})
	for _, child := range cmd.Commands() {
		for row, n := range flagRows(child) {
			rows[row] += n
		}
	}
	return rows
}

// several returns the keys that occur at least n times.
func several(uses map[string]int, n int) map[string]bool {
	out := map[string]bool{}
	for key, k := range uses {
		if k >= n && key != "" {
			out[key] = true
		}
	}
	return out
}

// document writes the section of a command, or of a group and its children. Paragraphs and flags that several children
// have are those of the group, and a child without more than a short text is an item there.
func document(b *strings.Builder, cmd *cobra.Command, documented map[string]bool) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	if cmd.Name() == "completion" {
		b.WriteString("\n## ironvip completion\n\nPrints a script with which a shell completes commands, flags, and the live names of objects.\n\n" +
			"    source <(ironvip completion bash)     # or zsh, fish, powershell; `ironvip completion SHELL --help` describes a permanent setup\n")
		return
	}
	if cmd.HasAvailableSubCommands() {
		documentGroup(b, cmd, documented)
		return
	}
	var paragraphs []string
	for p := range strings.SplitSeq(cmp.Or(cmd.Long, sentence(cmd.Short)), "\n\n") {
		if !documented[p] {
			paragraphs = append(paragraphs, p)
		}
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", cmd.CommandPath(), strings.Join(paragraphs, "\n\n"))
	if line := synopsis(cmd); line != cmd.CommandPath() || cmd.Example != "" {
		b.WriteString("\n    " + line + "\n")
	}
	for l := range strings.Lines(cmd.Example) {
		b.WriteString("    " + strings.TrimSpace(l) + "\n")
	}
	if list := flagList(cmd.NonInheritedFlags(), documented); list != "" {
		b.WriteString("\n" + list)
	}
}

func documentGroup(b *strings.Builder, group *cobra.Command, documented map[string]bool) {
	var items, paragraphs, flags string
	uses, all := map[string]int{}, maps.Clone(documented)
	for _, cmd := range group.Commands() {
		if isItem(cmd) {
			items += "- `" + synopsis(cmd) + "`: " + cmd.Short + "\n"
		}
		for p := range strings.SplitSeq(cmd.Long, "\n\n") {
			if uses[p]++; uses[p] == 2 && p != "" {
				paragraphs += "\n" + p + "\n"
				all[p] = true
			}
		}
	}
	for row := range several(flagRows(group), 2) {
		all[row] = true
	}
	for _, row := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(row, "- ") && !documented[row] {
			flags += row
		}
	}
	if items+paragraphs+flags != "" {
		fmt.Fprintf(b, "\n## %s\n", group.CommandPath())
	}
	if items != "" {
		b.WriteString("\n" + items)
	}
	b.WriteString(paragraphs)
	if flags != "" {
		b.WriteString("\n" + flags)
	}
	for _, cmd := range group.Commands() {
		if !isItem(cmd) {
			document(b, cmd, all)
		}
	}
}

// isItem reports whether the documentation of a command is one line.
func isItem(cmd *cobra.Command) bool {
	return cmd.Long == "" && cmd.Example == "" && len(flagRows(cmd)) == 0 && !cmd.HasSubCommands()
}

// synopsis returns the usage of a command with the names of its flags.
func synopsis(cmd *cobra.Command) string {
	line := strings.TrimSuffix(cmd.UseLine(), " [flags]")
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		isThere := strings.Contains(line, " --"+f.Name+" ") || f.Shorthand != "" && strings.Contains(line, " -"+f.Shorthand+" ")
		if !f.Hidden && f.Name != "help" && !isThere {
			line += " [--" + f.Name + "]"
		}
	})
	return line
}

// flagList documents flags, except those that are documented elsewhere.
func flagList(flags *pflag.FlagSet, documented map[string]bool) string {
	var rows strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if row := flagRow(f); !f.Hidden && f.Name != "help" && !documented[row] {
			rows.WriteString(row)
		}
	})
	return rows.String()
}

func flagRow(f *pflag.Flag) string {
	name := "`--" + f.Name + "`"
	if f.Shorthand != "" {
		name = "`-" + f.Shorthand + "`, " + name
	}
	switch f.DefValue {
	case "", "false", "true", "[]", "0", "0s":
		return fmt.Sprintf("- %s: %s\n", name, f.Usage)
	default:
		return fmt.Sprintf("- %s: %s (default `%s`)\n", name, f.Usage, f.DefValue)
	}
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
