package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// maxApply bounds the size of one file or of stdin. It is the limit of one API call.
const maxApply = 64 << 20

func (a *app) serviceApplyCommand() *cobra.Command {
	var files []string
	var dryRun, atomic bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE...",
		Short: "create services or replace their definition, from TOML, JSON or YAML",
		Long: `Creates services or replaces their definition. FILE is TOML with [[service]] blocks as in
services.d, or JSON or YAML with one service, a list of services, or {"services": [...]};
"-" is stdin. "service get -o toml" prints this form. If the input has a mistake, nothing is
sent.

The agent stores these services. A service of another source is refused (exit code 5):
change it in that source.`,
		Example: "  ironvip service apply -f web.toml\n  ironvip service apply -f - --dry-run < services.json",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&files, "file", "f", nil, "file to apply; \"-\" is stdin (repeatable)")
	flags.BoolVar(&dryRun, "dry-run", false, "change nothing and show what would change (exit code 10 if anything would)")
	flags.BoolVar(&atomic, "atomic", false, "change nothing if one of the services is refused")
	dontWait := noWait(flags)
	must(cmd.MarkFlagFilename("file", "toml", "json", "yaml", "yml"))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(files) == 0 {
			return usage(cmd, "%s: -f FILE is missing", cmd.CommandPath())
		}
		services, problems := a.readServices(files)
		if len(problems) > 0 {
			return a.refuseInput(problems)
		}
		return a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
			w := a.write(*dontWait || dryRun)
			start := a.Now()
			result, err := c.Apply(ctx, services, dryRun, atomic, w)
			if err != nil {
				return err
			}
			if dryRun {
				return a.showDryRun(result)
			}
			a.sayApplied(result)
			if result.Created+result.Updated > 0 {
				if w.Wait > 0 {
					a.printer().Say("revision %d applied in %s", result.Revision, a.Now().Sub(start).Round(1e6))
				} else {
					a.printer().Say("revision %d, not waiting", result.Revision)
				}
			}
			if !a.printer().People() {
				if err := a.show(a.applyView(result)); err != nil {
					return err
				}
			}
			return refusedCode(result)
		})(cmd, nil)
	}
	return cmd
}

// readServices reads every file and returns the problems of all of them.
func (a *app) readServices(files []string) ([]spec.Service, []vip.Problem) {
	var out []spec.Service
	var problems []vip.Problem
	for _, file := range files {
		data, name, problem := a.readInput(file, maxApply)
		if problem != nil {
			problems = append(problems, *problem)
			continue
		}
		services, more := parseServices(name, data)
		if len(services) == 0 && len(more) == 0 {
			more = []vip.Problem{{Code: vip.CodeInvalid, Place: name, Message: "has no services",
				Hint: "start each service with [[service]] in TOML; in JSON, use an object or a list"}}
		}
		out, problems = append(out, services...), append(problems, more...)
	}
	return out, problems
}

// readInput returns the content of a file or of stdin, of at most limit bytes, and its name for
// messages.
func (a *app) readInput(file string, limit int) ([]byte, string, *vip.Problem) {
	if file != "-" {
		data, problem := tomlfile.ReadFile(file, limit)
		return data, file, problem
	}
	data, err := io.ReadAll(io.LimitReader(a.Stdin, int64(limit)+1))
	p := vip.Problem{Code: vip.CodeInvalid, Place: "stdin"}
	switch {
	case err != nil:
		p.Message = err.Error()
		return nil, "stdin", &p
	case len(data) > limit:
		p.Message = fmt.Sprintf("must be at most %d MiB", limit>>20)
		return nil, "stdin", &p
	}
	return data, "stdin", nil
}

