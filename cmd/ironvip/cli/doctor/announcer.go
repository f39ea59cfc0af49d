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
		return append(out, capabilitiesOf(h, p.pid, check, "announcer", "runs with", Fail, "CAP_NET_ADMIN", "CAP_NET_RAW"))
	}
	return append(out, Finding{Fail, check, "no announcer runs: nothing is announced, and announce.mode is " + strings.Join(w.Announce.Modes, ", "), "systemctl enable --now ironvip-announcer"})
}
