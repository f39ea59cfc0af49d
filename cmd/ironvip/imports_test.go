package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ironvip/ironvip/"

// imports is the import rule of ARCHITECTURE.md: what each package of the
// product may import of the others. The order is that of the pipeline; a
// package may only name packages above it. cmd wires everything and is free.
var imports = []struct {
	pkg  string
	uses []string
}{
	{"vip", nil},
	{"internal/event", nil},
	{"internal/table/keyed", nil},
	{"internal/table", []string{"internal/table/keyed"}},
	{"vip/spec/strict", []string{"vip"}},
	{"vip/spec", []string{"vip", "vip/spec/strict"}},
	{"internal/store", []string{"vip"}},
	{"internal/hostnet", []string{"internal/table"}},
	{"internal/backoff", nil},
	{"internal/delayqueue", nil},
	{"sources", []string{"vip", "internal/event", "internal/table", "internal/backoff"}},
	{"sources/cache", []string{"vip", "internal/table", "vip/spec", "sources"}},
	{"sources/static", []string{"vip", "vip/spec", "sources", "internal/store", "configs"}},
	{"internal/consulclient", nil},
	{"internal/kubeclient", nil},
	{"internal/fleet", []string{"vip", "internal/event", "internal/table", "internal/store", "internal/consulclient", "internal/backoff"}},
	{"sources/consul", []string{"vip", "vip/spec", "vip/spec/strict", "sources", "internal/consulclient", "internal/backoff"}},
	{"sources/kubernetes", []string{"vip", "internal/table", "internal/event", "vip/spec", "vip/spec/strict", "sources", "internal/kubeclient", "internal/backoff"}},
	{"sources/rest", []string{"vip", "internal/event", "internal/table", "vip/spec", "internal/store", "sources", "internal/fleet", "internal/backoff", "internal/delayqueue"}},
	{"ipam", []string{"vip", "internal/event", "internal/table", "internal/table/keyed", "internal/hostnet", "internal/backoff"}},
	{"ipam/internal/book", []string{"vip", "internal/table/keyed", "ipam"}},
	{"ipam/memstore", []string{"ipam", "ipam/internal/book"}},
	{"ipam/boltstore", []string{"ipam", "ipam/internal/book", "internal/store"}},
	{"internal/store/snapshot", []string{"vip", "ipam", "sources/rest"}},
	{"ipam/consulstore", []string{"vip", "internal/table", "ipam", "ipam/internal/book", "internal/fleet"}},
	{"configs", []string{"vip", "vip/spec", "vip/spec/strict", "ipam"}},
	{"internal/pipeline/compile", []string{"vip"}},
	{"internal/reconcile", []string{"vip", "internal/event", "internal/table", "internal/table/keyed", "internal/delayqueue"}},
	{"internal/pipeline", []string{"vip", "internal/event", "internal/table", "internal/table/keyed", "internal/pipeline/compile", "internal/reconcile", "internal/hostnet", "ipam", "internal/delayqueue"}},
	{"internal/healthport", []string{"vip", "internal/event", "internal/table", "internal/pipeline", "internal/hostnet", "internal/backoff"}},
	{"ipvs", []string{"vip", "internal/reconcile"}},
	{"proxy/pick", []string{"vip"}},
	{"proxy", []string{"vip", "internal/reconcile", "proxy/pick", "internal/backoff"}},
	{"api/v1", []string{"vip/spec"}},
	{"api/client", []string{"api/v1"}},
	{"api", []string{"vip", "internal/event", "internal/table", "vip/spec", "vip/spec/strict", "internal/pipeline/compile", "internal/pipeline", "internal/reconcile", "ipam", "sources",
		"sources/rest", "internal/fleet", "internal/store/snapshot", "api/v1", "internal/backoff"}},
}

// stdlibOnly are the packages of the vocabulary: they import nothing but the
// standard library and each other.
var stdlibOnly = []string{"vip", "internal/event", "internal/table", "internal/table/keyed", "vip/spec", "vip/spec/strict", "api/v1"}

func TestImportRule(t *testing.T) {
	allowed := map[string][]string{}
	for _, rule := range imports {
		for _, use := range rule.uses {
			if _, above := allowed[use]; !above && use != "configs" {
				t.Errorf("rule for %s: %s is not above it", rule.pkg, use)
			}
		}
		allowed[rule.pkg] = rule.uses
	}
	seen := map[string]bool{}
	for _, p := range productPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		uses, known := allowed[name]
		if !known {
			t.Errorf("package %s has no rule: give it a line in this test and a paragraph in ARCHITECTURE.md", name)
			continue
		}
		seen[name] = true
		for _, imp := range p.Imports {
			inner, ours := strings.CutPrefix(imp, module)
			switch {
			case ours && !slices.Contains(uses, inner):
				t.Errorf("%s imports %s: the pipeline does not run that way", name, inner)
			case !ours && strings.Contains(strings.Split(imp, "/")[0], ".") && slices.Contains(stdlibOnly, name):
				t.Errorf("%s imports %s: it may use the standard library only", name, imp)
			}
		}
	}
	for name := range allowed {
		if !seen[name] {
			t.Errorf("rule for %s: there is no such package", name)
		}
	}
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

// productPackages lists everything but the binary and the tests' own tools.
func productPackages(t *testing.T) []goPackage {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		inner := strings.TrimPrefix(p.ImportPath, module)
		isTool := strings.HasPrefix(inner, "cmd/") || strings.HasPrefix(inner, "test/") || strings.HasSuffix(inner, "test")
		if !isTool {
			all = append(all, p)
		}
	}
}
