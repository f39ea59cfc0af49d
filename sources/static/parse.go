package static

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// MaxSize is how many bytes a file of services may have.
const MaxSize = 4 << 20

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
	doc, problem := tomlfile.Parse(path, data)
	if problem != nil {
		out.Incomplete, out.Problems = true, []vip.Problem{*problem}
		return out
	}
	var blocks []map[string]any
	switch list := doc.Tree["service"].(type) {
	case nil:
	case []map[string]any:
		blocks = list
	case []any:
		for i, item := range list {
			block, ok := item.(map[string]any)
			if !ok {
				out.add(doc, strict.Index("service", i), vip.Problem{Code: vip.CodeInvalid,
					Message: "wants a table, has " + strict.Describe(item), Hint: "start each service with [[service]]"})
				out.Incomplete = true
				continue
			}
			blocks = append(blocks, block)
		}
	default:
		out.add(doc, "service", vip.Problem{Code: vip.CodeInvalid, Message: "wants a list, has " + strict.Describe(list),
			Hint: "start each service with [[service]], in double brackets"})
		out.Incomplete = true
	}
	for key := range doc.Tree {
		if key != "service" {
			hint := "services are written as [[service]] blocks; settings of the agent belong in ironvip.toml"
			if strict.Nearest(key, []string{"service"}) != "" {
				hint = `did you mean [[service]]?`
			}
			out.add(doc, strict.Join("", key), vip.Problem{Code: vip.CodeUnknownKey, Message: "unknown key", Hint: hint})
			// A misspelt header hides services: their absence says nothing.
			out.Incomplete = true
		}
	}
	first := make(map[vip.ServiceKey]string, len(blocks))
	for i, block := range blocks {
		out.service(doc, strict.Index("service", i), block, source, pools, first)
	}
	tomlfile.SortProblems(out.Problems)
	return out
}

// service reads one [[service]] block.
func (f *ServicesFile) service(doc *tomlfile.Document, path string, block map[string]any, source string, pools []spec.Pool, first map[vip.ServiceKey]string) {
	origin := doc.Place(path)
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
		f.add(doc, path+"."+p.Field, p)
	}
	if len(problems) == 0 {
		f.Services = append(f.Services, built)
	}
}

// add notes a problem at a path; one at the top of the file has no field yet.
func (f *ServicesFile) add(doc *tomlfile.Document, path string, p vip.Problem) {
	p.Place = doc.Place(strings.TrimSuffix(path, "."))
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
		return nil, fmt.Errorf("services directory %s: %w", dir, tomlfile.Cause(err))
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("services directory %s: %w", dir, tomlfile.Cause(err))
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

// LoadServices reads a directory of services, for validate and plan. It returns the good services
// and everything that is wrong. Of two services with one name the first wins; the other is a
// problem that names both places.
func LoadServices(dir, source string, pools []spec.Pool) ([]vip.Service, []vip.Problem) {
	paths, err := ListServices(dir)
	if err != nil {
		return nil, []vip.Problem{{Code: vip.CodeInvalid, Place: dir, Message: err.Error(), Hint: "make the directory, or correct the source's path"}}
	}
	var out []vip.Service
	var problems []vip.Problem
	first := map[vip.ServiceKey]string{}
	for _, path := range paths {
		data, problem := tomlfile.ReadFile(path, MaxSize)
		if problem != nil {
			problems = append(problems, *problem)
			continue
		}
		file := ParseServices(path, data, source, pools)
		problems = append(problems, file.Problems...)
		for _, s := range file.Services {
			if origin, twice := first[s.Key]; twice {
				problems = append(problems, Duplicate(s.Key, s.Origin, origin))
				continue
			}
			first[s.Key] = s.Origin
			out = append(out, s)
		}
	}
	tomlfile.SortProblems(problems)
	return out, problems
}