// parseServices parses TOML, JSON or YAML. The format depends on the name's extension or else on
// the text.
func parseServices(name string, data []byte) ([]spec.Service, []vip.Problem) {
	if ext := filepath.Ext(name); ext == ".yaml" || ext == ".yml" || ext != ".toml" && ext != ".json" && looksLikeYAML(data) {
		text, err := yamlToJSON(data)
		if err != nil {
			return nil, []vip.Problem{{Code: vip.CodeInvalid, Place: name, Message: "invalid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}}
		}
		return parseJSON(name, text)
	}
	if filepath.Ext(name) == ".json" || filepath.Ext(name) != ".toml" && looksLikeJSON(data) {
		return parseJSON(name, data)
	}
	parsed := static.ParseServices(name, data, "rest", nil)
	var out []spec.Service
	for _, s := range parsed.Services {
		out = append(out, spec.FromService(s))
	}
	return out, parsed.Problems
}

// looksLikeJSON distinguishes JSON from TOML by its beginning: "{", or "[" without a TOML header
// after it.
func looksLikeJSON(data []byte) bool {
	data = bytes.TrimLeft(data, " \t\r\n")
	if bytes.HasPrefix(data, []byte("{")) {
		return true
	}
	rest, list := bytes.CutPrefix(data, []byte("["))
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return list && (bytes.HasPrefix(rest, []byte("{")) || bytes.HasPrefix(rest, []byte("]")))
}

// yamlStart matches the beginning of YAML that TOML never has: a document mark, a list item or a
// key with a colon. Comments may come first.
var yamlStart = regexp.MustCompile(`^(\s*(#[^\n]*)?\n)*(---|\s*- |\s*[\w"]+:(\s|$))`)

func looksLikeYAML(data []byte) bool { return yamlStart.Match(data) }

// yamlToJSON converts a YAML document. Its keys must be strings.
func yamlToJSON(data []byte) ([]byte, error) {
	var v any
	if err := yaml.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// manyServices is the JSON of several services.
type manyServices struct {
	Services []spec.Service `toml:"services"`
}

func parseJSON(name string, data []byte) ([]spec.Service, []vip.Problem) {
	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("[")) {
		data = append(append([]byte(`{"services":`), data...), '}') // on the same line, so that line numbers remain correct
	}
	tree, problems := strict.ParseJSON(data)
	var many manyServices
	if _, several := tree["services"]; several {
		problems = append(problems, strict.Decode(tree, &many, "")...)
	} else if tree != nil {
		many.Services = make([]spec.Service, 1)
		problems = append(problems, strict.Decode(tree, &many.Services[0], "")...)
	}
	if len(problems) == 0 {
		for i := range many.Services {
			_, wrong := many.Services[i].Build("rest", name)
			for _, p := range wrong {
				p.Service = many.Services[i].Title()
				problems = append(problems, p)
			}
		}
	}
	for i := range problems {
		problems[i].Place = name
	}
	return many.Services, problems
}

// refuseInput prints the problems of the input and ends the command.
func (a *app) refuseInput(problems []vip.Problem) error {
	for _, p := range problems {
		a.printer().Label("error", output.Bad, problemLine(fromVIP(p)))
	}
	a.printer().Say("%s; nothing was changed", output.Plural(len(problems), "mistake"))
	return exit(ExitError)
}

// fromVIP converts a problem to the API's type.
func fromVIP(p vip.Problem) v1.Problem {
	return v1.Problem{Code: p.Code, Place: p.Place, Service: p.Service, Field: p.Field, Message: p.Message, Hint: p.Hint}
}

func fromVIPs(in []vip.Problem) []v1.Problem {
	out := make([]v1.Problem, len(in))
	for i, p := range in {
		out[i] = fromVIP(p)
	}
	return out
}

// sayApplied prints the outcome of each service.
func (a *app) sayApplied(r v1.ApplyResult) {
	p := a.printer()
	for _, item := range r.Items {
		name := nameOf(item.Namespace, item.Name)
		if item.Action == v1.Refused {
			p.Label("error", output.Bad, "service "+name+" refused")
		} else {
			at := ""
			if item.Action != v1.Unchanged {
				at = fmt.Sprintf(" (revision %d)", item.Revision)
			}
			if len(item.VIPs) > 0 {
				at += ", at " + addresses(item.VIPs)
			}
			p.Say("service %s %s%s", name, item.Action, at)
		}
		for _, problem := range item.Problems {
			problem.Field = inRequest.ReplaceAllString(problem.Field, "")
			problem.Service = "" // named above
			p.Say("  %s", problemLine(problem))
		}
	}
}

// refusedCode returns the exit code of an apply: success, a conflict if all refusals are conflicts,
// else an error.
func refusedCode(r v1.ApplyResult) error {
	if r.Refused == 0 {
		return nil
	}
	for _, item := range r.Items {
		if item.Action != v1.Refused {
			continue
		}
		if !conflicts(item.Problems) {
			return exit(ExitError)
		}
	}
	return exit(ExitConflict)
}

// showDryRun shows what an apply would change.
func (a *app) showDryRun(r v1.ApplyResult) error {
	plan := v1.Plan{Changes: []v1.PlanChange{}, Problems: []v1.Problem{}}
	if r.Plan != nil {
		plan = *r.Plan
	}
	view := a.planView(plan) // including refused services among its problems
	if !a.printer().People() {
		view = a.applyView(r)
	}
	if err := a.show(view); err != nil {
		return err
	}
	if r.Refused > 0 {
		return refusedCode(r)
	}
	return planCode(plan)
}

func (a *app) applyView(r v1.ApplyResult) output.View {
	return output.View{
		Data: r,
		Names: func() []string {
			var names []string
			for _, item := range r.Items {
				if item.Action != v1.Refused {
					names = append(names, nameOf(item.Namespace, item.Name))
				}
			}
			return names
		},
		Text: func(bool) string { return "" },
	}
}
