package doctor

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// Announce is what the configuration needs for announcing VIPs.
type Announce struct {
	Modes      []string          // in use; empty: nothing is announced
	Interfaces map[string]string // of layer 2, with the key that names each
}

// announcer checks the process that announces VIPs, its capabilities, and its interfaces.
func announcer(h Host, w Want, procs []process) []Finding {
	const check = "announcer"
	if len(w.Announce.Modes) == 0 {
		return nil
	}
	var out []Finding
	for _, name := range slices.Sorted(maps.Keys(w.Announce.Interfaces)) {
		key := w.Announce.Interfaces[name]
		if _, err := fs.Stat(h.Files, path.Join("sys/class/net", name)); err != nil {
			out = append(out, Finding{Fail, "announce_interface", fmt.Sprintf("interface %s of %s does not exist", name, key), "correct " + key})
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
