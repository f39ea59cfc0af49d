package configs

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
)

// lastGoodName is the copy's file in the state directory.
const lastGoodName = "ironvip.toml.last-good"

// LoadOrLastGood is Load for the start of the agent. For a refused file it returns the
// configuration that SaveLastGood saved last, with IsLastGood set. stateDir replaces
// node.state_dir, unless it is "".
//
// Problems that come with a Config don't prevent a start, and are for the log. Without a Config the
// agent can't start: there is no saved copy, or pools overlap, which a copy must not hide.
func LoadOrLastGood(path, stateDir string) (c *Config, problems []vip.Problem) {
	file, data, problem := read(path)
	if problem != nil {
		problems = []vip.Problem{*problem}
	} else if c, problems = Parse(file, data); c != nil {
		c.Node.StateDir = cmp.Or(stateDir, c.Node.StateDir)
		return c, problems
	}
	if slices.ContainsFunc(problems, func(p vip.Problem) bool { return p.Code == vip.CodeOverlap }) {
		return nil, problems
	}
	// A file with another state directory is that of another agent, so the copy in the default one is
	// not its own.
	copyAt := filepath.Join(cmp.Or(stateDir, stateDirOf(data), DefaultStateDir), lastGoodName)
	saved, problem := tomlfile.ReadFile(copyAt, MaxSize)
	if problem != nil {
		if missing(copyAt) {
			return nil, problems
		}
		return nil, append(problems, *problem)
	}
	c, worse := Parse(file, saved)
	if c == nil {
		for i := range worse { // the line numbers are those of the copy
			worse[i].Place = copyAt + worse[i].Place[len(file):]
		}
		return nil, append(problems, worse...)
	}
	c.IsLastGood = true
	c.Node.StateDir = cmp.Or(stateDir, c.Node.StateDir)
	return c, problems
}

// SaveLastGood saves the text of the configuration for a later start that finds a bad file. Call
// it when the agent has started with the configuration, or a reload has applied it.
func (c *Config) SaveLastGood() error {
	if err := saveCopy(c.Node.StateDir, c.doc.Text); err != nil {
		return fmt.Errorf("save the last good configuration: %w", tomlfile.Cause(err))
	}
	return nil
}

// stateDirLine matches the line of node.state_dir, whether or not its string ends.
var stateDirLine = regexp.MustCompile(`(?m)^[^#\n]*\bstate_dir\s*=\s*["']([^"'\n]+)`)

// stateDirOf finds node.state_dir in a refused configuration. It does not parse the text, which
// need not be valid TOML. No other key of the file is called state_dir.
func stateDirOf(text []byte) string {
	found := stateDirLine.FindSubmatch(text)
	if found == nil || !filepath.IsAbs(string(found[1])) {
		return ""
	}
	return string(found[1])
}

// saveCopy writes the copy durably and atomically. It doesn't write an identical copy again.
func saveCopy(stateDir string, data []byte) error {
	path := filepath.Join(stateDir, lastGoodName)
	if old, problem := tomlfile.ReadFile(path, MaxSize); problem == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(stateDir, 0o750); err != nil {
		return err
	}
	f, err := os.CreateTemp(stateDir, lastGoodName+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // renamed by now, unless something failed
	_, err = f.Write(data)
	err = cmp.Or(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(stateDir)
}

// RanBefore reports whether an agent has started with this state directory before. The last good
// configuration then exists.
func (c *Config) RanBefore() bool { return !missing(filepath.Join(c.Node.StateDir, lastGoodName)) }

// syncDir makes a rename within the directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
