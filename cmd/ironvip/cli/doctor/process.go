package doctor

import (
	"fmt"
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

// neighbours warns of programs that also write the kernel's IPVS tables and
// are known to delete what they don't know.
func neighbours(h Host, w Want, procs []process) []Finding {
	if w.Mode == ModeProxy {
		return nil
	}
	ranges := make([]string, len(w.Pools))
	for i, p := range w.Pools {
		ranges[i] = p.String()
	}
	pools := strings.Join(ranges, ",")
	if pools == "" {
		pools = "POOL_CIDRS"
	}
	var out []Finding
	for _, p := range procs {
		switch p.name {
		case "kube-proxy":
			out = append(out, kubeProxy(h, p, pools)...)
		case "kube-router":
			if v, set := p.flag("run-service-proxy"); set && v == "false" {
				continue
			}
			if v, _ := p.flag("excluded-cidrs"); covers(v, ranges) {
				continue
			}
			out = append(out, Finding{Warn, "kube_router",
				"kube-router runs here and deletes IPVS services it doesn't know", "--excluded-cidrs " + pools})
		case "keepalived":
			if f, found := keepalived(h, p); found {
				out = append(out, f)
			}
		case "ldirectord":
			out = append(out, Finding{Warn, "ldirectord",
				"ldirectord runs here and writes IPVS services, too", "keep its virtual addresses outside of " + pools})
		}
	}
	return once(out)
}

// kubeProxy looks for the IPVS mode in the flags and in the config file, which
// is read as the process sees it.
func kubeProxy(h Host, p process, pools string) []Finding {
	mode, _ := p.flag("proxy-mode")
	excluded, _ := p.flag("ipvs-exclude-cidrs")
	if config, ok := p.flag("config"); ok && path.IsAbs(config) {
		inside := path.Join("proc", strconv.Itoa(p.pid), "root", config)
		b, err := fs.ReadFile(h.Files, inside)
		if err != nil {
			return []Finding{{Warn, "kube_proxy",
				fmt.Sprintf("kube-proxy runs here and its config %s can't be read; in ipvs mode it deletes services it doesn't know", config),
				"run ironvip doctor as root, or set excludeCIDRs to " + pools}}
		}
		mode, excluded = kubeProxyConfig(string(b))
	}
	if mode != "ipvs" || covers(excluded, strings.Split(pools, ",")) {
		return nil
	}
	return []Finding{{Warn, "kube_proxy",
		"kube-proxy in ipvs mode runs here and deletes services it doesn't know", "--ipvs-exclude-cidrs " + pools}}
}

// kubeProxyConfig finds "mode" and the list "excludeCIDRs" in kube-proxy's
// YAML. It reads lines, which serves for the files that kubeadm and the
// distributions write, so that no YAML type of another project is needed.
func kubeProxyConfig(text string) (mode, excluded string) {
	var cidrs []string
	inList := false
	for l := range strings.Lines(text) {
		trimmed := strings.TrimSpace(l)
		if item, ok := strings.CutPrefix(trimmed, "- "); inList && ok {
			cidrs = append(cidrs, strings.Trim(item, `"' `))
			continue
		}
		inList = false
		key, value, _ := strings.Cut(trimmed, ":")
		value = strings.Trim(value, `"'[] `)
		switch key {
		case "mode":
			if l[0] != ' ' { // the top level's
				mode = value
			}
		case "excludeCIDRs":
			inList = value == ""
			if value != "" && value != "null" {
				cidrs = append(cidrs, strings.Split(strings.NewReplacer(`"`, "", "'", "", " ", "").Replace(value), ",")...)
			}
		}
	}
	return mode, strings.Join(cidrs, ",")
}

// covers reports whether every one of the ranges is in the comma-separated list.
func covers(list string, ranges []string) bool {
	has := strings.Split(list, ",")
	for _, r := range ranges {
		found := false
		for _, x := range has {
			found = found || strings.TrimSpace(x) == r
		}
		if !found {
			return false
		}
	}
	return list != ""
}

// keepalived is a peaceful neighbour unless told to flush IPVS.
func keepalived(h Host, p process) (Finding, bool) {
	config, ok := p.flag("use-file")
	if !ok {
		if config, ok = p.flag("f"); !ok {
			config = "/etc/keepalived/keepalived.conf"
		}
	}
	b, err := fs.ReadFile(h.Files, strings.TrimPrefix(path.Clean("/"+config), "/"))
	if err != nil {
		return Finding{Warn, "keepalived",
			fmt.Sprintf("keepalived runs here and its config %s can't be read; with lvs_flush it deletes every IPVS service", config),
			"run ironvip doctor as root, or take lvs_flush and lvs_flush_on_stop out"}, true
	}
	for l := range strings.Lines(string(b)) {
		words := strings.Fields(l)
		if len(words) > 0 && (words[0] == "lvs_flush" || words[0] == "lvs_flush_on_stop" && !(len(words) > 1 && words[1] == "VS")) {
			return Finding{Warn, "keepalived",
				"keepalived runs here with " + words[0] + ", which deletes every IPVS service", "take " + words[0] + " out of " + config}, true
		}
	}
	return Finding{OK, "keepalived", "keepalived runs here and leaves IPVS services of others alone", ""}, true
}

// once drops findings that were made before: keepalived is several processes.
func once(findings []Finding) []Finding {
	seen := map[Finding]bool{}
	var out []Finding
	for _, f := range findings {
		if !seen[f] {
			out = append(out, f)
		}
		seen[f] = true
	}
	return out
}
