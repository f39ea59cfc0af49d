package configs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// ServicesFile is what one file of services says.
type ServicesFile struct {
	Path     string
	Services []vip.Service    // the good ones in the file's order, no two of a name
	Refused  []vip.ServiceKey // those with a good name and something else wrong
	Problems []vip.Problem    // sorted by line
	// Incomplete says that some of the file could not be made sense of (all of
	// it, where it isn't valid TOML; a block without a usable name): that a
	// service is neither in Services nor in Refused says nothing.
	Incomplete bool
	// Empty says that the file has no bytes but white space: what a write that
	// was cut off leaves behind. A file of comments only is not Empty.
	Empty bool
}

// ParseServices reads the content of one file of services. Source becomes each
// service's Source, "path:line" its Origin. Pools, which may be nil, are what
// the services are checked against.
func ParseServices(path string, data []byte, source string, pools []spec.Pool) ServicesFile {
	out := ServicesFile{Path: path, Empty: len(strings.TrimSpace(string(data))) == 0}
	tree, at, problem := parse(path, data)
	if problem != nil {
		out.Incomplete, out.Problems = true, []vip.Problem{*problem}
		return out
	}
	var blocks []map[string]any
	switch list := tree["service"].(type) {
	case nil:
	case []map[string]any:
		blocks = list
	case []any:
		for i, item := range list {
			block, ok := item.(map[string]any)
			if !ok {
				out.add(at, strict.Index("service", i), vip.Problem{Code: vip.CodeInvalid,
					Message: "wants a table, has " + strict.Describe(item), Hint: "start each service with [[service]]"})
				out.Incomplete = true
				continue
			}
			blocks = append(blocks, block)
		}
	default:
		out.add(at, "service", vip.Problem{Code: vip.CodeInvalid, Message: "wants a list, has " + strict.Describe(list),
			Hint: "start each service with [[service]], in double brackets"})
		out.Incomplete = true
	}
	for key := range tree {
		if key != "service" {
			hint := "services are written as [[service]] blocks; settings of the agent belong in ironvip.toml"
			if strict.Nearest(key, []string{"service"}) != "" {
				hint = `did you mean [[service]]?`
			}
			out.add(at, strict.Join("", key), vip.Problem{Code: vip.CodeUnknownKey, Message: "unknown key", Hint: hint})
			// A misspelt header hides services: their absence says nothing.
			out.Incomplete = true
		}
	}
	first := make(map[vip.ServiceKey]string, len(blocks))
	for i, block := range blocks {
		out.service(at, strict.Index("service", i), block, source, pools, first)
	}
	SortProblems(out.Problems)
	return out
}

// service reads one [[service]] block.
func (f *ServicesFile) service(at positions, path string, block map[string]any, source string, pools []spec.Pool, first map[vip.ServiceKey]string) {
	origin := lineOf(f.Path, at.line(path))
	var written spec.Service
	problems := strict.Decode(block, &written, "")
	built, more := written.Build(source, origin)
	problems = spec.Merge(problems, append(more, spec.CheckAgainstPools(&written, pools)...))
	if built.Key != (vip.ServiceKey{}) {
		if earlier, twice := first[built.Key]; twice {
			problems = append(problems, Duplicate(built.Key, origin, earlier))
		} else {
			first[built.Key] = origin
			if len(problems) > 0 {
				f.Refused = append(f.Refused, built.Key)
			}
		}
	} else {
		f.Incomplete = true
	}
	for _, p := range problems {
		p.Service = written.Title()
		f.add(at, path+"."+p.Field, p)
	}
	if len(problems) == 0 {
		f.Services = append(f.Services, built)
	}
}

// add notes a problem at a path; one at the top of the file has no field yet.
func (f *ServicesFile) add(at positions, path string, p vip.Problem) {
	p.Place = lineOf(f.Path, at.line(strings.TrimSuffix(path, ".")))
	if p.Field == "" && p.Service == "" {
		p.Field = path
	}
	f.Problems = append(f.Problems, p)
}

