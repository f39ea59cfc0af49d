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
	{"vip/event", nil},
	{"vip/table/keyed", nil},
	{"vip/table", []string{"vip/table/keyed"}},
	{"vip/spec/strict", []string{"vip"}},
	{"vip/spec", []string{"vip", "vip/spec/strict"}},
	{"state", []string{"vip"}},
	{"hostnet", []string{"vip/table"}},
	{"retry", nil},
	{"agenda", nil},
	{"sources", []string{"vip", "vip/event", "vip/table", "retry"}},
	{"sources/remembered", []string{"vip", "vip/table", "vip/spec", "sources"}},
	{"sources/static", []string{"vip", "vip/spec", "sources", "state", "configs"}},
	{"consulclient", nil},
	{"kubeclient", nil},
	{"fleet", []string{"vip", "vip/event", "vip/table", "state", "consulclient", "retry"}},
	{"sources/consul", []string{"vip", "vip/spec", "vip/spec/strict", "sources", "consulclient", "retry"}},
	{"sources/kubernetes", []string{"vip", "vip/table", "vip/event", "vip/spec", "vip/spec/strict", "sources", "kubeclient", "retry"}},
	{"sources/rest", []string{"vip", "vip/event", "vip/table", "vip/spec", "state", "sources", "fleet", "retry", "agenda"}},
	{"ipam", []string{"vip", "vip/event", "vip/table", "vip/table/keyed", "hostnet", "retry"}},
	{"ipam/internal/book", []string{"vip", "vip/table/keyed", "ipam"}},
	{"ipam/memstore", []string{"ipam", "ipam/internal/book"}},
	{"ipam/boltstore", []string{"ipam", "ipam/internal/book", "state"}},
	{"transfer", []string{"vip", "ipam", "sources/rest"}},
	{"ipam/consulstore", []string{"vip", "vip/table", "ipam", "ipam/internal/book", "fleet"}},
	{"configs", []string{"vip", "vip/spec", "vip/spec/strict", "ipam"}},
	{"vip/compile", []string{"vip"}},
	{"vip/reconcile", []string{"vip", "vip/event", "vip/table", "vip/table/keyed", "agenda"}},
	{"vip/control", []string{"vip", "vip/event", "vip/table", "vip/table/keyed", "vip/compile", "vip/reconcile", "hostnet", "ipam", "agenda"}},
	{"nodehealth", []string{"vip", "vip/event", "vip/table", "vip/control", "hostnet", "retry"}},
	{"ipvs", []string{"vip", "vip/reconcile"}},
	{"proxy/pick", []string{"vip"}},
	{"proxy", []string{"vip", "vip/reconcile", "proxy/pick", "retry"}},
	{"api/v1", []string{"vip/spec"}},
	{"api/client", []string{"api/v1"}},
	{"api", []string{"vip", "vip/event", "vip/table", "vip/spec", "vip/spec/strict", "vip/compile", "vip/control", "vip/reconcile", "ipam", "sources",
		"sources/rest", "fleet", "transfer", "api/v1", "retry"}},
}

// stdlibOnly are the packages of the vocabulary: they import nothing but the
// standard library and each other.
var stdlibOnly = []string{"vip", "vip/event", "vip/table", "vip/table/keyed", "vip/spec", "vip/spec/strict", "api/v1"}

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
