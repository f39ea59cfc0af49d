package static

import (
	"path/filepath"
	"strings"

	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/vip"
)

// earlier is the last good definitions of a file that an earlier run of the agent has stored. They are
// decoded if the file has a problem, or can't be read. Otherwise it has the same or newer ones.
type earlier map[vip.ServiceKey]store.Sealed[LastGood]

// restore takes in what an earlier run has stored, and returns the names of what it has stored of this source.
func (f *files) restore(all []store.Sealed[LastGood]) (names map[string]bool) {
	names = make(map[string]bool, len(all))
	f.earlier, f.chosen = map[string]earlier{}, make(map[vip.ServiceKey]string, len(all))
	several := map[vip.ServiceKey]struct{}{}
	for _, s := range all {
		path, name, _ := strings.Cut(s.Key(), "\x00")
		if filepath.Dir(path) != f.o.Path { // of another source
			continue
		}
		names[s.Key()] = true
		var key vip.ServiceKey
		key.Namespace, key.Name, _ = strings.Cut(name, "/")
		if f.earlier[path] == nil {
			f.earlier[path] = earlier{}
		}
		f.earlier[path][key] = s
		if _, again := f.chosen[key]; again {
			several[key] = struct{}{}
		}
		f.chosen[key] = path
	}
	for key := range several {
		delete(f.chosen, key)
		for path, e := range f.earlier {
			if s, has := e[key]; has {
				if good, err := s.Open(); err == nil && !good.Shadowed {
					f.chosen[key] = path
				}
			}
		}
	}
	return names
}

// decode returns the state of the file, or nil if there is none.
func (e earlier) decode(o Options) *file {
	if len(e) == 0 {
		return nil
	}
	list := make([]store.Sealed[LastGood], 0, len(e))
	for _, s := range e {
		list = append(list, s)
	}
	rows := make([]*row, len(list))
	parallel.All(len(list), func(i int) bool {
		good, err := list[i].Open()
		if err != nil {
			o.Log.Error("a stored service can't be read", "key", list[i].Key(), "err", err)
			return true
		}
		service, problems := good.Spec.Build(o.Name, good.Origin)
		if len(problems) > 0 { // valid only in an earlier version
			o.Log.Error("a stored service is refused", "service", good.Spec.Title(), "err", problems[0])
			return true
		}
		rows[i] = &row{service: service, origin: good.Origin}
		return true
	})
	state := &file{rows: make(map[vip.ServiceKey]*row, len(rows))}
	for _, r := range rows {
		if r != nil {
			state.rows[r.service.Key] = r
		}
	}
	return state
}

// recall makes the definitions of an earlier run the state, because the directory can't be read.
func (f *files) recall() {
	var ignored change // the full list follows
	for path, e := range f.earlier {
		f.set(path, e.decode(f.o), &ignored)
	}
}
