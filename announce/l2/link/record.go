package link

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Setting is the former value of a setting that was changed.
type Setting struct {
	Index  int    `json:"index"`
	Name   string `json:"name"` // for people
	Before uint32 `json:"arp_announce"`
}

// record remembers changed settings until they are restored, also over restarts of the process. Its
// file is in the runtime folder, because the settings don't survive a restart of the host either.
type record struct {
	file string // "": in memory only
	all  map[int]Setting
}

// openRecord reads a record. An entry that can't be read is not restored.
func openRecord(file string) *record {
	r := &record{file: file, all: map[int]Setting{}}
	if file == "" {
		return r
	}
	b, err := os.ReadFile(file)
	var saved []Setting
	if err != nil || json.Unmarshal(b, &saved) != nil {
		return r
	}
	for _, s := range saved {
		r.all[s.Index] = s
	}
	return r
}

// settings returns what is recorded, in the order of the interfaces.
func (r *record) settings() (out []Setting) {
	for _, s := range r.all {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Setting) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

func (r *record) set(s Setting) error {
	if r.all[s.Index] == s {
		return nil
	}
	r.all[s.Index] = s
	return r.save()
}

func (r *record) remove(index int) error {
	delete(r.all, index)
	return r.save()
}

// save replaces the file.
func (r *record) save() error {
	if r.file == "" {
		return nil
	}
	b, err := json.Marshal(r.settings())
	if err == nil {
		temporary := filepath.Join(filepath.Dir(r.file), "."+filepath.Base(r.file))
		if err = os.WriteFile(temporary, b, 0o600); err == nil {
			err = os.Rename(temporary, r.file)
		}
	}
	if err != nil {
		return fmt.Errorf("record former settings of interfaces: %w", err)
	}
	return nil
}
