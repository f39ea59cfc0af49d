package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// Announce is what the configuration needs for announcing VIPs.
type Announce struct {
	Modes      []string // in use; empty: nothing is announced
	Interfaces []string // of layer 2, if they are configured
}

// announcer checks the process that announces VIPs, its capabilities, and its interfaces.
func announcer(h Host, w Want, procs []process) []Finding {
	const check = "announcer"
	if len(w.Announce.Modes) == 0 {
		return nil
	}
	var out []Finding
	for _, name := range w.Announce.Interfaces {
		if _, err := fs.Stat(h.Files, path.Join("sys/class/net", name)); err != nil {
			out = append(out, Finding{Fail, "announce_interface", fmt.Sprintf("interface %s of announce.interfaces does not exist", name), "correct announce.interfaces"})
		}
	}
	for _, p := range procs {
		if p.name != "ironvip" || len(p.args) < 2 || p.args[1] != "announcer" || !sameNetwork(h, p.pid) {
			continue
		}
		return append(out, announcerRights(h, p.pid))
	}
	return append(out, Finding{Fail, check, "no announcer runs: nothing is announced, and announce.mode is " + strings.Join(w.Announce.Modes, ", "), "systemctl enable --now ironvip-announcer"})
}

func announcerRights(h Host, pid int) Finding {
	const check = "announcer"
	missing, err := lacks(h, pid, "CAP_NET_ADMIN", "CAP_NET_RAW")
	switch {
	case err != nil:
		return Finding{Warn, check, fmt.Sprintf("can't read the rights of the announcer (pid %d): %v", pid, err), ""}
	case len(missing) > 0:
		return Finding{Fail, check, fmt.Sprintf("announcer (pid %d) has no %s", pid, strings.Join(missing, ", ")), "AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW in its unit"}
	}
	return Finding{OK, check, fmt.Sprintf("announcer (pid %d) runs with CAP_NET_ADMIN, CAP_NET_RAW", pid), ""}
}
