// Package input reads the definitions of services that a user passes to a command.
//
// Its input is TOML in the form of services.d, or JSON or YAML with one service, a list of
// services, or {"services": [...]}. Its output is services or all problems of the text. The package
// opens no files and sends nothing.
package input

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Services parses TOML, JSON or YAML. The format depends on the extension of name or else on the
// text. Problems have name as their place.
func Services(name string, text []byte) ([]spec.Service, []vip.Problem) {
	switch format(name, text) {
	case ".yaml":
		converted, err := yamlToJSON(text)
		if err != nil {
			return nil, []vip.Problem{{Code: vip.CodeInvalid, Place: name, Message: "invalid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}}
		}
		return parseJSON(name, converted)
	case ".json":
		return parseJSON(name, text)
	}
	parsed := static.ParseServices(name, text, "rest", nil)
	var out []spec.Service
	for _, s := range parsed.Services {
		out = append(out, spec.FromService(s))
	}
	return out, parsed.Problems
}

// jsonStart matches the beginning of JSON that TOML never has: "{", or "[" without a TOML header
// after it.
var jsonStart = regexp.MustCompile(`^\s*(\{|\[\s*[{\]])`)

// yamlStart matches the beginning of YAML that TOML never has: a document mark, a list item or a
// key with a colon. Comments may come first.
var yamlStart = regexp.MustCompile(`^(\s*(#[^\n]*)?\n)*(---|\s*- |\s*[\w"]+:(\s|$))`)

// format returns the format of a text as an extension: ".toml", ".json" or ".yaml".
func format(name string, text []byte) string {
	switch ext := filepath.Ext(name); {
	case ext == ".toml" || ext == ".json" || ext == ".yaml":
		return ext
	case ext == ".yml" || yamlStart.Match(text):
		return ".yaml"
	case jsonStart.Match(text):
		return ".json"
	}
	return ".toml"
}

// yamlToJSON converts a YAML document. Its keys must be strings.
func yamlToJSON(text []byte) ([]byte, error) {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// manyServices is the JSON of several services.
type manyServices struct {
	Services []spec.Service `toml:"services"`
}

func parseJSON(name string, text []byte) ([]spec.Service, []vip.Problem) {
	text = bytes.TrimSpace(text)
	if bytes.HasPrefix(text, []byte("[")) {
		text = append(append([]byte(`{"services":`), text...), '}') // on the same line, so that line numbers remain correct
	}
	tree, problems := strict.ParseJSON(text)
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
