package static

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// MaxSize is the maximum size of a services file in bytes.
const MaxSize = 4 << 20

// ServicesFile is the parsed content of one services file.
type ServicesFile struct {
	Path     string
	Services []vip.Service    // valid services in the order of the file, with unique names
	Refused  []vip.ServiceKey // services with a valid name and other errors
	Problems []vip.Problem    // sorted by line; at most as many as vip.Problems collects
	// Incomplete means that some of the file could not be interpreted: invalid TOML, or a block
	// without a usable name. A service that is neither in Services nor in Refused may still be in
	// the file.
	Incomplete bool
	// Empty means that the file contains only white space, as after a write that was cut off. A
	// file with only comments is not Empty.
	Empty bool

	found vip.Problems
}

// ParseServices parses the content of one services file. Source becomes each service's Source, and
// "path:line" its Origin. The services are checked against pools, which may be nil.
func ParseServices(path string, data []byte, source string, pools []spec.Pool) ServicesFile {
	out := ServicesFile{Path: path, Incomplete: true}
	if doc, problem := tomlfile.Parse(path, data); problem != nil {
		out.Problems = []vip.Problem{*problem}
	} else {
		out = parseDocument(doc, source, pools)
	}
	out.Empty = len(bytes.TrimSpace(data)) == 0
	return out
}

// parseDocument is ParseServices for a file that is TOML, without Empty.
func parseDocument(doc *tomlfile.Document, source string, pools []spec.Pool) ServicesFile {
	out := ServicesFile{Path: doc.Path}
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
			// A misspelled header hides services, so missing services may still be in the file.
			out.Incomplete = true
		}
	}
	first := make(map[vip.ServiceKey]string, len(blocks))
	for i, block := range blocks {
		out.service(doc, strict.Index("service", i), block, source, pools, first)
	}
	out.Problems = out.found.List()
	tomlfile.SortProblems(out.Problems)
	return out
}

// service parses one [[service]] block.
func (f *ServicesFile) service(doc *tomlfile.Document, path string, block map[string]any, source string, pools []spec.Pool, first map[vip.ServiceKey]string) {
	origin := doc.Place(path)
	built, title, problems := build(block, source, origin, pools)
	if built.Key != (vip.ServiceKey{}) {
		if earlier, twice := first[built.Key]; twice {
			problems = append(problems, sources.Duplicate(built.Key, origin, earlier))
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
		if f.found.Full() { // a place costs a search of the file
			break
		}
		p.Service = title
		f.add(doc, path+"."+p.Field, p)
	}
	if len(problems) == 0 {
		f.Services = append(f.Services, built)
	}
}

// build makes a service of a block's tree. Its key is zero if it has no usable name. Title is its
// name for messages. The problems have fields, but no places.
func build(block map[string]any, source, origin string, pools []spec.Pool) (built vip.Service, title string, problems []vip.Problem) {
	var written spec.Service
	problems = strict.Decode(block, &written, "")
	built, problems = written.BuildIn(pools, source, origin, problems)
	return built, written.Title(), problems
}

// add records a problem at a path. A problem at the top level has no field yet.
func (f *ServicesFile) add(doc *tomlfile.Document, path string, p vip.Problem) {
	p.Place = doc.Place(strings.TrimSuffix(path, "."))
	if p.Field == "" && p.Service == "" {
		p.Field = path
	}
	f.found.Add(p)
}

// ServicesName reports whether a file name in a services directory is that of a services file:
// *.toml, except dotfiles. Editors and config maps use dotfiles for their own data.
func ServicesName(name string) bool {
	return strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".")
}

// ListServices returns the sorted paths of the services files in a directory. It looks at names
// only. ReadFile refuses paths that are not regular files.
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
