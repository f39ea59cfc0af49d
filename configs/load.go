package configs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Load reads the configuration at path: a file, or a directory that holds
// ironvip.toml. A file that is empty, or missing from a directory that is
// there, is the default configuration. A directory that is not there is a
// problem: it may be a mount that failed. With any problem the Config is nil.
func Load(path string) (*Config, []vip.Problem) {
	_, _, c, problems := load(path)
	return c, problems
}

// load returns also the file's path and content, for remembering it.
func load(path string) (file string, data []byte, c *Config, problems []vip.Problem) {
	file = fileAt(path)
	data, problem := ReadFile(file, MaxConfigSize)
	if problem != nil {
		if !missing(file) {
			return file, nil, nil, []vip.Problem{*problem}
		}
		if _, err := os.Stat(filepath.Dir(file)); err != nil {
			return file, nil, nil, []vip.Problem{{Code: vip.CodeInvalid, Place: file,
				Message: fmt.Sprintf("the directory %s: %s", filepath.Dir(file), cause(err)), Hint: "make it, or name another with --config"}}
		}
	}
	c, problems = Parse(file, data)
	return file, data, c, problems
}

// fileAt returns the configuration file that path means. What is not there is
// a directory, unless it is called like a file.
func fileAt(path string) string {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err == nil && info.IsDir() || missing(path) && filepath.Ext(path) != filepath.Ext(ConfigName) {
		return filepath.Join(path, ConfigName)
	}
	return path
}

// missing reports whether there is nothing at all at path, not even a link.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Parse reads the content of the configuration file at path. The default
// source depends on whether services.d is there; nothing else is looked up on
// disk. With any problem the Config is nil.
func Parse(path string, data []byte) (*Config, []vip.Problem) {
	c, problems := draft(path, data)
	if len(problems) > 0 {
		return nil, problems
	}
	return c, nil
}

// Draft returns the configuration at path as far as it can be read, for a look at
// the files that it names while the rest of it has mistakes; nil where nothing can
// be read. It is not for running.
func Draft(path string) *Config {
	file := fileAt(path)
	data, problem := ReadFile(file, MaxConfigSize)
	if problem != nil {
		return nil
	}
	c, _ := draft(file, data)
	return c
}

// draft returns also a Config with problems; nil where the file can't be parsed.
func draft(path string, data []byte) (*Config, []vip.Problem) {
	tree, at, problem := parse(path, data)
	if problem != nil {
		return nil, []vip.Problem{*problem}
	}
	c := Default()
	c.Path, c.text = path, data
	problems := strict.Decode(tree, c, "")
	v := validator{config: c, at: at, path: path, undecoded: problems}
	v.validate()
	problems = slices.Concat(problems, v.problems)
	if len(problems) > 0 {
		for i := range problems {
			if p := &problems[i]; p.Place == "" {
				p.Place = lineOf(path, at.line(p.Field))
			}
		}
		SortProblems(problems)
	}
	return c, problems
}

// Where returns the file and line of a field.
func (c *Config) Where(field string) string {
	at, _ := scan(c.text) // it was parsed from this
	return lineOf(c.Path, at.line(field))
}

// defaultSources is what counts where no [[source]] is written: services.d,
// also while it is not there, so that one that vanished keeps its services.
func defaultSources(path string) []Source {
	dir := filepath.Join(filepath.Dir(path), ServicesDir)
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return []Source{{Type: SourceStatic, Name: SourceStatic, Path: dir, Optional: true}}
}

// UnreadServices returns the services.d beside the file if it holds services
// and none of the sources reads it, as where a [[source]] was written for
// Consul and none for it; else "".
func (c *Config) UnreadServices() string {
	dir := defaultSources(c.Path)[0].Path
	if slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Type == SourceStatic && s.Path == dir }) {
		return ""
	}
	if files, err := ListServices(dir); err != nil || len(files) == 0 {
		return ""
	}
	return dir
}

// hostName is the node's name where none is written.
func hostName() string {
	name, err := os.Hostname()
	if err != nil || strings.TrimSpace(name) == "" {
		return "localhost"
	}
	return name
}
