package main

import (
	"encoding/json"
	"errors"
	"go/build/constraint"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/test/must"
)

const module = "github.com/ironvip/ironvip/"

// layers is the import rule of ARCHITECTURE.md: the folders in one order, from the binary
// down to the vocabulary. A package imports only packages of later lines. Folders on one line
// stand side by side and don't import each other. A package belongs to the longest folder
// that it is below; packages of one folder may import each other.
var layers = [][]string{
	{"cmd", "packaging"},
	{"agent"},
	{"api"},
	{"api/snapshot", "api/status", "cmd/ironvip/cli/migrate", "web"},
	{"configs"},
	{"sources/static", "sources/rest", "sources/consul", "sources/kubernetes", "sources/http", "sources/dns", "sources/cache", "ipvs", "nft", "proxy", "connect", "health", "announce", "dns", "hook", "health/healthport"},
	{"sources/publish", "sources/draft", "dns/resolved"},
	{"sources"},
	{"pipeline"},
	{"ipam"},
	{"plane", "plane/steer"},
	{"plane/kernel"},
	{"plane/reconcile"},
	{"pipeline/overrides", "api/tokens"},
	{"fleet/registry"},
	{"fleet/roster"},
	{"fleet"},
	{"fleet/treekv", "fleet/treestatus"},
	{"fleet/membership", "fleet/treelog"},
	{"fleet/consul", "fleet/etcd"},
	{"fleet/kv"},
	{"internal/connlimit"},
	{"internal/store", "internal/consulclient", "internal/kubeclient", "internal/hostnet", "internal/nftwire", "internal/sockdiag", "internal/firewall", "internal/keep", "internal/mirror", "internal/metric"},
	{"internal/tlsfile"},
	{"internal/access", "internal/table", "internal/event", "internal/delayqueue", "internal/workqueue", "internal/backoff", "internal/text", "internal/tomlfile", "internal/parallel", "internal/netlink", "internal/openfiles", "internal/sockets", "internal/sklookup", "internal/sockopt", "internal/httpstop", "internal/logwriter", "internal/memlimit", "internal/answer", "internal/command"},
	{"internal/bpf"},
	{"api/v1"},
	{"vip", "internal/wake"},
}

// stdlibOnly are the packages that import only the standard library and each other.
var stdlibOnly = []string{"vip", "vip/spec", "vip/spec/strict", "internal/access", "internal/event", "internal/table", "internal/delayqueue", "internal/workqueue",
	"internal/backoff", "internal/text", "internal/wake", "internal/httpstop", "api/v1", "web", "packaging/image"}

// only narrows the rule for packages that must stay independent of the machinery. A folder of
// the list stands for the packages below it, too.
var only = map[string][]string{
	"api/v1":                  {"vip"},
	"api/client":              {"api/v1"},
	"cmd/ironvip/cli/output":  {},
	"cmd/ironvip/cli/render":  {"api/v1", "cmd/ironvip/cli/output", "internal/text"},
	"cmd/ironvip/cli/command": {"agent", "api/client", "api/v1", "cmd/ironvip/cli/output", "cmd/ironvip/cli/render", "cmd/satellite", "internal/tomlfile", "vip"},
	"announce/bfd":            {"internal/backoff", "internal/delayqueue", "internal/parallel", "internal/sockopt", "internal/wake"},
	"announce/bgp":            {"announce", "internal/backoff", "internal/parallel", "internal/table", "internal/sockopt", "internal/wake"},
	"announce/bgp/message":    {},
	"announce/bgp/session":    {"announce", "announce/bgp/message", "announce/bgp/transport", "internal/parallel", "internal/table", "internal/wake"},
	"announce/bgp/transport":  {"announce", "announce/bgp/message", "internal/sockopt"},
	"announce/bgp/unnumbered": {"internal/backoff", "internal/parallel", "internal/sockopt", "internal/wake"},
	"announce/routes":         {"internal/netlink", "plane/reconcile", "internal/table", "vip"},
	"announce/heartbeat":      {"announce"},
	"health/share":            {"vip", "health/probe", "internal/backoff", "internal/delayqueue", "internal/table", "internal/tomlfile", "fleet", "internal/parallel", "internal/wake"},
	"dns":                     {"vip", "ipam", "internal/table", "internal/backoff", "internal/keep", "internal/parallel"},
	"dns/zone":                {"vip"},
	"dns/server":              {"vip", "dns/zone", "internal/connlimit", "internal/backoff", "internal/event", "internal/sockets", "internal/parallel", "internal/wake"},
	"dns/resolved":            {"internal/backoff", "internal/parallel", "internal/sockopt", "internal/wake"},
	"announce/l2":             {"announce", "vip", "internal/backoff", "internal/parallel", "internal/delayqueue", "internal/netlink", "internal/nftwire", "internal/wake"},
	"health":                  {"vip", "internal/backoff", "internal/command", "internal/keep", "internal/delayqueue", "internal/event", "internal/metric", "internal/table", "internal/text", "internal/tomlfile", "internal/parallel", "internal/workqueue", "internal/wake"},
	"health/healthport":       {"vip", "pipeline", "internal"},
	"fleet/treelog":           {"fleet/kv"},
	"hook":                    {"vip", "internal"},
	"internal":                {"vip"},
	"pipeline/compile":        {"vip"},
	"ipam/internal/numbers":   {},
	"ipam/pool":               {"vip", "internal/hostnet", "ipam"},
	"ipam/plan":               {"vip", "internal", "ipam"},
	"plane":                   {"vip", "internal"},
	"plane/kernel":            {"vip", "plane/reconcile", "internal/hostnet", "internal/netlink", "internal/nftwire", "internal/sockdiag"},
	"ipvs":                    {"vip", "plane", "internal/netlink", "internal/nftwire", "internal/firewall", "internal/metric"},
	"nft":                     {"vip", "plane", "internal/netlink", "internal/nftwire", "internal/firewall", "internal/metric"},
	"connect":                 {"vip", "plane", "internal/bpf", "internal/sockdiag", "internal/sockets"},
	"proxy":                   {"vip", "plane", "internal/bpf", "internal/firewall", "internal/hostnet", "internal/netlink", "internal/backoff", "internal/sockets", "internal/sklookup", "internal/sockdiag", "internal/sockopt", "internal/openfiles", "internal/delayqueue", "internal/event", "internal/table", "internal/text", "internal/mirror", "internal/logwriter", "internal/memlimit", "internal/parallel", "internal/wake"},
	"proxy/loop":              {"internal/backoff", "internal/delayqueue", "internal/sockets"},
	"proxy/pick":              {"vip", "plane/kernel/slots"},
	"proxy/proxyproto":        {},
	"proxy/steer":             {"vip", "proxy/loop", "internal/sklookup", "internal/sockdiag", "internal/sockets"},
	"proxy/passive":           {"vip", "plane/reconcile", "internal/backoff", "internal/delayqueue", "internal/event", "internal/table", "internal/text", "internal/wake"},
	"proxy/balance":           {"vip", "plane/reconcile", "proxy/passive", "proxy/pick"},
	"sources/consul":          {"vip", "sources", "internal/backoff", "internal/consulclient", "internal/text", "internal/tomlfile", "internal/parallel"},
}

