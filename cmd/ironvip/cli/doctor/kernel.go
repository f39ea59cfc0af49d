package doctor

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipvs"
)

// oldest is the oldest kernel that ironvip is tested for: the long-term one
// that Debian 11 shipped.
var oldest = [2]int{5, 10}

// kernel checks the version.
func kernel(h Host) Finding {
	release, err := line(h, "proc/sys/kernel/osrelease")
	if err != nil {
		return Finding{Warn, "kernel", "can't read the kernel's version: " + err.Error(), ""}
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil { // "6.1.0-56-cloud-amd64"
		return Finding{Warn, "kernel", fmt.Sprintf("kernel %s: unknown version format", release), ""}
	}
	if major < oldest[0] || major == oldest[0] && minor < oldest[1] {
		return Finding{Warn, "kernel",
			fmt.Sprintf("kernel %d.%d is older than %d.%d, the oldest that ironvip is tested with", major, minor, oldest[0], oldest[1]),
			"run a newer kernel"}
	}
	return Finding{OK, "kernel", fmt.Sprintf("kernel %s", release), ""}
}

// capability is the name of the requirement for reading IPVS.
const capability = "CAP_NET_ADMIN"

// dataplane checks what IPVS needs. A missing requirement fails only if the config insists
// on IPVS; otherwise the userspace dataplane takes over. Requirements that this process may
// not check are reported as unchecked, not as missing.
func dataplane(h Host, w Want) []Finding {
	if w.Mode == configs.ModeProxy {
		return []Finding{{OK, "dataplane", "dataplane: userspace, as configured; it needs nothing of the kernel", ""}}
	}
	all := h.IPVS()
	unknown, noIPVS := false, false
	for _, r := range all {
		unknown = unknown || r.Unknown || shortName(r.Name) == capability && !r.OK
		noIPVS = noIPVS || shortName(r.Name) == "ip_vs" && !r.OK
	}
	var met []string
	var out []Finding
	fallback := false
	for _, r := range all {
		switch {
		case r.OK && noIPVS && strings.HasPrefix(shortName(r.Name), "ip_vs_"): // useless without ip_vs
		case r.OK:
			met = append(met, shortName(r.Name))
		case r.Unknown || shortName(r.Name) == capability: // reported once, below
		case r.Required && w.Mode == configs.ModeIPVS:
			out = append(out, Finding{Fail, "ipvs", describe(r), r.Remedy})
		default:
			fallback = fallback || r.Required
			out = append(out, Finding{Warn, "ipvs", describe(r), r.Remedy})
		}
	}
	if len(met) > 0 {
		out = append([]Finding{{OK, "ipvs", "ipvs: " + strings.Join(met, ", "), ""}}, out...)
	}
	if unknown {
		out = append(out, Finding{Warn, "ipvs", "this user may not read IPVS and nf_tables (no " + capability + "): some requirements were not checked",
			"run ironvip doctor as root"})
	}
	if fallback {
		out = append(out, Finding{OK, "dataplane", "dataplane: auto; until this is fixed, the userspace dataplane is used", ""})
	}
	return out
}

// shortName returns a requirement's name without its kind.
func shortName(name string) string {
	for _, kind := range []string{"kernel module ", "sysctl ", "capability "} {
		name = strings.TrimPrefix(name, kind)
	}
	return name
}

// describe returns a requirement's name and what was found.
func describe(r ipvs.Finding) string {
	switch {
	case r.Detail == "":
		return shortName(r.Name) + " is missing"
	case strings.HasPrefix(r.Detail, "is "):
		return shortName(r.Name) + " " + r.Detail // "net.ipv4.vs.conntrack is 0, needs 1"
	}
	return r.Name + ": " + r.Detail
}

// fullConntrack is the used share of the connection table, in percent, that causes a
// warning. A full table drops new connections.
const fullConntrack = 80

// conntrack checks the use of the connection table, if there is one.
func conntrack(h Host) []Finding {
	count, err1 := number(h, "proc/sys/net/netfilter/nf_conntrack_count")
	size, err2 := number(h, "proc/sys/net/netfilter/nf_conntrack_max")
	if err1 != nil || err2 != nil || size <= 0 {
		return nil // no connection tracking in this kernel or namespace
	}
	text := fmt.Sprintf("connection table: %d of %d entries used", count, size)
	if count*100 < size*fullConntrack {
		return []Finding{{OK, "conntrack", text, ""}}
	}
	return []Finding{{Warn, "conntrack", text + "; a full table drops new connections",
		fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", size*2)}}
}

// line returns a file's content without surrounding white space.
func line(h Host, path string) (string, error) {
	b, err := fs.ReadFile(h.Files, path)
	return strings.TrimSpace(string(b)), err
}

func number(h Host, path string) (int64, error) {
	s, err := line(h, path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}
