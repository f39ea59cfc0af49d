package ipvs

import (
	"slices"
	"sync"
)

// findings are the last findings about a Target's host, by name. They may be used
// from several goroutines.
type findings struct {
	mu  sync.Mutex
	all []Finding
}

// set records a finding. It reports whether the finding has changed.
func (f *findings) set(x Finding) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.all, func(g Finding) bool { return g.Name == x.Name })
	if i < 0 {
		f.all = append(f.all, x)
		return true
	}
	changed = f.all[i] != x
	f.all[i] = x
	return changed
}

// get returns the last finding of a name.
func (f *findings) get(name string) (Finding, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.all, func(g Finding) bool { return g.Name == name })
	if i < 0 {
		return Finding{}, false
	}
	return f.all[i], true
}

// repaired records that what a finding reported is usable now.
func (f *findings) repaired(name string) {
	if x, known := f.get(name); known && !x.OK {
		f.set(Finding{Name: name, OK: true, Required: x.Required, Detail: "usable"})
	}
}

func (f *findings) list() []Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}