func TestImportRule(t *testing.T) {
	used := map[string]bool{}
	for _, p := range productPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		folder, layer := layerOf(name)
		if folder == "" {
			t.Errorf("package %s has no layer: add its folder to this test and to ARCHITECTURE.md", name)
			continue
		}
		used[folder] = true
		for _, imp := range p.Imports {
			inner, ours := strings.CutPrefix(imp, module)
			if !ours {
				if strings.Contains(strings.Split(imp, "/")[0], ".") && slices.Contains(stdlibOnly, name) {
					t.Errorf("%s imports %s: only the standard library is allowed", name, imp)
				}
				continue
			}
			if narrow := narrowest(name); narrow != "" && !below(inner, narrow) && !slices.ContainsFunc(only[narrow], func(f string) bool { return below(inner, f) }) {
				t.Errorf("%s imports %s: %s may import only %s", name, inner, narrow, strings.Join(only[narrow], ", "))
			}
			f, l := layerOf(inner)
			if f != folder && l <= layer {
				t.Errorf("%s imports %s: imports must go down the layers", name, inner)
			}
		}
	}
	for _, layer := range layers {
		for _, folder := range layer {
			if !used[folder] {
				t.Errorf("folder %s has no package", folder)
			}
		}
	}
}

// below reports whether pkg is folder or in it.
func below(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

// narrowest returns the longest folder of only that a package is below, or "".
func narrowest(pkg string) (folder string) {
	for f := range only {
		if below(pkg, f) && len(f) > len(folder) {
			folder = f
		}
	}
	return folder
}

// layerOf returns the folder of layers that a package belongs to, and its line.
func layerOf(pkg string) (folder string, layer int) {
	for i, line := range layers {
		for _, f := range line {
			if below(pkg, f) && len(f) > len(folder) {
				folder, layer = f, i
			}
		}
	}
	return folder, layer
}

type goPackage struct {
	Dir        string
	GoFiles    []string
	ImportPath string
	Imports    []string
}

// productPackages lists every package but those that exist for tests.
func productPackages(t *testing.T) []goPackage {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Dir,GoFiles", module+"...").Output()
	must.Succeed(t, err, "go list")
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		inner := strings.TrimPrefix(p.ImportPath, module)
		if !strings.HasPrefix(inner, "test/") && !strings.HasSuffix(inner, "test") {
			all = append(all, p)
		}
	}
}

// A file of the build without the tags of the lanes is in the build with all of them, so that one pass of vet and staticcheck
// sees every file.
func TestOneBuildHasEveryFile(t *testing.T) {
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == ".cache" || d.Name() == "tools"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "package ") {
				break
			}
			if !constraint.IsGoBuild(line) {
				continue
			}
			is, err := constraint.Parse(strings.TrimSpace(line))
			if err != nil {
				return err
			}
			lane := func(tag string) bool { return tag == "vm" || tag == "system" || tag == "long" }
			if is.Eval(func(tag string) bool { return !lane(tag) && tag != "race" && tag != "nokubernetes" }) && !is.Eval(func(tag string) bool { return tag != "race" && tag != "nokubernetes" }) {
				t.Errorf("%s: %s is not in the build with all tags", path, strings.TrimSpace(line))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// limits are those of a package's production code. A folder with more holds several ideas.
var limits = size{files: 20, lines: 3000}

type size struct{ files, lines int }

// limitsOf has the packages with other limits.
var limitsOf = map[string]size{
	"agent": {files: 15, lines: 3000},
}

func TestSizesOfPackages(t *testing.T) {
	for _, p := range productPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		most, special := limitsOf[name]
		if !special {
			most = limits
		}
		lines := 0
		for _, f := range p.GoFiles {
			lines += strings.Count(string(must.Get(os.ReadFile(filepath.Join(p.Dir, f)))(t)), "\n")
		}
		if len(p.GoFiles) > most.files || lines > most.lines {
			t.Errorf("package %s has %d files and %d lines, the limit is %d and %d: divide it", name, len(p.GoFiles), lines, most.files, most.lines)
		}
	}
}
