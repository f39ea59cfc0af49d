package host

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Modules knows which kernel modules are loaded and which can be loaded.
type Modules struct {
	root, release string
	loadable      map[string]bool // nil if unknown
}

// ModuleIndex reads the lists of the running kernel's modules.
func ModuleIndex(root, release string) Modules {
	m := Modules{root: root, release: release}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		file, err := os.Open(filepath.Join(root, "lib/modules", release, list))
		if err != nil {
			continue
		}
		if m.loadable == nil {
			m.loadable = map[string]bool{}
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			path, _, _ := strings.Cut(lines.Text(), ":")
			name, _, _ := strings.Cut(filepath.Base(path), ".")
			m.loadable[strings.ReplaceAll(name, "-", "_")] = true
		}
		file.Close()
	}
	return m
}

// Check checks for a module that the kernel loads by itself when it is needed.
func (m Modules) Check(name string) Finding {
	f := Finding{Name: "kernel module " + name, OK: true}
	_, err := os.Stat(filepath.Join(m.root, "sys/module", name))
	switch {
	case err == nil:
		f.Detail = "loaded"
	case m.loadable[name]:
		f.Detail = "loaded when needed"
	case m.loadable == nil:
		f.Detail = "not loaded; whether it can be is not known"
	default:
		f.OK, f.Detail, f.Remedy = false, fmt.Sprintf("kernel %s has no such module", m.release), "run a kernel with the module "+name
	}
	return f
}
