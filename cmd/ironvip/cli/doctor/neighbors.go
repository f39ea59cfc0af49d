package doctor

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

// The devices with the virtual addresses of kube-proxy in ipvs mode, and of kube-router.
// They show that these programs run, even if their processes are hidden.
const (
	kubeProxyDevice  = "kube-ipvs0"
	kubeRouterDevice = "kube-dummy-if"
)

// ownRanges are the addresses that other programs must not change.
type ownRanges struct {
	Want
	ranges   []netip.Prefix // the pools, and the addresses of our node ports
	services Services
}

func (o *ownRanges) list() string {
	if len(o.ranges) == 0 {
		return "POOL_CIDRS"
	}
	return strings.Join(output.Texts(o.ranges, netip.Prefix.String), ",")
}

// spared reports whether a comma-separated list of ranges contains all of ours.
func (o *ownRanges) spared(list string) bool {
	var has []netip.Prefix
	for text := range strings.SplitSeq(list, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			has = append(has, p)
		}
	}
	return len(o.ranges) > 0 && !slices.ContainsFunc(o.ranges, func(r netip.Prefix) bool {
		return !slices.ContainsFunc(has, func(p netip.Prefix) bool { return p.Bits() <= r.Bits() && p.Contains(r.Addr()) })
	})
}

func (o *ownRanges) inPool(a netip.Addr) bool { return within(o.Pools, a) && !within(o.Excluded, a) }

func within(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// hostRange returns the range of one address.
func hostRange(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// firstFew joins the first items of a list, and counts the others.
func firstFew(list []string) string { return text.First(5, list, ", ") }

// neighbors checks programs that also change the kernel's IPVS tables, and what they add
// to our pools. Most of them delete services that they don't know.
func neighbors(h Host, w Want, procs []process) []Finding {
	if w.Mode != configs.ModeIPVS && w.Mode != configs.ModeAuto {
		return nil // the others don't use IPVS
	}
	o := ownRanges{Want: w, ranges: slices.Clone(w.Pools)}
	if h.Services != nil {
		o.services, _ = h.Services(w.Device) // none if they can't be read
	}
	for _, k := range o.services.Ours { // node ports
		if !within(o.ranges, k.Addr) {
			o.ranges = append(o.ranges, hostRange(k.Addr))
		}
	}
	var out []Finding
	for _, p := range procs {
		switch {
		case p.name == "kube-proxy":
			out = append(out, kubeProxy(h, p, &o)...)
		case p.name == "kube-router":
			out = append(out, kubeRouter(p, &o))
		case p.name == "keepalived":
			out = append(out, keepalived(h, p))
		case p.name == "ldirectord":
			out = append(out, Finding{Warn, "ldirectord",
				"ldirectord runs here and writes IPVS services", "keep its virtual addresses outside of " + o.list()})
		}
	}
	out = append(out, deviceLeft(h, procs, "kube-proxy", "kube_proxy", kubeProxyDevice, excludeFix(&o))...)
	out = append(out, deviceLeft(h, procs, "kube-router", "kube_router", kubeRouterDevice, routerFix(&o))...)
	return append(once(out), foreignInPools(&o)...)
}

func excludeFix(o *ownRanges) string {
	return "--ipvs-exclude-cidrs " + o.list() + ", or ipvs.excludeCIDRs in its config"
}

func routerFix(o *ownRanges) string {
	return "--excluded-cidrs " + o.list() + ", or --run-service-proxy=false"
}

// deviceLeft warns of a program with a device but without a visible process: it may run in
// a container, or have stopped.
func deviceLeft(h Host, procs []process, name, check, device, fix string) []Finding {
	if slices.ContainsFunc(procs, func(p process) bool { return p.name == name }) {
		return nil
	}
	if _, err := fs.Stat(h.Files, "sys/class/net/"+device); err != nil {
		return nil
	}
	return []Finding{{Warn, check, fmt.Sprintf("device %s exists: %s runs or ran here; if it runs, it deletes services it doesn't know", device, name), fix}}
}

// foreignInPools warns of foreign IPVS services in our pools.
func foreignInPools(o *ownRanges) []Finding {
	var found []vip.FrontendKey
	for _, k := range o.services.Others {
		if o.inPool(k.Addr) {
			found = append(found, k)
		}
	}
	if len(found) == 0 {
		return nil
	}
	addrs := output.Texts(found, func(k vip.FrontendKey) string { return strconv.Quote(hostRange(k.Addr).String()) })
	fix := "ipvsadm -D, or in the pool: exclude = [" + firstFew(slices.Compact(addrs)) + "]"
	return []Finding{{Warn, "foreign_services",
		"IPVS services in our pools that ironvip didn't create: " + firstFew(output.Texts(found, vip.FrontendKey.String)) + "; the agent removes them", fix}}
}

func kubeRouter(p process, o *ownRanges) Finding {
	if v, set := p.flag("run-service-proxy"); set && v == "false" {
		return Finding{OK, "kube_router", "kube-router runs here without its service proxy: it doesn't use IPVS", ""}
	}
	if v, _ := p.flag("excluded-cidrs"); o.spared(v) {
		return Finding{OK, "kube_router", "kube-router runs here and excludes our addresses", ""}
	}
	return Finding{Warn, "kube_router", "kube-router runs here and deletes IPVS services it doesn't know", routerFix(o)}
}

// kubeProxy checks for IPVS mode in the flags and the config file, which it reads in the
// process's file system.
func kubeProxy(h Host, p process, o *ownRanges) []Finding {
	mode, _ := p.flag("proxy-mode")
	excluded, _ := p.flag("ipvs-exclude-cidrs")
	fix := "--ipvs-exclude-cidrs " + o.list()
	if config, ok := p.flag("config"); ok && path.IsAbs(config) {
		fix = "in " + config + ": ipvs.excludeCIDRs: [" + o.list() + "]" // flags don't count beside a config
		var c kubeProxyConfig
		b, err := fs.ReadFile(h.Files, path.Join("proc", strconv.Itoa(p.pid), "root", config))
		if cmp.Or(err, yaml.Unmarshal(b, &c)) != nil {
			return []Finding{{Warn, "kube_proxy",
				fmt.Sprintf("kube-proxy runs here and its config %s can't be read; in ipvs mode it deletes services it doesn't know", config),
				"run ironvip doctor as root, or " + fix}}
		}
		mode, excluded = c.Mode, strings.Join(c.IPVS.ExcludeCIDRs, ",")
	}
	switch {
	case mode != "ipvs":
		return nil
	case o.spared(excluded):
		return []Finding{{OK, "kube_proxy", "kube-proxy in ipvs mode runs here and excludes our addresses", ""}}
	}
	return []Finding{{Warn, "kube_proxy", "kube-proxy in ipvs mode runs here and deletes services it doesn't know", fix}}
}

// kubeProxyConfig has the relevant fields of kube-proxy's config.
type kubeProxyConfig struct {
	Mode string
	IPVS struct {
		ExcludeCIDRs []string `yaml:"excludeCIDRs"`
	}
}

// once removes duplicate findings: keepalived is several processes.
func once(findings []Finding) []Finding {
	seen := map[Finding]bool{}
	return slices.DeleteFunc(findings, func(f Finding) bool {
		was := seen[f]
		seen[f] = true
		return was
	})
}
