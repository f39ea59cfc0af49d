package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// needed are the capabilities that the IPVS dataplane works with, by their bit
// (capability.h).
var needed = []struct {
	bit  uint
	name string
}{{10, "CAP_NET_BIND_SERVICE"}, {12, "CAP_NET_ADMIN"}, {13, "CAP_NET_RAW"}}

// rights checks the capabilities of the running agent. Without one there is
// nothing to check: ours say nothing about those the unit will give it.
func rights(h Host, w Want, agent *process) []Finding {
	if agent == nil || w.Mode == ModeProxy {
		return nil
	}
	status, err := fs.ReadFile(h.Files, path.Join("proc", strconv.Itoa(agent.pid), "status"))
	if err != nil {
		return []Finding{{Warn, "capabilities", fmt.Sprintf("can't read the rights of the agent (pid %d): %v", agent.pid, err), ""}}
	}
	var effective uint64
	for l := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(l, "CapEff:"); ok {
			effective, _ = strconv.ParseUint(strings.TrimSpace(v), 16, 64)
		}
	}
	var missing, all []string
	for _, c := range needed {
		all = append(all, c.name)
		if effective&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return []Finding{{OK, "capabilities", fmt.Sprintf("agent (pid %d) has %s", agent.pid, strings.Join(all, ", ")), ""}}
	}
	level := Warn
	if w.Mode == ModeIPVS {
		level = Fail
	}
	return []Finding{{level, "capabilities", fmt.Sprintf("agent (pid %d) has no %s", agent.pid, strings.Join(missing, ", ")),
		"AmbientCapabilities=" + strings.Join(all, " ") + " in its unit"}}
}

// fewFiles is how many open files the userspace dataplane should be allowed at
// least: two for each connection.
const fewFiles = 65536

// openFiles checks the hard limit of the agent, or else of this process. The
// soft limit doesn't matter: Go programs raise it to the hard one.
func openFiles(h Host, agent *process) Finding {
	pid, whose := h.PID, "this shell"
	if agent != nil {
		pid, whose = agent.pid, fmt.Sprintf("agent (pid %d)", agent.pid)
	}
	b, err := fs.ReadFile(h.Files, path.Join("proc", strconv.Itoa(pid), "limits"))
	if err != nil {
		return Finding{Warn, "open_files", fmt.Sprintf("can't read the limits of %s: %v", whose, err), ""}
	}
	for l := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(l, "Max open files")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		hard, err := strconv.ParseUint(fields[1], 10, 64)
		if err == nil && hard < fewFiles {
			return Finding{Warn, "open_files",
				fmt.Sprintf("%s may open %d files only; the userspace dataplane needs two for each connection", whose, hard),
				"LimitNOFILE=1048576 in the unit, or ulimit -n"}
		}
		return Finding{OK, "open_files", fmt.Sprintf("%s may open %s files", whose, fields[1]), ""}
	}
	return Finding{Warn, "open_files", "no limit of open files in /proc/" + strconv.Itoa(pid) + "/limits", ""}
}

// What the state directory's file system should have free: the database is
// small, but a write that finds the disk full stops allocation.
const (
	diskWarn = 64 << 20
	diskFail = 4 << 20
)

// stateDir checks the directory that leases are kept in.
func stateDir(h Host, w Want) []Finding {
	mine, err := h.Writable(w.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{{Warn, "state_dir", fmt.Sprintf("state directory %s does not exist", w.StateDir),
			"install -d -m 0750 -o ironvip -g ironvip " + w.StateDir}}
	case err != nil:
		return []Finding{{Warn, "state_dir", fmt.Sprintf("state directory: %v", err), "run ironvip doctor as root"}}
	}
	disk, err := h.Disk(w.StateDir)
	if err != nil {
		return []Finding{{Warn, "state_dir", fmt.Sprintf("state directory %s: free space: %v", w.StateDir, err), ""}}
	}
	free := fmt.Sprintf("state directory %s: %d MiB free", w.StateDir, disk.Free>>20)
	switch {
	case disk.ReadOnly:
		return []Finding{{Fail, "state_dir", fmt.Sprintf("state directory %s is on a read-only file system: no lease can be stored", w.StateDir),
			"mount it writable, or set node.state_dir"}}
	case disk.Free < diskFail:
		return []Finding{{Fail, "state_dir", free + ": no lease can be stored", "free space there, or set node.state_dir"}}
	case disk.Free < diskWarn:
		return []Finding{{Warn, "state_dir", free, "free space there, or set node.state_dir"}}
	case !mine:
		return []Finding{{OK, "state_dir", free + "; not writable for this user, which is well if the agent runs as another", ""}}
	}
	return []Finding{{OK, "state_dir", free, ""}}
}
