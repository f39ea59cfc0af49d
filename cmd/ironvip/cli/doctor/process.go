package doctor

import (
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/command"
)

// process is one running program.
type process struct {
	pid  int
	name string // its short name, cut at 15 bytes by the kernel
	args []string
}

// processes lists the visible processes.
func processes(files fs.FS) ([]process, error) {
	entries, err := fs.ReadDir(files, "proc")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := fs.ReadFile(files, path.Join("proc", e.Name(), "comm"))
		if err != nil {
			continue // it has ended
		}
		p := process{pid: pid, name: strings.TrimSpace(string(name))}
		if args, err := fs.ReadFile(files, path.Join("proc", e.Name(), "cmdline")); err == nil {
			p.args = strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")
		}
		out = append(out, p)
	}
	return out, nil
}

// findAgent returns the running agent of a configuration, or nil. It ignores agents of other
// configurations and of other network namespaces.
func findAgent(h Host, procs []process, config string) *process {
	for i, p := range procs {
		if p.pid == h.PID || p.name != "ironvip" || len(p.args) < 2 || p.args[1] != "agent" {
			continue
		}
		its, ok := p.flag("config")
		if !ok {
			its = command.DefaultConfig
		}
		if !path.IsAbs(its) {
			dir, err := fs.ReadLink(h.Files, path.Join("proc", strconv.Itoa(p.pid), "cwd"))
			if err != nil {
				continue
			}
			its = path.Join(dir, its)
		}
		if configDir(its) == configDir(config) && sameNetwork(h, p.pid) {
			return &procs[i]
		}
	}
	return nil
}

// configDir returns the directory of a configuration, which a path names by its
// directory or its file.
func configDir(config string) string {
	config = path.Clean(config)
	if path.Ext(config) == ".toml" {
		return path.Dir(config)
	}
	return config
}

// sameNetwork reports whether a process is in the network namespace of this one. It
// returns true if that can't be read, which takes the rights to trace the process.
func sameNetwork(h Host, pid int) bool {
	namespace := func(pid int) string {
		link, _ := fs.ReadLink(h.Files, path.Join("proc", strconv.Itoa(pid), "ns/net"))
		return link
	}
	its, own := namespace(pid), namespace(h.PID)
	return its == "" || own == "" || its == own
}

// flag returns the value of a command line flag given as "--name=v" or "--name v", under any of its
// names.
func (p *process) flag(names ...string) (string, bool) {
	for i, a := range p.args {
		name, value, set := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if !slices.Contains(names, name) {
			continue
		}
		if next := i + 1; !set && next < len(p.args) && !strings.HasPrefix(p.args[next], "-") {
			value = p.args[next]
		}
		return value, true
	}
	return "", false
}
