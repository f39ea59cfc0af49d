package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/openfiles"
)

// capabilities are those that ironvip's processes need, by their bit in capability.h.
var capabilities = map[string]uint{"CAP_NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN,
	"CAP_NET_RAW": unix.CAP_NET_RAW, "CAP_BPF": unix.CAP_BPF}

// lacks returns which of some capabilities a process does not have.
func lacks(h Host, pid int, needs ...string) (missing []string, err error) {
	status, err := fs.ReadFile(h.Files, path.Join("proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return nil, err
	}
	var effective uint64
	for l := range strings.Lines(string(status)) {
		if bits, ok := strings.CutPrefix(l, "CapEff:"); ok {
			effective, _ = strconv.ParseUint(strings.TrimSpace(bits), 16, 64)
		}
	}
	for _, name := range needs {
		if effective&(1<<capabilities[name]) == 0 {
			missing = append(missing, name)
		}
	}
	return missing, nil
}

// dataplaneNeeds are the capabilities of the dataplanes in the kernel.
var dataplaneNeeds = []string{"CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_NET_RAW"}

// rights checks the capabilities of the running agent. Without an agent it checks nothing:
// this process's capabilities say nothing about those of the unit.
func rights(h Host, w Want, agent *process) []Finding {
	if agent == nil || !needs(w) {
		return nil
	}
	const check = "capabilities"
	level := Warn
	if insists(w) {
		level = Fail
	}
	return []Finding{capabilitiesOf(h, agent.pid, check, "agent", "has", level, dataplaneNeeds...)}
}

// capabilitiesOf reports whether a process has some capabilities.
func capabilitiesOf(h Host, pid int, check, program, has string, level Level, needs ...string) Finding {
	missing, err := lacks(h, pid, needs...)
	switch {
	case err != nil:
		return Finding{Warn, check, fmt.Sprintf("can't read the rights of the %s (pid %d): %v", program, pid, err), ""}
	case len(missing) > 0:
		return Finding{level, check, fmt.Sprintf("%s (pid %d) has no %s", program, pid, strings.Join(missing, ", ")), "AmbientCapabilities=" + strings.Join(needs, " ") + " in its unit"}
	}
	return Finding{OK, check, fmt.Sprintf("%s (pid %d) %s %s", program, pid, has, strings.Join(needs, ", ")), ""}
}

// fewFiles is the least number of open files that the userspace dataplane should be
// allowed: two for each connection.
const fewFiles = 65536

const moreFiles = "LimitNOFILE=1048576 in the unit, or ulimit -n 1048576"

// openFiles checks the hard limit of the agent or, without one, of this process. Go programs
// raise the soft limit to the hard limit. A dataplane in the kernel needs few.
func openFiles(h Host, w Want, agent *process) Finding {
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
		if err == nil && hard < openfiles.Least {
			return Finding{Fail, "open_files", fmt.Sprintf("%s may open %d files only; an agent doesn't start with fewer than %d", whose, hard, openfiles.Least), moreFiles}
		}
		if err == nil && hard < fewFiles && !insists(w) {
			return Finding{Warn, "open_files",
				fmt.Sprintf("%s may open %d files only; the userspace dataplane needs two for each connection", whose, hard),
				moreFiles}
		}
		return Finding{OK, "open_files", fmt.Sprintf("%s may open %s files", whose, fields[1]), ""}
	}
	return Finding{Warn, "open_files", "no limit of open files in /proc/" + strconv.Itoa(pid) + "/limits", ""}
}

// Free space of the state directory's file system. The database is small, but without
// space no address can be allocated.
const (
	diskWarn = 64 << 20
	diskFail = 4 << 20
)

// stateDir checks the directory of the leases.
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
		return []Finding{{OK, "state_dir", free + "; not writable for this user, which is fine if the agent runs as another user", ""}}
	}
	return []Finding{{OK, "state_dir", free, ""}}
}
