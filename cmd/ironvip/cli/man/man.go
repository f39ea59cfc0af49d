// Package man writes the manual pages: ironvip(1), a page for each top-level command, and
// ironvip.toml(5).
//
// Its inputs are the tree of commands, which docs/cli.md and --help show as well, and the
// documentation of keys in configs/reference. Its output is pages in man(7). They have no date, so
// that two builds are the same.
package man

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ironvip/ironvip/configs/reference"
)

// Pages returns all pages by their file names: "ironvip-status.1".
func Pages(root *cobra.Command) map[string]string {
	out := map[string]string{"ironvip.1": overview(root), "ironvip.toml.5": configuration()}
	for _, c := range shown(root) {
		out[root.Name()+"-"+c.Name()+".1"] = command(c)
	}
	return out
}

// shown returns the commands below one that users see.
func shown(cmd *cobra.Command) (out []*cobra.Command) {
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			out = append(out, c)
		}
	}
	return out
}

// page is a page in the making.
type page struct{ strings.Builder }

func newPage(title, section, name, short string) *page {
	p := &page{}
	fmt.Fprintf(p, ".TH %s %s \"\" ironvip \"ironvip manual\"\n", title, section)
	p.heading("NAME")
	fmt.Fprintf(p, "%s \\- %s\n", escape(name), escape(short))
	return p
}

func (p *page) heading(text string) { fmt.Fprintf(p, ".SH %s\n", text) }

// text writes paragraphs. Lines that begin with spaces are code.
func (p *page) text(s string) {
	blank := true // a paragraph macro is needed
	first := true
	for line := range strings.Lines(strings.Trim(s, "\n") + "\n") {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
			blank = true
		case strings.HasPrefix(line, "  "), strings.HasPrefix(line, "\t"):
			p.code(strings.TrimSpace(line))
			blank = true
		default:
			if blank && !first {
				p.WriteString(".PP\n")
			}
			p.WriteString(escape(line) + "\n")
			blank = false
		}
		first = first && line == ""
	}
}

func (p *page) code(lines ...string) {
	p.WriteString(".PP\n.RS 4\n.nf\n")
	for _, l := range lines {
		p.WriteString(escape(l) + "\n")
	}
	p.WriteString(".fi\n.RE\n")
}

// item writes a term with its explanation.
func (p *page) item(term, text string) {
	fmt.Fprintf(p, ".TP\n.B %s\n%s\n", escape(term), escape(text))
}

// escape makes a text literal: hyphens are those of options, and a line can't be a request.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func (p *page) flags(title string, flags *pflag.FlagSet) {
	first := true
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		if first {
			p.WriteString(title)
			first = false
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if f.Value.Type() != "bool" {
			name += " " + strings.ToUpper(f.Value.Type())
		}
		p.item(name, f.Usage)
	})
}

func overview(root *cobra.Command) string {
	p := newPage("IRONVIP", "1", "ironvip", root.Short)
	p.heading("SYNOPSIS")
	p.WriteString(escape(root.Name()+" COMMAND [flags]") + "\n")
	p.heading("DESCRIPTION")
	p.text(root.Long)
	p.heading("COMMANDS")
	for _, c := range shown(root) {
		p.item(root.Name()+"-"+c.Name()+"(1)", c.Short)
	}
	p.flags(".SH OPTIONS\n", root.PersistentFlags())
	p.heading("SEE ALSO")
	p.WriteString("ironvip.toml(5)\n")
	return p.String()
}

func command(c *cobra.Command) string {
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	p := newPage(strings.ToUpper(name), "1", name, c.Short)
	var all []*cobra.Command // that do something
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		children := shown(c)
		if len(children) == 0 {
			all = append(all, c)
		}
		for _, child := range children {
			walk(child)
		}
	}
	walk(c)
	p.heading("SYNOPSIS")
	for i, c := range all {
		if i > 0 {
			p.WriteString(".br\n")
		}
		p.WriteString(escape(c.UseLine()) + "\n")
	}
	p.heading("DESCRIPTION")
	for _, c := range all {
		if len(all) > 1 {
			fmt.Fprintf(p, ".SS %s\n", escape(c.CommandPath()))
		}
		text := c.Long
		if text == "" {
			text = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
		}
		p.text(text)
		p.flags("", c.NonInheritedFlags())
		if c.Example != "" {
			p.WriteString(".PP\nExamples:\n")
			var lines []string
			for l := range strings.Lines(c.Example) {
				lines = append(lines, strings.TrimSpace(l))
			}
			p.code(lines...)
		}
	}
	p.heading("SEE ALSO")
	p.WriteString("ironvip(1), ironvip.toml(5)\n")
	return p.String()
}

// blocks are the tables of ironvip.toml(5) after the first one.
var blocks = []struct {
	name  string
	table reference.Table
}{{"[[pool]]", reference.Pool}, {"[pool.bgp] and [[pool.bgp.match]]", reference.Route}, {"[[quota]]", reference.Quota}, {"[[source]]", reference.Source}, {"[[source.service]]", reference.DNSService}, {"[[api.role]]", reference.Role}, {"[[announce.bgp]]", reference.Router},
	{"[[hook]]", reference.Hook}, {"the document of hooks", reference.Document},
	{"[[service]] in services.d", reference.Service}, {"ports of a service", reference.Port}, {"backends of a service", reference.Backend}, {"groups of a service", reference.Group},
	{"health of a service", reference.HealthCheck}}

func configuration() string {
	p := newPage("IRONVIP.TOML", "5", "ironvip.toml", "configuration of ironvip")
	p.heading("DESCRIPTION")
	p.text("The agent reads /etc/ironvip/ironvip.toml and the services of /etc/ironvip/services.d. An\n" +
		"empty file is a valid configuration. Unknown keys are errors.\n" +
		"\"ironvip config validate\" lists every mistake, and \"ironvip config show --origin\" every key in effect.")
	p.heading("KEYS")
	keys(p, reference.Config)
	for _, b := range blocks {
		p.heading(strings.ToUpper(escape(b.name)))
		keys(p, b.table)
	}
	p.heading("SEE ALSO")
	p.WriteString("ironvip(1), ironvip\\-config(1)\n")
	return p.String()
}

func keys(p *page, t reference.Table) {
	for _, k := range t {
		text := k.Describe() + "."
		if k.Live {
			text += " A reload applies it."
		}
		p.item(k.Key, text)
	}
}

// Command returns the hidden command for builds: `make man`.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:               "man DIR",
		Short:             "write the manual pages to a directory",
		Hidden:            true,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, args []string) error {
			errs := []error{os.MkdirAll(args[0], 0o755)}
			for name, text := range Pages(cmd.Root()) {
				errs = append(errs, os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644))
			}
			return errors.Join(errs...)
		},
	}
}
