package doctor

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/text"
)

// Announce is what the configuration needs for announcing VIPs.
type Announce struct {
	Modes      []string // in use; empty: nothing is announced
	Interfaces []string // of layer 2, if they are configured
	// Off are the ranges of pools that are not announced, on a host that balances traffic.
	Off []netip.Prefix
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

// maxAsked bounds the VIPs that are asked for.
const maxAsked = 64

// unannounced asks whether another station answers ARP for VIPs of this host that are not announced.
// Without announcing, each host that has a VIP answers for it.
func unannounced(h Host, w Want) []Finding {
	const check = "unannounced_vips"
	if h.Holders == nil || h.Addrs == nil || len(w.Announce.Off) == 0 {
		return nil
	}
	held, err := h.Addrs(w.Device)
	if err != nil {
		return nil // this host has no VIPs
	}
	held = slices.DeleteFunc(held, func(a netip.Addr) bool { return !a.Is4() || !within(w.Announce.Off, a) })
	holders, err := h.Holders(held[:min(len(held), maxAsked)])
	switch {
	case err != nil:
		return []Finding{{Warn, check, "can't ask whether other hosts answer for this host's VIPs: " + err.Error(), "run ironvip doctor as root"}}
	case len(holders) == 0:
		return nil
	}
	first := holders[0]
	what := fmt.Sprintf("two hosts answer ARP for %s without announcing it: this one and %s on %s", first.Addr, first.MAC, first.Interface)
	if more := len(holders) - 1; more > 0 {
		what += ", and so for " + text.Plural(more, "more VIP")
	}
	return []Finding{{Warn, check, what + "; a client loses its VIPs for some 20 s when the host that answered last fails",
		`set announce.mode to "l2" on both and start ironvip-announcer, or give one of them other VIPs`}}
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
