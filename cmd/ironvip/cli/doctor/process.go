package doctor

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// process is one running program.
type process struct {
	pid  int
	name string // its short name, cut at 15 bytes by the kernel
	args []string
}

// processes lists what runs on the host, as far as /proc shows it to us.
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
			continue // it has ended since
		}
		p := process{pid: pid, name: strings.TrimSpace(string(name))}
		if args, err := fs.ReadFile(files, path.Join("proc", e.Name(), "cmdline")); err == nil {
			p.args = strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")
		}
		out = append(out, p)
	}
	return out, nil
}

// findAgent returns the running agent, or nil.
func findAgent(procs []process, self int) *process {
	for i, p := range procs {
		if p.pid != self && p.name == "ironvip" && len(p.args) > 1 && p.args[1] == "agent" {
			return &procs[i]
		}
	}
	return nil
}

// flag returns the value of a command line flag given as "--name=v" or "--name v".
func (p *process) flag(name string) (string, bool) {
	for i, a := range p.args {
		a = strings.TrimLeft(a, "-")
		if v, ok := strings.CutPrefix(a, name+"="); ok {
			return v, true
		}
		if a == name {
			if i+1 < len(p.args) && !strings.HasPrefix(p.args[i+1], "-") {
				return p.args[i+1], true
			}
			return "", true
		}
	}
	return "", false
}
