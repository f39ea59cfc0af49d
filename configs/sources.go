package configs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ironvip/ironvip/internal/tomlfile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/sources/consul"
	"github.com/ironvip/ironvip/sources/dns"
	"github.com/ironvip/ironvip/sources/http"
	"github.com/ironvip/ironvip/sources/static"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// sourceTypes lists the types of sources with the settings of an empty block. A new type of source
// needs a line here.
var sourceTypes = []struct {
	name string
	new  func() sources.Config // nil: not in this build
}{
	{static.Type, func() sources.Config { return new(static.Config) }},
	{consul.Type, func() sources.Config { return consul.NewConfig() }},
	{http.Type, func() sources.Config { return http.NewConfig() }},
	{dns.Type, func() sources.Config { return dns.NewConfig() }},
	{"kubernetes", newKubernetes},
}

// Source is a [[source]] block: where services come from.
type Source struct {
	Type   string         `toml:"type"`
	Name   string         `toml:"name"` // unique; the default is the type
	Config sources.Config `toml:"-"`    // the other keys; nil without a known type
}

// Extension implements strict.Extended: the other keys of a block depend on its type.
func (s *Source) Extension(tree map[string]any) (into any, foreign map[string]string) {
	typ, _ := tree["type"].(string)
	foreign = map[string]string{}
	users := map[string][]string{} // the types that have a key
	for _, t := range sourceTypes {
		switch {
		case t.new == nil:
		case t.name == typ:
			s.Config = t.new()
		default:
			for _, key := range strict.Keys(t.new()) {
				users[key] = append(users[key], strconv.Quote(t.name))
			}
		}
	}
	if s.Config == nil { // the type is wrong; the keys may be valid
		for key := range tree {
			foreign[key] = ""
		}
		return nil, foreign
	}
	for key, types := range users {
		foreign[key] = fmt.Sprintf("is for sources of type %s, and this one is of type %q", strings.Join(types, " or "), typ)
	}
	return s.Config, foreign
}

// checkSources checks every block. Without one, the source is services.d beside the file.
func (c *Config) checkSources(doc *tomlfile.Checker) {
	if len(c.Sources) == 0 {
		c.Sources = defaultSources(c.Path)
		return
	}
	var types, pools []string
	for _, t := range sourceTypes {
		types = append(types, t.name)
	}
	for _, p := range c.Pools {
		pools = append(pools, p.Name)
	}
	for i := range c.Sources {
		s, block := &c.Sources[i], doc.In(strict.Index("source", i))
		switch {
		case s.Type == "":
			block.Bad("type", `add type = "static"`, "a source needs a type")
			continue
		case !slices.Contains(types, s.Type):
			block.Choice("type", s.Type, types...)
			continue
		case s.Config == nil:
			p := vip.Unsupported("this build", "", "the "+s.Type+" source")
			p.Hint = "this binary was built with -tags no" + s.Type + ": install one built without it, or remove this [[source]]"
			block.Add("type", p)
			continue
		}
		if s.Name == "" {
			s.Name = s.Type
		}
		switch err := vip.CheckLabel(s.Name); {
		case err != nil:
			block.Label("name", s.Name)
		case s.Name == "rest":
			block.Bad("name", "use another name", `"rest" is the name of the API's own source`)
		default:
			if by, taken := block.Claim("source " + s.Name); taken {
				block.Bad("name", "give each source a name of its own", "%q is the name of the source at %s, too", s.Name, by)
			}
		}
		s.Config.Check(&sources.Block{Checker: block, Pools: pools, Consul: c.Consul.Config})
	}
}

// defaultSources returns the source of a file without a [[source]]: services.d beside it. It exists
// even if the directory is missing, so that the services of a vanished directory remain.
func defaultSources(path string) []Source {
	return []Source{{Type: static.Type, Name: static.Type, Config: &static.Config{Path: servicesDir(path), Optional: true}}}
}

// servicesDir returns the services.d beside the file at path.
func servicesDir(path string) string {
	return (&tomlfile.Document{Path: path}).AbsolutePath(ServicesDir)
}

// UnreadServices returns the services.d beside the file if it holds services that no source
// reads, and "" otherwise.
func (c *Config) UnreadServices() string {
	dir := servicesDir(c.Path)
	read := slices.ContainsFunc(c.Sources, func(s Source) bool {
		config, ok := s.Config.(*static.Config)
		return ok && config.Path == dir
	})
	if files, _ := static.ListServices(dir); read || len(files) == 0 {
		return ""
	}
	return dir
}

// HasFiles reports whether Services reads the source with this name.
func (c *Config) HasFiles(source string) bool {
	return slices.ContainsFunc(c.Sources, func(s Source) bool {
		_, ok := s.Config.(sources.Loader)
		return ok && s.Name == source
	})
}

// Services reads the files of all sources that have files, for validate and plan. It returns the
// valid services, each name once, and all problems.
func (c *Config) Services() ([]vip.Service, []vip.Problem) {
	var all []vip.Service
	var problems []vip.Problem
	seen := map[vip.ServiceKey]string{} // the place of the first service of a name
	for _, s := range c.Sources {
		loader, ok := s.Config.(sources.Loader)
		if !ok {
			continue
		}
		found, more := loader.Load(s.Name, c.SpecPools())
		problems = append(problems, more...)
		for _, service := range found {
			if first, twice := seen[service.Key]; twice {
				problems = append(problems, sources.Duplicate(service.Key, service.Origin, first))
				continue
			}
			seen[service.Key] = service.Origin
			all = append(all, service)
		}
	}
	return all, problems
}

// CheckFiles reports which files that the configuration names, such as tokens and certificates,
// this process can't use. It skips systemd's credentials, which only the agent can read.
func (c *Config) CheckFiles() []vip.Problem {
	var problems []vip.Problem
	seen := map[string]bool{} // sources inherit files from [consul]
	check := func(table string, of sources.FileNamer) {
		for _, f := range of.Files() {
			problem := f.Problem(MaxSize)
			if problem == nil || seen[problem.Message] {
				continue
			}
			seen[problem.Message] = true
			problem.Field = strict.Join(table, problem.Field)
			problem.Place = c.Place(problem.Field)
			problems = append(problems, *problem)
		}
	}
	if c.UsesConsul() {
		check("consul", &c.Consul)
	}
	if c.IPAM.Store == StoreEtcd {
		check("etcd", &c.Etcd)
	}
	check("api", &c.API)
	check("announce", &c.Announce)
	for i, s := range c.Sources {
		if files, ok := s.Config.(sources.FileNamer); ok {
			check(strict.Index("source", i), files)
		}
	}
	for i := range c.Hooks {
		check(strict.Index("hook", i), &c.Hooks[i])
	}
	return problems
}

// missing reports whether path doesn't exist, not even as a link.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return os.IsNotExist(err)
}

// UsesConsul reports whether the store or a source uses the server of [consul].
func (c *Config) UsesConsul() bool {
	return c.IPAM.Store == StoreConsul || slices.ContainsFunc(c.Sources, func(s Source) bool {
		config, ok := s.Config.(*consul.Config)
		return ok && config.Address == c.Consul.Address
	})
}

// FileAt returns the configuration file that path means. A path that does not exist is a
// directory, unless it has the extension of a file.
func FileAt(path string) string {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	if err == nil && info.IsDir() || missing(path) && filepath.Ext(path) != filepath.Ext(ConfigName) {
		return filepath.Join(path, ConfigName)
	}
	return path
}
