//go:build linux

package main

import (
	"bufio"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// baseModules are loaded in every guest, in this order. The guest has no modprobe, so nothing loads
// automatically. Other modules (ipip, tun, bridge, sch_netem, 8021q, ...) are requested by name,
// because each module costs 5 to 10 ms of emulated relocation and signature check.
var baseModules = []string{
	"nf_defrag_ipv6", "nf_defrag_ipv4", "libcrc32c", "nf_conntrack", "ip_vs",
	"ip_vs_rr", "ip_vs_wrr", "ip_vs_lc", "ip_vs_wlc", "ip_vs_sh", "ip_vs_mh", "ip_vs_sed", "ip_vs_nq", "ip_vs_fo", "ip_vs_dh",
	"dummy", "veth", "nlmon",
	"nfnetlink", "nf_tables", "nf_nat", "nft_masq", "nft_nat", "nft_ct", "nft_chain_nat", "nf_conntrack_netlink",
	"nf_conncount", "nft_connlimit", "nft_limit", "nf_synproxy_core", "nft_synproxy", "nft_numgen", "nft_hash", "nft_fib_inet", "nf_reject_ipv4", "nf_reject_ipv6", "nft_reject", "nft_reject_inet",
	"ip_set_hash_ip",
}

// mergedModules are loaded, too, where a kernel still has them as files. Newer kernels have them in
// nf_tables.
var mergedModules = []string{"nft_counter", "nft_objref"}

// moduleOrder returns the files to load for names, relative to dir (a depmod'ed
// /lib/modules/<version>). Each file occurs once, after its dependencies. Modules that
// are built in or merged into others need no file.
func moduleOrder(dir string, names []string) ([]string, error) {
	deps, err := readModulesDep(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	byName := make(map[string]string, len(deps))
	for file := range deps {
		byName[moduleName(file)] = file
	}
	inKernel := map[string]bool{}
	for file := range strings.FieldsSeq(string(builtin)) {
		inKernel[moduleName(file)] = true
	}
	var order []string
	done := map[string]bool{}
	var load func(file string)
	load = func(file string) {
		if done[file] {
			return
		}
		done[file] = true
		for _, d := range slices.Backward(deps[file]) {
			load(d)
		}
		order = append(order, file)
	}
	for _, name := range names {
		name = strings.ReplaceAll(name, "-", "_")
		file, ok := byName[name]
		switch {
		case ok:
			load(file)
		case !inKernel[name] && !slices.Contains(mergedModules, name):
			return nil, fmt.Errorf("the kernel in %s has no module %q", filepath.Dir(dir), name)
		}
	}
	return order, nil
}

// readModulesDep reads lines of "file: dependency ...", all relative to the modules' directory.
func readModulesDep(name string) (map[string][]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	deps := map[string][]string{}
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if file, rest, ok := strings.Cut(sc.Text(), ":"); ok {
			deps[file] = strings.Fields(rest)
		}
	}
	return deps, sc.Err()
}

func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".ko"), "-", "_")
}
