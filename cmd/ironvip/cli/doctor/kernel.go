package doctor

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
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

// features reports what the kernel lacks of what the configuration uses. The dataplane has sk_lookup.
// A real server neither balances nor announces, so it uses nothing of it.
func features(h Host, w Want) (out []Finding) {
	release, err := line(h, "proc/sys/kernel/osrelease")
	if err != nil || w.RealServer {
		return nil
	}
	uses := map[linux.Feature]bool{
		linux.ConntrackFilter: needs(w),
		linux.OwnedTables:     needs(w),
		linux.NetnsCookie:     !insists(w),
		linux.Egress:          slices.Contains(w.Announce.Modes, announce.L2.String()),
		linux.RunEstimation:   w.Mode == configs.ModeIPVS || w.Mode == configs.ModeAuto,
	}
	for _, f := range linux.All() {
		if !uses[f] {
			continue
		}
		has, known := false, false
		if h.Has != nil {
			has, known = h.Has(f)
		}
		if !known {
			has = f.In(release)
		}
		if has {
			continue
		}
		finding := Finding{OK, "kernel_feature", fmt.Sprintf("kernel %s lacks %s (Linux %s): %s", release, strings.ReplaceAll(f.Name, "`", ""), f.First(), f.Without), ""}
		if f == linux.Egress { // a safeguard against two owners of a VIP
			finding.Level, finding.Fix = Warn, fmt.Sprintf("run Linux %s or later, with CONFIG_NETFILTER_EGRESS", f.First())
		}
		out = append(out, finding)
	}
	return out
}

// capability is the name of the requirement for reading IPVS and nf_tables.
const capability = "CAP_NET_ADMIN"

// dataplane checks what the configured dataplane needs, or with auto the first one. A missing
// requirement fails only if the config insists on its dataplane; otherwise the nft or the userspace
// dataplane is used. Requirements that this process may not check are reported as unchecked, not as missing.
func dataplane(h Host, w Want) []Finding {
	k := configs.DataplaneOf(w.Mode)
	if k == nil {
		k = configs.Dataplanes[0]
	}
	if k.Needs == nil {
		return []Finding{{OK, "dataplane", "dataplane: " + nameOf(k) + ", as configured; it needs nothing of the kernel", ""}}
	}
	check, all := k.Mode, h.Needs(k)
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
		case r.Required && insists(w):
			out = append(out, Finding{Fail, check, describe(r), r.Remedy})
		default:
			fallback = fallback || r.Required
			out = append(out, Finding{Warn, check, describe(r), r.Remedy})
		}
	}
	if len(met) > 0 {
		out = append([]Finding{{OK, check, check + ": " + strings.Join(met, ", "), ""}}, out...)
	}
	if unknown {
		out = append(out, Finding{Warn, check, "this user may not read " + k.Reads + " (no " + capability + "): some requirements were not checked",
			"run ironvip doctor as root"})
	}
	if fallback {
		out = append(out, Finding{OK, "dataplane", "dataplane: auto; until this is fixed, the " + nameOf(configs.DataplaneOf(modeOf(h, w))) + " dataplane is used", ""})
	}
	return out
}

// modeOf returns the dataplane that an agent on a host without a former one runs: the configured one or, with auto, the
// first that the kernel can run.
func modeOf(h Host, w Want) string {
	if w.Mode != configs.ModeAuto {
		return w.Mode
	}
	i := slices.IndexFunc(configs.Dataplanes, func(k *plane.Kind) bool { return k.Needs == nil || host.Err(h.Needs(k)) == nil })
	return configs.Dataplanes[i].Mode // userspace needs nothing
}

// nameOf returns a dataplane's name in a text.
func nameOf(k *plane.Kind) string {
	if k.Userspace {
		return "userspace"
	}
	return k.Mode
}

// insists reports whether the agent never forwards in userspace.
func insists(w Want) bool {
	k := configs.DataplaneOf(w.Mode)
	return k != nil && !k.Userspace
}

// needs reports whether the dataplane may be one that needs something of the kernel.
func needs(w Want) bool {
	k := configs.DataplaneOf(w.Mode)
	return k == nil || k.Needs != nil
}

// shortName returns a requirement's name without its kind.
func shortName(name string) string {
	for _, kind := range []string{"kernel module ", "sysctl ", "capability "} {
		name = strings.TrimPrefix(name, kind)
	}
	return name
}

// describe returns a requirement's name and what was found.
func describe(r host.Finding) string {
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
