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

// lastGoodName is the remembered copy's file within the state directory.
const lastGoodName = "ironvip.toml.last-good"

// LoadOrLastGood is Load for the start of the agent: where Load refuses the
// file, the one that Remember was last called for counts instead
// (Config.Remembered says so). StateDir, when not "", is used in place of
// node.state_dir.
//
// Problems beside a Config are to be shouted, and are not in the way of
// starting. Without a Config the agent can't start: nothing was remembered, or
// pools overlap, which no copy may paper over.
func LoadOrLastGood(path, stateDir string) (*Config, []vip.Problem) {
	file, data, c, problems := load(path)
	if c != nil {
		if stateDir != "" {
			c.Node.StateDir = stateDir
		}
		return c, problems
	}
	if slices.ContainsFunc(problems, func(p vip.Problem) bool { return p.Code == vip.CodeOverlap }) {
		return nil, problems
	}
	copyAt := filepath.Join(cmp.Or(stateDir, stateDirOf(data), DefaultStateDir), lastGoodName)
	if stateDir == "" && missing(copyAt) {
		copyAt = filepath.Join(DefaultStateDir, lastGoodName)
	}
	remembered, problem := tomlfile.ReadFile(copyAt, MaxSize)
	if problem != nil {
		if !missing(copyAt) {
			problems = append(problems, *problem)
		}
		return nil, problems
	}
	c, worse := Parse(file, remembered)
	if c == nil {
		for i := range worse { // the lines are those of the copy
			worse[i].Place = copyAt + worse[i].Place[len(file):]
		}
		return nil, append(problems, worse...)
	}
	c.Remembered = true
	if stateDir != "" {
		c.Node.StateDir = stateDir
	}
	return c, problems
}

// Remember makes the configuration, as it was read, the one that counts when a
// later start finds a bad file. Call it once the agent has started with it, for
// one that can't be started with is not good, and when a reload has taken
// effect. The state directory must be this agent's alone.
func (c *Config) Remember() error {
	if err := remember(c.Node.StateDir, c.doc.Text); err != nil {
		return fmt.Errorf("remember the configuration: %w", tomlfile.Cause(err))
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

// remember writes the copy, durably and whole or not at all. One that is the
// same already is left alone.
func remember(stateDir string, data []byte) error {
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
	defer os.Remove(f.Name()) // nothing is there once it is renamed
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

// RanBefore reports whether an agent has started with this state directory before: then the
// last good configuration is there.
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
