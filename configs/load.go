package configs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Load reads the configuration at path: a file, or a directory that holds ironvip.toml. A file
// that is empty, or missing from an existing directory, is the default configuration. A missing
// directory is a problem, because it may be a mount that failed. With any problem the Config is
// nil.
func Load(path string) (*Config, []vip.Problem) {
	file, data, problem := read(path)
	if problem != nil {
		return nil, []vip.Problem{*problem}
	}
	return Parse(file, data)
}

// read returns the path and content of the file that path means, empty if it is missing from an
// existing directory.
func read(path string) (file string, data []byte, problem *vip.Problem) {
	file = FileAt(path)
	data, problem = tomlfile.ReadFile(file, MaxSize)
	if problem != nil && missing(file) {
		problem = nil
		if _, err := os.Stat(filepath.Dir(file)); err != nil {
			problem = &vip.Problem{Code: vip.CodeInvalid, Place: file,
				Message: fmt.Sprintf("the directory %s: %s", filepath.Dir(file), tomlfile.Cause(err)), Hint: "make it, or name another with --config"}
		}
	}
	return file, data, problem
}

// Parse reads the content of the configuration file at path. With any problem the Config is nil.
func Parse(path string, data []byte) (*Config, []vip.Problem) {
	c, problems := draft(path, data)
	if len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// Draft returns the readable part of the configuration at path, to check the files that it names
// despite other errors. It returns nil for a file that can't be parsed. Don't run an agent with it.
func Draft(path string) *Config {
	file := FileAt(path)
	data, problem := tomlfile.ReadFile(file, MaxSize)
	if problem != nil {
		return nil
	}
	c, _ := draft(file, data)
	return c
}

// draft also returns a Config that has problems. It returns nil for a file that can't be parsed.
func draft(path string, data []byte) (*Config, []vip.Problem) {
	doc, problem := tomlfile.Parse(path, data)
	if problem != nil {
		return nil, []vip.Problem{*problem}
	}
	c := Default()
	c.Path, c.doc = path, doc
	undecoded, outside := strict.DecodeValues(doc.Tree, c, "")
	check := tomlfile.NewChecker(doc, undecoded)
	for _, p := range outside {
		check.Add(p.Field, p)
	}
	c.check(check)
	return c, check.Problems()
}

// Place returns the file and line of a field.
func (c *Config) Place(field string) string { return c.doc.Place(field) }

// hostName is the default of node.name.
func hostName() string {
	name, err := os.Hostname()
	if err != nil || strings.TrimSpace(name) == "" {
		return "localhost"
	}
	return name
}

// Refusal returns an error that lists problems, one per line with its hint.
func Refusal(what string, problems []vip.Problem) error {
	return errors.New(what + ":\n" + text.Join(problems, "\n", func(p vip.Problem) string {
		line := "  " + p.Error()
		if p.Hint != "" {
			line += "     hint: " + p.Hint
		}
		return line
	}))
}