// Duplicate is the problem of a service at place whose name the one at winner
// has.
func Duplicate(key vip.ServiceKey, place, winner string) vip.Problem {
	return vip.Problem{Code: vip.CodeNameTaken, Place: place, Service: key.String(), Field: "name",
		Message: fmt.Sprintf("%q is the name of the service at %s, too", key, winner), Hint: "rename or remove one of the two"}
}

// ServicesName reports whether a name in a directory of services is that of a
// file to read: *.toml, but no dotfile (editors and config maps keep theirs so).
func ServicesName(name string) bool {
	return strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".")
}

// ListServices returns the paths of a directory's files of services, sorted. It
// looks at names only: what is no regular file is for ReadFile to refuse.
func ListServices(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("services directory %s: %w", dir, cause(err))
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("services directory %s: %w", dir, cause(err))
	}
	var out []string
	for _, name := range names {
		if ServicesName(name) {
			out = append(out, filepath.Join(dir, name))
		}
	}
	slices.Sort(out)
	return out, nil
}

// LoadServicesFile reads one file of services from disk.
func LoadServicesFile(path, source string, pools []spec.Pool) ServicesFile {
	data, problem := ReadFile(path, MaxServicesSize)
	if problem != nil {
		return ServicesFile{Path: path, Incomplete: true, Problems: []vip.Problem{*problem}}
	}
	return ParseServices(path, data, source, pools)
}

// MergeServices joins files into one list with unique names. Of two services
// with one name, that of the file which holder names wins (the one in force so
// far), else the first; the other becomes a problem that names both places.
// Holder may be nil.
func MergeServices(files []ServicesFile, holder func(vip.ServiceKey) (path string)) ([]vip.Service, []vip.Problem) {
	var out []vip.Service
	var problems []vip.Problem
	index := map[vip.ServiceKey]int{}
	from := map[vip.ServiceKey]string{}
	for _, f := range files {
		problems = append(problems, f.Problems...)
		for _, s := range f.Services {
			i, twice := index[s.Key]
			switch {
			case !twice:
				index[s.Key], from[s.Key] = len(out), f.Path
				out = append(out, s)
				continue
			case holder != nil && holder(s.Key) == f.Path && from[s.Key] != f.Path:
				s, out[i] = out[i], s
				from[s.Key] = f.Path
			}
			problems = append(problems, Duplicate(s.Key, s.Origin, out[i].Origin))
		}
	}
	SortProblems(problems)
	return out, problems
}

// Services reads what every static source has on disk, as validate and plan see it:
// the good services, each name once, and everything that is wrong.
func (c *Config) Services() ([]vip.Service, []vip.Problem) {
	var all []vip.Service
	var problems []vip.Problem
	seen := map[vip.ServiceKey]string{} // where the first of a name is
	for _, s := range c.Sources {
		if s.Type != SourceStatic || s.Optional && missing(s.Path) {
			continue
		}
		found, more := LoadServices(s.Path, s.Name, c.SpecPools())
		problems = append(problems, more...)
		for _, service := range found {
			if first, twice := seen[service.Key]; twice {
				problems = append(problems, Duplicate(service.Key, service.Origin, first))
				continue
			}
			seen[service.Key] = service.Origin
			all = append(all, service)
		}
	}
	return all, problems
}

// LoadServices reads a directory of services as validate and plan see it: the
// good services, and everything that is wrong.
func LoadServices(dir, source string, pools []spec.Pool) ([]vip.Service, []vip.Problem) {
	paths, err := ListServices(dir)
	if err != nil {
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Place: dir, Message: err.Error(), Hint: "make the directory, or correct the source's path"}}
	}
	files := make([]ServicesFile, 0, len(paths))
	for _, path := range paths {
		files = append(files, LoadServicesFile(path, source, pools))
	}
	return MergeServices(files, nil)
}
